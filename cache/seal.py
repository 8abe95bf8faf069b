"""Signed entries: a seal in front of a manifest's bytes.

    FSEAL | version, 1 byte | signer, 32 bytes | signature, 64 bytes
          | n, 1 byte | compiler, n bytes of ASCII | the manifest's bytes

Every field lies at a fixed place, so a signature is checked before anything is decoded. It is over
the namespace, the key, the compiler and the manifest: an entry that is moved to another key or
namespace does not verify there. The manifest names its blobs by digest, so they are covered too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cache.errors import NewerVersion, ProtocolError
from cache.signing import KEY_BYTES, SIGNATURE_BYTES, PublicKey, SigningKey

MAGIC = b"FSEAL"
VERSION = 1
_SIGNER_AT = len(MAGIC) + 1
_SIGNATURE_AT = _SIGNER_AT + KEY_BYTES
_COMPILER_AT = _SIGNATURE_AT + SIGNATURE_BYTES + 1
_COMPILER = re.compile(r"[!-~]{0,255}")  # printable ASCII without a space


@dataclass(frozen=True)
class Seal:
    """Who signed an entry, made by which compiler. `signer` is 64 hex characters."""

    signer: str
    compiler: str
    signature: bytes

    def wrap(self, manifest: bytes) -> bytes:
        """The entry: the seal, then the manifest's bytes."""
        compiler = self.compiler.encode("ascii")
        return b"".join(
            (
                MAGIC,
                bytes([VERSION]),
                bytes.fromhex(self.signer),
                self.signature,
                bytes([len(compiler)]),
                compiler,
                manifest,
            )
        )

    def holds(self, key: PublicKey, namespace: str, entry_key: str, manifest: bytes) -> bool:
        """Whether it is `key`'s signature over this manifest under this key and namespace."""
        message = _message(namespace, entry_key, self.compiler, manifest)
        return key.verifies(self.signature, message)


@dataclass(frozen=True)
class Signer:
    """Signs entries of one namespace, as made by `compiler` (see `compiler_parts`)."""

    key: SigningKey
    compiler: str
    namespace: str = ""

    def __post_init__(self) -> None:
        if _COMPILER.fullmatch(self.compiler) is None:
            raise ProtocolError(f"not the name of a compiler: {self.compiler[:80]!r}")

    def seal(self, entry_key: str, manifest: bytes) -> Seal:
        """The seal for a manifest's bytes under a key; the same bytes each time."""
        message = _message(self.namespace, entry_key, self.compiler, manifest)
        return Seal(self.key.public.signer, self.compiler, self.key.sign(message))


def split(entry: bytes) -> tuple[Seal | None, bytes]:
    """An entry's seal, None where it has none, and its manifest's bytes. Verifies nothing.

    Raises NewerVersion, ProtocolError.
    """
    if not entry.startswith(MAGIC):
        return None, entry
    if len(entry) < _COMPILER_AT:
        raise ProtocolError("a seal that ends early")
    if entry[len(MAGIC)] != VERSION:
        raise NewerVersion(f"a seal of version {entry[len(MAGIC)]}; this side reads {VERSION}")
    end = _COMPILER_AT + entry[_COMPILER_AT - 1]
    compiler = entry[_COMPILER_AT:end].decode("latin-1")
    if len(entry) < end or _COMPILER.fullmatch(compiler) is None:
        raise ProtocolError("a seal with a malformed compiler")
    signer = entry[_SIGNER_AT:_SIGNATURE_AT].hex()
    return Seal(signer, compiler, entry[_SIGNATURE_AT : _COMPILER_AT - 1]), entry[end:]


def compiler_parts(compiler: str) -> frozenset[str]:
    """The names under which a compiler can be revoked: the whole, and each part between `/`."""
    return frozenset({compiler, *compiler.split("/")}) - {""}


def _message(namespace: str, entry_key: str, compiler: str, manifest: bytes) -> bytes:
    # No field but the last can hold a zero byte, so no two sets of fields give one message.
    named = "\0".join(("fusec entry 1", namespace, entry_key, compiler))
    return named.encode("ascii") + b"\0" + manifest
