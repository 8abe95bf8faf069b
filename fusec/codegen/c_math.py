"""The elementary functions: assembled from C text in which polynomials stand as ``POLY(x, NAME)``.

The text is written once for vectors and scalars: it uses only + - * /, comparisons (giving native
masks), pick_*, asi_*/asf_* (bits as integers and back) and the functions of the other tables.
`c_math_f32` and `c_math_f64` hold the text and the coefficients; this module expands it and adds
what depends on the shape: powers of two, libm called lane by lane, and float functions computed in
double precision piece by piece.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from fusec.codegen import c_arith, c_convert, c_math_f32, c_math_f64, c_memory, c_reduce
from fusec.codegen.c_shape import DTYPES, Shape, bits_of, ctype, function, unsigned_of

_POLY: Final = re.compile(r"POLY\((\w+), (\w+)\)")
_HEAD: Final = re.compile(r"^FN \w+ (\w+)\(", re.MULTILINE)
_NAME: Final = re.compile(r"\b[A-Za-z_]\w*")

# libm symbols called lane by lane: arguments by name.
_LIBM: Final[dict[str, int]] = {
    **dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh"), 1),
    **dict.fromkeys(("asinh", "acosh", "atanh", "erf", "erfc", "lgamma"), 1),
    **dict.fromkeys(("atan2", "pow", "fmod"), 2),
}
# Functions that are libm's.
_BY_LIBM: Final = frozenset(
    f"{name}_f64"
    for name in (
        *("tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "asinh", "acosh", "atanh"),
        *("erfc", "lgamma", "pow"),
    )
) | {"lgamma_f32"}
# float functions computed in double: name -> (arguments, the double core).
_WIDE: Final[dict[str, tuple[int, str]]] = {
    "pow_f32": (2, "pow_core"),
    "tan_f32": (1, "tan_core"),
    "erfc_f32": (1, "erfc_core"),
    "asinh_f32": (1, "asinh_core"),
    "acosh_f32": (1, "acosh_core"),
    "atanh_f32": (1, "atanh_core"),
}


def functions(shape: Shape) -> dict[str, str]:
    """Name -> C source of every elementary function."""
    found = _double(shape)
    found |= _parse(c_math_f32.SOURCE, c_math_f32.COEFFICIENTS)
    found["ldexp_f32"] = _ldexp(shape, "f32")
    found |= _parse(c_math_f32.REDUCTIONS["f32_fma" if shape.has_fma else "f32_short"], {})
    found |= _wide(shape)
    return found


def _double(shape: Shape) -> dict[str, str]:
    found = _parse(c_math_f64.SOURCE, c_math_f64.COEFFICIENTS)
    found["ldexp_f64"] = _ldexp(shape, "f64")
    found |= _parse(c_math_f64.REDUCTIONS["f64_fma" if shape.has_fma else "f64_short"], {})
    for name, arguments in _LIBM.items():
        for dtype in ("f32", "f64"):
            found[f"lib_{name}_{dtype}"] = _libm(shape, name, dtype, arguments)
            if f"{name}_{dtype}" in _BY_LIBM:
                letters = "ab"[:arguments]
                params = ", ".join(f"v{dtype} {letter}" for letter in letters)
                body = f"return lib_{name}_{dtype}({', '.join(letters)});"
                found[f"{name}_{dtype}"] = function(f"v{dtype}", f"{name}_{dtype}", params, body)
    return found


def _parse(source: str, coefficients: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Split C text into its functions and write the polynomials out."""
    starts = [match.start() for match in _HEAD.finditer(source)]
    found: dict[str, str] = {}
    for start, end in zip(starts, [*starts[1:], len(source)]):
        text = _POLY.sub(lambda match: _horner(match, coefficients), source[start:end])
        head = _HEAD.match(text)
        assert head is not None
        found[head.group(1)] = text.strip() + "\n"
    return found


def _horner(match: re.Match[str], coefficients: Mapping[str, Sequence[str]]) -> str:
    variable, name = match.groups()
    dtype = name.rsplit("_", 1)[1].lower()
    suffix = "f" if dtype == "f32" else ""
    values = [f"splat_{dtype}({value}{suffix})" for value in coefficients[name]]
    text = values[-1]
    for value in reversed(values[:-1]):
        text = f"madd_{dtype}({text}, {variable}, {value})"
    return text


