"""Type promotion as eager does it (torch.result_type), on short dtype names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fusec.ir.dtypes import DTYPES

_RANKS: Final = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}
_FLOATS: Final = {"f8e5m2": 0, "f8e4m3fn": 0, "f16": 1, "bf16": 1, "f32": 2, "f64": 3}
_COMPLEX: Final = {"c32": 0, "c64": 1, "c128": 2}
_DEFAULT: Final = {bool: "bool", int: "i64", float: "f32", complex: "c64"}


def _pair(a: str, b: str) -> str:
    """The promotion of two dtypes of equal priority."""
    if a == b:
        return a
    kind_a, kind_b = DTYPES[a].kind, DTYPES[b].kind
    if _RANKS[kind_a] != _RANKS[kind_b]:
        high, low = (a, b) if _RANKS[kind_a] > _RANKS[kind_b] else (b, a)
        if high == "c64" and low == "f64":
            return "c128"
        return high
    if kind_a == "float":
        if _FLOATS[a] == _FLOATS[b]:
            return "f32"  # f16 with bf16, and the float8 pair
        return a if _FLOATS[a] > _FLOATS[b] else b
    if kind_a == "complex":
        return a if _COMPLEX[a] > _COMPLEX[b] else b
    return _integers(a, b)


def _integers(a: str, b: str) -> str:
    first, second = DTYPES[a], DTYPES[b]
    if first.kind == second.kind:
        return a if first.size >= second.size else b
    signed, unsigned = (first, second) if first.kind == "int" else (second, first)
    if signed.size > unsigned.size:
        return signed.name
    return {1: "i16", 2: "i32", 4: "i64", 8: "f32"}[unsigned.size]


def promote(
    tensors: Iterable[tuple[str, int]], numbers: Iterable[bool | int | float | complex] = ()
) -> str:
    """The result type of tensors given as (dtype, rank) and of Python numbers.

    Tensors with dimensions come before 0-d tensors, and those before numbers: a lower class counts
    only when its kind (bool, integer, float, complex) is above that of the class before it.
    """
    dims: str | None = None
    zero: str | None = None
    for name, rank in tensors:
        if rank:
            dims = name if dims is None else _pair(dims, name)
        else:
            zero = name if zero is None else _pair(zero, name)
    number: str | None = None
    for value in numbers:
        name = _DEFAULT[type(value)]
        number = name if number is None else _pair(number, name)
    result = dims
    for lower in (zero, number):
        if lower is None:
            continue
        if result is None:
            result = lower
        elif _RANKS[DTYPES[lower].kind] > _RANKS[DTYPES[result].kind]:
            if lower in ("c64",) and result == "f64":
                result = "c128"
            elif lower is number and lower == "c64" and result in ("f16", "bf16"):
                result = "c64"
            else:
                result = lower
    if result is None:
        raise ValueError("nothing to promote")
    return result
