"""The header-free C vector library under the generated CPU kernels, cut to what a kernel needs.

`prelude` returns C text: the vector types for one lane count and ISA level, then the functions
named and everything they call, each `static inline` and always inlined. The functions are data:
`registry` maps every name to its C source; what a function calls is read off its source.

The sources need gcc's vector extensions and no headers. Scalar libm symbols that some functions
call (`externs`) are resolved from the process that loads the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from fusec.codegen import (
    c_arith,
    c_convert,
    c_divide,
    c_math,
    c_memory,
    c_random,
    c_reduce,
)
from fusec.codegen.c_shape import Shape, typedefs
from fusec.errors import CodegenError

_HEAD: Final = "#define FN static inline __attribute__((always_inline))\n"
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_LIBM: Final = re.compile(
    r"__builtin_((?:sin|cos|tan|asin|acos|atan|atan2|sinh|cosh|asinh|acosh|atanh|exp|exp2|expm1|"
    r"log|log2|log10|log1p|pow|erf|erfc|lgamma|tgamma|fmod|hypot)f?)\("
)
_PARTS: Final[tuple[Callable[[Shape], dict[str, str]], ...]] = (
    c_memory.functions,
    c_convert.functions,
    c_arith.functions,
    c_divide.functions,
    c_reduce.functions,
    c_math.functions,
    c_random.functions,
)


def prelude(lanes: int, isa: str, needed: Collection[str]) -> str:
    """C source with the types for ``lanes`` lanes on ``isa`` and the functions ``needed``.

    lanes: a power of two; 1 makes every vector type its plain scalar type.
    needed: function names such as ``ld_f32`` and ``exp_f32``; their order does not matter.
    Raises CodegenError for an unknown function, ISA level or a wrong lane count.
    """
    shape = Shape(lanes, isa)
    sources = registry(shape)
    names = closure(shape, needed)
    types = typedefs(shape)
    if any(name.startswith("h_") for name in names):
        types += typedefs(Shape(shape.wide_lanes, isa), "h_")
    return _HEAD + types + "".join(sources[name] for name in names)


def externs(lanes: int, isa: str, needed: Collection[str]) -> frozenset[str]:
    """The libm symbols that the functions ``needed`` leave for the loading process to resolve."""
    shape = Shape(lanes, isa)
    sources = registry(shape)
    return frozenset(
        symbol for name in closure(shape, needed) for symbol in _LIBM.findall(sources[name])
    )


@lru_cache(maxsize=32)
def registry(shape: Shape) -> Mapping[str, str]:
    """Every function for ``shape``: name -> C source."""
    found: dict[str, str] = {}
    for part in _PARTS:
        for name, source in part(shape).items():
            if name in found:
                raise CodegenError(f"the C function {name} is defined twice")
            found[name] = source
    return MappingProxyType(found)


@lru_cache(maxsize=32)
def dependencies(shape: Shape) -> Mapping[str, tuple[str, ...]]:
    """Name -> the functions it calls, in the order of their first use."""
    sources = registry(shape)
    return MappingProxyType(
        {
            name: tuple(
                dict.fromkeys(w for w in _WORD.findall(source) if w in sources and w != name)
            )
            for name, source in sources.items()
        }
    )


def closure(shape: Shape, needed: Iterable[str]) -> list[str]:
    """``needed`` and all they call, callees first. Raises CodegenError for an unknown name."""
    depends = dependencies(shape)
    done: dict[str, None] = {}

    def visit(name: str) -> None:
        if name in done:
            return
        if name not in depends:
            raise CodegenError(
                f"the C vector library has no function {name!r}",
                where=f"{shape.lanes} lanes on {shape.isa}",
            )
        for callee in depends[name]:
            visit(callee)
        done[name] = None

    for name in sorted(needed):
        visit(name)
    return list(done)
