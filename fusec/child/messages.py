"""Plain values over a pipe: each a message of msgpack behind its length in four bytes."""

from __future__ import annotations

import os
from typing import Final

import msgpack

MAX_MESSAGE: Final = 256 << 20
LENGTH_BYTES: Final = 4
READ_BYTES: Final = 1 << 20


def packed(value: object) -> bytes:
    """A message."""
    body: bytes = msgpack.packb(value, use_bin_type=True)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def read(pipe: int, count: int) -> bytes | None:
    """Exactly ``count`` bytes; None at the end of the input."""
    data = bytearray()
    while len(data) < count:
        part = os.read(pipe, min(READ_BYTES, count - len(data)))
        if not part:
            return None
        data += part
    return bytes(data)


def write(pipe: int, data: bytes) -> None:
    """All of ``data``."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(pipe, rest) :]