def _ldexp(shape: Shape, dtype: str) -> str:
    """``a`` times two to the integral ``n``, rounded once: gradual underflow, overflow to infinity.

    Without a scaling instruction the power is split in halves, each built in the exponent field:
    adding the magic number leaves the biased exponent in the low bits of the mantissa.
    """
    vector = f"v{dtype}"
    letter = "s" if dtype == "f32" else "d"
    total = shape.bytes(dtype)
    if shape.avx512 and not shape.scalar and total in (16, 32, 64):
        if total == 64:
            body = f"return __builtin_ia32_scalefp{letter}512_mask(a, n, a, -1, 4);"
        else:
            body = f"return __builtin_ia32_scalefp{letter}{8 * total}_mask(a, n, a, -1);"
    else:
        magic, shift, half = (
            ("12583039.0f", 23, "0.5f") if dtype == "f32" else ("0x1.80000000003ffp52", 52, "0.5")
        )
        ints, unsigned = f"v{bits_of(dtype)}", f"v{unsigned_of(dtype)}"
        body = (
            f"{vector} t = madd_{dtype}(n, splat_{dtype}({half}), splat_{dtype}({magic})); "
            f"{vector} u = (n - (t - {magic})) + {magic}; "
            f"return a * asf_{dtype}(({ints})(({unsigned})asi_{dtype}(t) << {shift})) "
            f"* asf_{dtype}(({ints})(({unsigned})asi_{dtype}(u) << {shift}));"
        )
    return function(vector, f"ldexp_{dtype}", f"{vector} a, {vector} n", body)


def _libm(shape: Shape, name: str, dtype: str, arguments: int) -> str:
    suffix = "f" if dtype == "f32" else ""
    letters = "ab"[:arguments]
    full = f"lib_{name}_{dtype}"
    params = ", ".join(f"v{dtype} {letter}" for letter in letters)
    call = f"__builtin_{name}{suffix}"
    if shape.scalar:
        return function(f"v{dtype}", full, params, f"return {call}({', '.join(letters)});")
    scalar, n = ctype(dtype), shape.lanes
    copies = " ".join(
        f"{scalar} {letter}s[{n}]; *(w{dtype} *){letter}s = {letter};" for letter in letters
    )
    operands = ", ".join(f"{letter}s[i]" for letter in letters)
    return (
        f"static __attribute__((noinline)) v{dtype} {full}({params}) {{ {copies} "
        f'_Pragma("GCC unroll 1") for (long i = 0; i < {n}; i++) as[i] = {call}({operands}); '
        f"return *(w{dtype} *)as; }}\n"
    )


def _wide(shape: Shape) -> dict[str, str]:
    """The float functions computed in double, in pieces that fill one register each."""
    found: dict[str, str] = {}
    whole = shape.lanes == shape.wide_lanes
    prefix = "" if whole else "h_"
    if not whole:
        found |= _piece_functions(Shape(shape.wide_lanes, shape.isa))
    for name, (arguments, core) in _WIDE.items():
        letters = "ab"[:arguments]
        params = ", ".join(f"vf32 {letter}" for letter in letters)
        if whole:
            wide = ", ".join(f"cvt_f32_f64({letter})" for letter in letters)
            body = f"return cvt_f64_f32({core}({wide}));"
        else:
            body = _pieces(shape, letters, f"{prefix}{core}")
        found[name] = function("vf32", name, params, body)
    return found


def _pieces(shape: Shape, letters: str, core: str) -> str:
    """Cut the arguments into register-sized pieces, call the core on each, put them together."""
    step = shape.wide_lanes
    names: list[str] = []
    lines: list[str] = []
    for start in range(0, shape.lanes, step):
        index = ", ".join(str(lane) for lane in range(start, start + step))
        parts = ", ".join(
            f"h_cvt_f32_f64(__builtin_shufflevector({letter}, {letter}, {index}))"
            for letter in letters
        )
        lines.append(f"h_vf32 r{start} = h_cvt_f64_f32({core}({parts}));")
        names.append(f"r{start}")
    width = step
    while len(names) > 1:
        width *= 2
        index = ", ".join(str(lane) for lane in range(width))
        joined: list[str] = []
        for left, right in zip(names[::2], names[1::2]):
            name = f"{left}_{width}"
            lines.append(
                f"float __attribute__((vector_size({4 * width}))) {name} = "
                f"__builtin_shufflevector({left}, {right}, {index});"
            )
            joined.append(name)
        names = joined
    return " ".join(lines) + f" return {names[0]};"


def _piece_functions(piece: Shape) -> dict[str, str]:
    """The functions the double cores use, for the piece's lanes; they and their types are h_*."""
    sources: dict[str, str] = {}
    for part in (c_memory.functions, c_convert.functions, c_arith.functions, c_reduce.functions):
        sources |= part(piece)
    sources |= _double(piece)
    names = set(sources) | {f"{kind}{dtype}" for kind in "vw" for dtype in DTYPES} | {"vmask"}

    def rename(text: str) -> str:
        return _NAME.sub(lambda m: f"h_{m.group()}" if m.group() in names else m.group(), text)

    return {f"h_{name}": rename(source) for name, source in sources.items()}
