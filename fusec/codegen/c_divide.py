"""C functions for integer division and for float and integer remainders.

divt_ truncates, divf_ floors, fmod_ has the dividend's sign, rem_ the divisor's (Python's).
No integer division traps: a zero divisor gives an unspecified value, the lowest number divided by
-1 wraps.
"""

from __future__ import annotations

from fusec.codegen.c_arith import binary
from fusec.codegen.c_shape import FLOATS, INTS, Shape, ctype, size, unsigned_of


def functions(shape: Shape) -> dict[str, str]:
    """Name -> C source of every division and remainder."""
    found: dict[str, str] = {}
    for dtype in INTS:
        _quotient(found, shape, dtype)
        rest = f"sub_{dtype}(a, mul_{dtype}(divt_{dtype}(a, b), b))"
        binary(found, dtype, "fmod", f"return {rest};")
        if dtype[0] == "u":
            binary(found, dtype, "divf", f"return divt_{dtype}(a, b);")
            binary(found, dtype, "rem", f"return fmod_{dtype}(a, b);")
            continue
        vector = f"v{dtype}"
        off = f"(({vector})(r != 0) & ({vector})((r ^ b) < 0))"
        one = f"q - {off}" if shape.scalar else f"q + {off}"
        binary(
            found,
            dtype,
            "divf",
            f"{vector} q = divt_{dtype}(a, b), r = sub_{dtype}(a, mul_{dtype}(q, b)); "
            f"return ({vector})({one});",
        )
        binary(
            found,
            dtype,
            "rem",
            f"{vector} r = fmod_{dtype}(a, b); return pick_{dtype}({off}, ({vector})(r + b), r);",
        )
    for dtype in FLOATS:
        _float_remainder(found, shape, dtype)
    return found


def _quotient(found: dict[str, str], shape: Shape, dtype: str) -> None:
    scalar, vector = ctype(dtype), f"v{dtype}"
    negate = f"y == ({scalar})-1 ? ({scalar})(0 - ({ctype(unsigned_of(dtype))})x) : "
    one = f"y == 0 ? 0 : {negate if dtype[0] == 'i' else ''}({scalar})(x / y)"
    if shape.scalar:
        binary(found, dtype, "divt", f"{scalar} x = a, y = b; return {one};")
        return
    # A correctly rounded quotient of two integers that the float type holds exactly truncates to
    # the exact quotient.
    if size(dtype) < 4:
        through = "f32"
    elif size(dtype) == 4 and shape.lanes == shape.wide_lanes:
        through = "f64"
    else:
        n = shape.lanes
        found[f"divt_{dtype}"] = (
            f"static __attribute__((noinline)) {vector} divt_{dtype}({vector} a, {vector} b) {{ "
            f"{scalar} p[{n}], q[{n}]; *(w{dtype} *)p = a; *(w{dtype} *)q = b; "
            f'_Pragma("GCC unroll 1") for (long i = 0; i < {n}; i++) '
            f"{{ {scalar} x = p[i], y = q[i]; p[i] = {one}; }} return *(w{dtype} *)p; }}\n"
        )
        return
    quotient = f"cvt_{dtype}_{through}(a) / cvt_{dtype}_{through}(b)"
    binary(found, dtype, "divt", f"return cvt_{through}_{dtype}({quotient});")


def _float_remainder(found: dict[str, str], shape: Shape, dtype: str) -> None:
    vector, suffix = f"v{dtype}", "f" if dtype == "f32" else ""
    infinity = f"__builtin_inf{suffix}()"
    if shape.has_fma and not shape.scalar:
        # While the quotient is well inside the mantissa, its truncation is at most one off and the
        # fused a - q·b is exact; one correction gives the remainder. Anything else asks libm.
        limit = "0x1p22f" if dtype == "f32" else "0x1p51"
        binary(
            found,
            dtype,
            "fmod",
            f"{vector} x = abs_{dtype}(a), y = abs_{dtype}(b), d = x / y; "
            f"{vector} r = fma_{dtype}(-trunc_{dtype}(d), y, x); "
            f"r = pick_{dtype}(r < 0, r + y, r); r = pick_{dtype}(r >= y, r - y, r); "
            f"r = copysign_{dtype}(r, a); "
            f"v{'i32' if dtype == 'f32' else 'i64'} far = ~((d < {limit}) & (y < {infinity})); "
            f"if (any_{dtype}(far)) r = pick_{dtype}(far, lib_fmod_{dtype}(a, b), r); return r;",
        )
    else:
        binary(found, dtype, "fmod", f"return lib_fmod_{dtype}(a, b);")
    off = "((r != 0) & ((b < 0) ^ (r < 0)))"
    binary(
        found,
        dtype,
        "rem",
        f"{vector} r = fmod_{dtype}(a, b); return pick_{dtype}({off}, r + b, r);",
    )
    binary(found, dtype, "divt", f"return trunc_{dtype}(a / b);")
    # Python's float floor division: from the exact remainder, so that it agrees with rem.
    zero, one = f"splat_{dtype}(0)", f"splat_{dtype}(1)"
    half = f"0.5{suffix}"
    binary(
        found,
        dtype,
        "divf",
        f"{vector} r = fmod_{dtype}(a, b), q = (a - r) / b; "
        f"q = pick_{dtype}({off}, q - 1, q); {vector} f = floor_{dtype}(q); "
        f"f = f + pick_{dtype}(q - f > {half}, {one}, {zero}); "
        f"f = pick_{dtype}(q == 0, copysign_{dtype}({zero}, a / b), f); "
        f"return pick_{dtype}(b == 0, a / b, f);",
    )
