"""A kernel's source and its identity."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

import msgpack

from fusec.errors import WireError

MAX_SOURCE: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class KernelSource:
    """``name`` is the exported function, ``source`` its program text, ``isa`` what it is for."""

    name: str
    source: str
    isa: str

    @property
    def digest(self) -> str:
        """64 hex characters: the identity of the kernel, whichever graph asked for it."""
        return hashlib.sha256(f"{self.isa}\0{self.source}".encode()).hexdigest()

    def to_bytes(self) -> bytes:
        return bytes(msgpack.packb([self.name, self.source, self.isa], use_bin_type=True))

    @classmethod
    def from_bytes(cls, data: bytes) -> KernelSource:
        """Raises WireError for anything that `to_bytes` does not write."""
        if len(data) > MAX_SOURCE:
            raise WireError(f"a kernel source of {len(data)} bytes is over {MAX_SOURCE}")
        try:
            body = msgpack.unpackb(data, raw=False)
        except (ValueError, msgpack.UnpackException) as error:
            raise WireError(f"a kernel source does not decode: {error}") from error
        if not isinstance(body, list) or [type(x) for x in body] != [str, str, str]:
            raise WireError("a kernel source is malformed")
        return cls(*body)
