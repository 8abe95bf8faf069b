"""Ed25519 keys: their files, their names, signatures. The one module that knows `cryptography`.

A signing key lies in a file of its owner alone; a public key is one line of text, and a file of
trusted keys is such lines. A signer is known by the SHA-256 of its public key (64 hex characters).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cache.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

SIGNATURE_BYTES = 64
KEY_BYTES = 32
MAX_KEY_FILE = 1 << 16
_PUBLIC = "fusec-ed25519"
_PRIVATE = "fusec-ed25519-private"
_NAME = re.compile(r"[A-Za-z0-9_.@-]{0,64}")


@dataclass(frozen=True)
class PublicKey:
    """What verifies a signer's signatures: 32 bytes, and a name for people."""

    raw: bytes
    name: str = ""

    def __post_init__(self) -> None:
        if len(self.raw) != KEY_BYTES:
            raise ConfigError(f"a public key has {KEY_BYTES} bytes, not {len(self.raw)}")
        if _NAME.fullmatch(self.name) is None:
            raise ConfigError(f"the name of a key is not plain: {self.name[:40]!r}")

    @cached_property
    def signer(self) -> str:
        """The name by which entries and revocations know the signer: 64 hex characters."""
        return hashlib.sha256(self.raw).hexdigest()

    def text(self) -> str:
        """One line of a file of trusted keys."""
        return " ".join(filter(None, (_PUBLIC, base64.b64encode(self.raw).decode(), self.name)))

    @classmethod
    def parse(cls, line: str) -> PublicKey:
        """From `text`. Raises ConfigError."""
        kind, _, rest = line.strip().partition(" ")
        encoded, _, name = rest.strip().partition(" ")
        if kind == _PRIVATE:
            raise ConfigError("this is a signing key: only its owner may hold it")
        if kind != _PUBLIC:
            raise ConfigError(f"not a public key: {line[:40]!r}", hint=_HINT)
        return cls(_decode(encoded), name.strip())

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether `signature` is this signer's over `message`."""
        from cryptography.exceptions import InvalidSignature

        try:
            self._key.verify(signature, message)
        except InvalidSignature:
            return False
        return True

    @cached_property
    def _key(self) -> Ed25519PublicKey:
        # Loaded by those who verify or sign: a client without a remote does neither.
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        return Ed25519PublicKey.from_public_bytes(self.raw)


@dataclass(frozen=True)
class SigningKey:
    """What makes signatures; its 32 bytes are a secret and are never shown."""

    secret: bytes = field(repr=False)
    name: str = ""

    @classmethod
    def generate(cls, name: str = "") -> SigningKey:
        """A new key."""
        return cls(os.urandom(KEY_BYTES), name)

    @cached_property
    def public(self) -> PublicKey:
        """The half that clients hold."""
        return PublicKey(self._key.public_key().public_bytes_raw(), self.name)

    def sign(self, message: bytes) -> bytes:
        """The signature of a message: 64 bytes, the same each time."""
        return self._key.sign(message)

    def write(self, path: Path) -> None:
        """Write the key for its owner alone, and `<path>.pub` beside it for everybody.

        Raises ConfigError where a file of that name exists: a key is never overwritten.
        """
        encoded = base64.b64encode(self.secret).decode()
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w") as file:
                file.write(" ".join(filter(None, (_PRIVATE, encoded, self.name))) + "\n")
                file.flush()
                os.fsync(fd)
            public_path(path).write_text(self.public.text() + "\n")
        except OSError as error:
            hint = "a key is never overwritten: name a new file, in a folder that you may write"
            raise ConfigError(
                f"cannot write the key {path}: {error.strerror}", hint=hint
            ) from error

    @classmethod
    def read(cls, path: Path) -> SigningKey:
        """Raises ConfigError for a file that is no key, or that others may read."""
        try:
            status = path.stat()
            text = path.read_bytes()[:MAX_KEY_FILE].decode("ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the signing key {path}: {error}") from error
        if not is_private(status, os.geteuid()):
            raise ConfigError(f"others may read the signing key {path}", hint=f"chmod 600 {path}")
        kind, _, rest = text.strip().partition(" ")
        encoded, _, name = rest.strip().partition(" ")
        if kind != _PRIVATE:
            raise ConfigError(f"{path} holds no signing key", hint=_HINT)
        secret = _decode(encoded)
        if len(secret) != KEY_BYTES:
            raise ConfigError(f"{path} holds no signing key", hint=_HINT)
        return cls(secret, name.strip())

    @classmethod
    def read_or_generate(cls, path: Path, name: str = "") -> SigningKey:
        """The key in `path`, made on the first use."""
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            cls.generate(name).write(path)
        return cls.read(path)

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.secret)


def is_private(status: os.stat_result, user: int) -> bool:
    """Whether a file is for `user` alone.

    Root may have given it to the user's group to read: so a Kubernetes Secret is mounted for a
    container that does not run as root, and no tighter.
    """
    if status.st_uid == 0 and user != 0:
        return not status.st_mode & (stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO)
    return not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)


_HINT = "`fusec keys generate` makes a pair: the key for the farm, its .pub for clients"


def public_path(path: Path) -> Path:
    """Where the public half of the key in `path` lies."""
    return path.with_name(path.name + ".pub")


def parse_trusted(text: str) -> tuple[PublicKey, ...]:
    """Public keys, one a line; empty lines and what follows a # are passed over.

    Raises ConfigError.
    """
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(PublicKey.parse(line) for line in lines if line)


def read_trusted(path: Path) -> tuple[PublicKey, ...]:
    """The keys of a file. Raises ConfigError for one that is not readable or holds none."""
    try:
        text = path.read_bytes()[:MAX_KEY_FILE].decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the trusted keys {path}: {error}", hint=_HINT) from error
    keys = parse_trusted(text)
    if not keys:
        raise ConfigError(f"{path} holds no public key", hint=_HINT)
    return keys


def write_trusted(path: Path, keys: Sequence[PublicKey]) -> None:
    """Write a file of trusted keys."""
    path.write_text("".join(f"{key.text()}\n" for key in keys))


def _decode(encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise ConfigError("a key is not base64", hint=_HINT) from error
