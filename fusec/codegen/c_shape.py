"""What a C vector prelude is made for: the number of lanes, the ISA level, the C types.

`Shape` answers the questions the function tables ask (is this scalar, which register holds a
vector of that type, is there an FMA); `DTYPES` maps the short type names to C. The C is plain
GNU C: vector extensions, no headers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fusec.errors import CodegenError

ISAS: Final = ("x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64")

# Short name -> (C scalar type, bytes). The names end vector types and functions: vf32, add_f32.
DTYPES: Final[dict[str, tuple[str, int]]] = {
    "f64": ("double", 8),
    "f32": ("float", 4),
    "i64": ("long", 8),
    "i32": ("int", 4),
    "i16": ("short", 2),
    "i8": ("signed char", 1),
    "u64": ("unsigned long", 8),
    "u32": ("unsigned int", 4),
    "u16": ("unsigned short", 2),
    "u8": ("unsigned char", 1),
}
FLOATS: Final = ("f64", "f32")
INTS: Final = tuple(name for name in DTYPES if name not in FLOATS)
_REGISTER_BYTES: Final = {"x86-64-v2": 16, "x86-64-v3": 32, "x86-64-v4": 64, "aarch64": 16}


def ctype(dtype: str) -> str:
    """The C scalar type of a short name."""
    return DTYPES[dtype][0]


def size(dtype: str) -> int:
    """Bytes of one element."""
    return DTYPES[dtype][1]


def bits_of(dtype: str) -> str:
    """The signed integer type as wide as ``dtype``: the type of its native comparison mask."""
    return f"i{8 * size(dtype)}"


def unsigned_of(dtype: str) -> str:
    """The unsigned integer type as wide as ``dtype``."""
    return f"u{8 * size(dtype)}"


@dataclass(frozen=True)
class Shape:
    """The lanes of every vector (a power of two; 1 = plain scalars) and the ISA level.

    Raises CodegenError for an unknown ISA level or a lane count that is no power of two up to 64.
    """

    lanes: int
    isa: str

    def __post_init__(self) -> None:
        if self.isa not in ISAS:
            raise CodegenError(f"unknown ISA level {self.isa!r}", hint=f"one of {', '.join(ISAS)}")
        if not 1 <= self.lanes <= 64 or self.lanes & (self.lanes - 1):
            raise CodegenError(f"{self.lanes} lanes", hint="a power of two from 1 to 64")

    @property
    def scalar(self) -> bool:
        return self.lanes == 1

    @property
    def x86(self) -> bool:
        return self.isa.startswith("x86-64")

    @property
    def avx512(self) -> bool:
        return self.isa == "x86-64-v4"

    @property
    def avx2(self) -> bool:
        return self.isa in ("x86-64-v3", "x86-64-v4")

    @property
    def has_fma(self) -> bool:
        return self.isa != "x86-64-v2"

    @property
    def register_bytes(self) -> int:
        return _REGISTER_BYTES[self.isa]

    @property
    def wide_lanes(self) -> int:
        """How many 64-bit lanes one register holds, at most ``lanes``: the lanes of the pieces in
        which rare float functions are computed in double precision."""
        return min(self.lanes, self.register_bytes // 8)

    def bytes(self, dtype: str) -> int:
        """Bytes of a vector of ``dtype``."""
        return self.lanes * size(dtype)

    def fits(self, *dtypes: str) -> bool:
        """True when a vector of each type fills part or all of one register, and is a vector."""
        return not self.scalar and all(4 <= self.bytes(d) <= self.register_bytes for d in dtypes)

    def reg(self, dtype: str) -> str:
        """The operand modifier naming the register of a ``dtype`` vector in inline assembly."""
        return {64: "g", 32: "t"}.get(self.bytes(dtype), "x")

    def each(self, expression: Callable[[int], str]) -> str:
        """A comma separated list with one item a lane."""
        return ", ".join(expression(lane) for lane in range(self.lanes))


def typedefs(shape: Shape, prefix: str = "") -> str:
    """The vector types: v<dtype>, and w<dtype> for memory at any address; vmask."""
    lines = []
    for dtype, (scalar, width) in DTYPES.items():
        value, memory = f"{scalar} {prefix}v{dtype}", f"{scalar} {prefix}w{dtype}"
        if shape.scalar:
            lines.append(f"typedef {value};")
            lines.append(f"typedef {memory} __attribute__((may_alias, aligned(1)));")
        else:
            total = f"vector_size({width * shape.lanes})"
            lines.append(f"typedef {value} __attribute__(({total}));")
            lines.append(f"typedef {memory} __attribute__(({total}, may_alias, aligned(1)));")
    lines.append(f"typedef {prefix}vi32 {prefix}vmask;")
    return "\n".join(lines) + "\n"


def function(returns: str, name: str, params: str, body: str) -> str:
    """One always-inlined C function."""
    return f"FN {returns} {name}({params}) {{ {body} }}\n"
