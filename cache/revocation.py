"""Revocations: what must no longer be used, though it is signed and whole.

A store keeps its namespace's list as one entry, under a key of its own kind; only an admin of the
service may write it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Final

from cache import key as keys
from cache import protocol as wire
from cache.errors import NewerVersion, ProtocolError, TooLarge
from cache.manifest import Manifest
from cache.seal import Seal, compiler_parts
from cache.store import Store

KEY: Final = f"{keys.REVOKED}/{'0' * 64}"
VERSION: Final = 1
MAX_NAMES: Final = 8192
"""Most names of one sort."""
_HEX = re.compile(r"[0-9a-f]{64}")
_COMPILER = re.compile(r"[!-~]{1,255}")


@dataclass(frozen=True)
class Revocations:
    """What is revoked, by four sorts of name.

    `keys`: entries, as `<kind>/<hex>`. `signers`: everything that a signing key has signed.
    `digests`: entries that hold a kernel or a blob of this digest. `compilers`: entries made by a
    compiler of this name or with a part of this name, as `fusec-0.1.0`.
    """

    keys: frozenset[str] = frozenset()
    signers: frozenset[str] = frozenset()
    digests: frozenset[str] = frozenset()
    compilers: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for key in self.keys:
            keys.parse(key)
        for sort, pattern in (
            ("signers", _HEX),
            ("digests", _HEX),
            ("compilers", _COMPILER),
        ):
            for name in getattr(self, sort):
                if pattern.fullmatch(name) is None:
                    raise ProtocolError(f"revocations: {name[:80]!r} is none of the {sort}")
        for item in fields(self):
            if len(getattr(self, item.name)) > MAX_NAMES:
                raise TooLarge(f"revocations: more than {MAX_NAMES} {item.name}")

    def __bool__(self) -> bool:
        return any(getattr(self, item.name) for item in fields(self))

    def with_added(self, other: Revocations) -> Revocations:
        """Both together."""
        return Revocations(*(_of(self, name) | _of(other, name) for name in _SORTS))

    def without(self, other: Revocations) -> Revocations:
        """This without what `other` names."""
        return Revocations(*(_of(self, name) - _of(other, name) for name in _SORTS))

    def reason(self, key: str, seal: Seal | None) -> str | None:
        """Why the entry under `key` with this seal is revoked; None if that does not say."""
        if key in self.keys:
            return "its key is revoked"
        if seal is None:
            return None
        if seal.signer in self.signers:
            return f"its signer {seal.signer[:16]}… is revoked"
        if self.compilers and not self.compilers.isdisjoint(compiler_parts(seal.compiler)):
            return f"its compiler {seal.compiler[:60]} is revoked"
        return None

    def reason_in(self, manifest: Manifest) -> str | None:
        """Why a manifest is revoked for what it names; None if it is not."""
        if not self.digests:
            return None
        for name, digest, _ in manifest.blobs:
            # A kernel's digest is its source's, the last part of its blob's name.
            for known in (digest, name.rpartition("/")[2]):
                if known in self.digests:
                    return f"its {name[:40]} is revoked"
        return None

    def encode(self) -> bytes:
        """The bytes of the list's entry."""
        body = {name: sorted(_of(self, name)) for name in _SORTS}
        return wire.pack({"version": VERSION, **body})

    @classmethod
    def decode(cls, data: bytes) -> Revocations:
        """Raises NewerVersion, TooLarge, ProtocolError."""
        value = wire.unpack(data, max_bytes=wire.MAX_MANIFEST, max_depth=3)
        version = value.get("version") if isinstance(value, dict) else None
        if isinstance(version, int) and version > VERSION:
            raise NewerVersion(f"revocations of version {version}; this side reads {VERSION}")
        body = wire.fields(value, "revocations", ("version", *_SORTS))
        if version != VERSION:
            raise ProtocolError("revocations: no version")
        return cls(*(frozenset(wire.strings(body[name], name, limit=MAX_NAMES)) for name in _SORTS))


_SORTS: Final = tuple(item.name for item in fields(Revocations))
NONE: Final = Revocations()


def read(store: Store) -> Revocations:
    """The list that a store keeps; empty where there is none. Raises what the store raises, and
    what `Revocations.decode` raises."""
    data = store.get_entry(KEY)
    return NONE if data is None else Revocations.decode(data)


def change(
    store: Store, *, add: Iterable[Revocations] = (), remove: Iterable[Revocations] = ()
) -> Revocations:
    """Add to a store's list and take from it; the list as it is then.

    Two who change it at the same moment may lose one change: look at the answer.
    """
    made = read(store)
    for more in add:
        made = made.with_added(more)
    for less in remove:
        made = made.without(less)
    store.replace_entry(KEY, made.encode())
    return made


def _of(revocations: Revocations, sort: str) -> frozenset[str]:
    names: frozenset[str] = getattr(revocations, sort)
    return names
