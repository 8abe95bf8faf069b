"""Element types by short name: the compiler's only notion of dtype (no torch objects)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class DType:
    """An element type. ``compute`` is the type arithmetic on it is done in."""

    name: str
    size: int  # bytes
    kind: str  # "float" | "int" | "uint" | "bool" | "complex"
    compute: str

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")


_ALL: Final = (
    DType("f64", 8, "float", "f64"),
    DType("f32", 4, "float", "f32"),
    DType("f16", 2, "float", "f32"),
    DType("bf16", 2, "float", "f32"),
    DType("f8e4m3fn", 1, "float", "f32"),
    DType("f8e5m2", 1, "float", "f32"),
    DType("i64", 8, "int", "i64"),
    DType("i32", 4, "int", "i32"),
    DType("i16", 2, "int", "i16"),
    DType("i8", 1, "int", "i8"),
    DType("u64", 8, "uint", "u64"),
    DType("u32", 4, "uint", "u32"),
    DType("u16", 2, "uint", "u16"),
    DType("u8", 1, "uint", "u8"),
    DType("bool", 1, "bool", "bool"),
    DType("c32", 4, "complex", "c64"),
    DType("c64", 8, "complex", "c64"),
    DType("c128", 16, "complex", "c128"),
)

DTYPES: Final[dict[str, DType]] = {d.name: d for d in _ALL}


def dtype(name: str) -> DType:
    """The element type of that short name. Raises KeyError for an unknown one."""
    return DTYPES[name]
