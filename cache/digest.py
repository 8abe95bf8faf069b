"""Content addresses: the SHA-256 of a blob's uncompressed bytes, in hex."""

from __future__ import annotations

import hashlib
import re

from cache.errors import Corrupt, ProtocolError

_DIGEST = re.compile(r"[0-9a-f]{64}")


def digest(data: bytes) -> str:
    """The content address of `data`: 64 lower-case hex characters."""
    return hashlib.sha256(data).hexdigest()


def is_digest(text: str) -> bool:
    """Whether `text` has the form of a content address."""
    return _DIGEST.fullmatch(text) is not None


def require(text: str) -> str:
    """Return `text` if it has the form of a content address, else raise ProtocolError."""
    if not is_digest(text):
        raise ProtocolError(
            f"not a digest: {text[:80]!r}", hint="a digest is 64 lower-case hex characters"
        )
    return text


def check(data: bytes, expected: str) -> None:
    """Raise Corrupt unless `expected` is the content address of `data`."""
    actual = digest(data)
    if actual != expected:
        raise Corrupt(f"blob {expected[:16]}…: its {len(data)} bytes have digest {actual[:16]}…")
