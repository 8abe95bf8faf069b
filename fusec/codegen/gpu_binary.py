"""A GPU kernel compiled: the device's image and all that launching it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgpack

from fusec.errors import WireError
from fusec.ir.expr import Expr
from fusec.ir.wire import expr_from_wire, expr_to_wire

MAX_BINARY_BYTES: Final = 64 << 20
_VERSION: Final = 1
MAX_ARGUMENTS: Final = 4096
SIZE_TYPES: Final = ("i32", "i64")
_FIELDS: Final = (
    "v", "name", "image", "threads", "shared", "scratch", "registers", "spills", "cooperative"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GpuBinary:
    """image: a cubin or hsaco, holding the function ``name``; grid: as in `Variant`; threads of a
    program; shared: bytes of dynamic shared memory; scratch: how many null pointers follow the
    arguments; sizes: the type of each size argument, i32 or i64; registers a thread, spills: bytes
    of local memory a thread (-1 where the format does not tell); cooperative: all programs must be
    resident together."""

    name: str
    image: bytes
    grid: tuple[Expr, ...]
    threads: int
    shared: int
    scratch: int
    sizes: tuple[str, ...] = ()
    registers: int = -1
    spills: int = -1
    cooperative: bool = False

    def to_bytes(self) -> bytes:
        body = {
            "v": _VERSION,
            "grid": [expr_to_wire(e) for e in self.grid],
            "sizes": list(self.sizes),
            **{name: getattr(self, name) for name in _FIELDS[1:]},
        }
        return bytes(msgpack.packb(body, use_bin_type=True))

    @classmethod
    def from_bytes(cls, data: bytes) -> GpuBinary:
        """Raises WireError for anything that `to_bytes` does not write."""
        if len(data) > MAX_BINARY_BYTES:
            raise WireError(f"a GPU kernel of {len(data)} bytes is over {MAX_BINARY_BYTES}")
        try:
            body = msgpack.unpackb(data, raw=False)
            if set(body) != {*_FIELDS, "grid", "sizes"} or body["v"] != _VERSION:
                raise WireError("a compiled GPU kernel of another version of fusec")
            grid = tuple(expr_from_wire(e) for e in body["grid"])
            sizes = tuple(SIZE_TYPES[SIZE_TYPES.index(t)] for t in body["sizes"])
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise WireError(f"a compiled GPU kernel does not decode: {error}") from error
        kinds = {"name": str, "image": bytes, "cooperative": bool}
        fields = {name: body[name] for name in _FIELDS[1:]}
        if len(sizes) > MAX_ARGUMENTS:
            raise WireError(f"a compiled GPU kernel of {len(sizes)} sizes")
        if not 0 < len(grid) <= 3 or any(
            type(value) is not kinds.get(name, int) for name, value in fields.items()
        ):
            raise WireError("a compiled GPU kernel is malformed")
        if not (0 < fields["threads"] <= 1024 and 0 <= fields["shared"] <= 1 << 20):
            raise WireError("a compiled GPU kernel asks for too many threads or too much memory")
        if not 0 <= fields["scratch"] <= 4:
            raise WireError("a compiled GPU kernel asks for too many scratch pointers")
        return cls(grid=grid, sizes=sizes, **fields)
