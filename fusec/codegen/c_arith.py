"""C functions for arithmetic, comparison, selection, bits and rounding on vectors.

Two kinds of mask: ``vmask`` (32-bit lanes, what the comparisons lt_* … return and sel_* takes) and
the *native* mask of a type, which the operators ``a < b`` give and the internal pick_* takes; for
32-bit types they are the same. Scalars use int 0/-1 for vmask and any non-zero int natively.
Integers wrap: their arithmetic is done unsigned.
"""

from __future__ import annotations

from fusec.codegen.c_shape import (
    DTYPES,
    FLOATS,
    INTS,
    Shape,
    bits_of,
    ctype,
    function,
    size,
    unsigned_of,
)

_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


def functions(shape: Shape) -> dict[str, str]:
    """Name -> C source of every arithmetic function."""
    found: dict[str, str] = {}
    for dtype in DTYPES:
        _comparisons(found, shape, dtype)
    for dtype in INTS:
        _integers(found, shape, dtype)
    for dtype in FLOATS:
        _floats(found, shape, dtype)
        _rounding(found, shape, dtype)
    _masks(found, shape)
    return found


def binary(found: dict[str, str], dtype: str, op: str, body: str) -> None:
    """Add ``op``_``dtype``(a, b)."""
    kind = "vmask" if dtype == "mask" else f"v{dtype}"
    name = f"{op}_{dtype}"
    found[name] = function(kind, name, f"{kind} a, {kind} b", body)


def unary(
    found: dict[str, str], dtype: str, op: str, body: str, returns: str | None = None
) -> None:
    """Add ``op``_``dtype``(a)."""
    kind = "vmask" if dtype == "mask" else f"v{dtype}"
    name = f"{op}_{dtype}"
    found[name] = function(returns or kind, name, f"{kind} a", body)


def to_vmask(shape: Shape, dtype: str, native: str) -> str:
    """The vmask of a native mask expression of ``dtype``."""
    if shape.scalar:
        return f"-({native})"
    bits = bits_of(dtype)
    return f"({native})" if bits == "i32" else f"cvt_{bits}_i32((v{bits})({native}))"


def _comparisons(found: dict[str, str], shape: Shape, dtype: str) -> None:
    vector = f"v{dtype}"
    bits = bits_of(dtype)
    for op, symbol in _COMPARE.items():
        name = f"{op}_{dtype}"
        mask = to_vmask(shape, dtype, f"a {symbol} b")
        found[name] = function("vmask", name, f"{vector} a, {vector} b", f"return {mask};")
    native = f"v{bits}"
    if shape.scalar:
        pick = "return m ? a : b;"
        select = "return m ? a : b;"
    else:
        # With AVX-512 the comparison leads gcc to one blend by mask register instead of two
        # bitwise operations; the mask that comes from a comparison is then used as it is.
        mask = "n" if shape.avx512 else "m"
        again = f"{native} n = m != 0; " if shape.avx512 else ""
        pick = f"{again}return ({vector})((({native})a & {mask}) | (({native})b & ~{mask}));"
        wide = "m" if bits == "i32" else f"cvt_i32_{bits}(m)"
        select = f"return pick_{dtype}({wide}, a, b);"
    found[f"pick_{dtype}"] = function(
        vector, f"pick_{dtype}", f"{native} m, {vector} a, {vector} b", pick
    )
    found[f"sel_{dtype}"] = function(
        vector, f"sel_{dtype}", f"vmask m, {vector} a, {vector} b", select
    )


def _masks(found: dict[str, str], shape: Shape) -> None:
    for op, expression in {
        "and": "a & b",
        "or": "a | b",
        "xor": "a ^ b",
        "eq": "~(a ^ b)",
        "ne": "a ^ b",
        "lt": "~a & b",
        "le": "~a | b",
        "gt": "a & ~b",
        "ge": "a | ~b",
    }.items():
        binary(found, "mask", op, f"return {expression};")
    unary(found, "mask", "not", "return ~a;")
    found["sel_mask"] = function(
        "vmask", "sel_mask", "vmask m, vmask a, vmask b", "return (m & a) | (~m & b);"
    )


def _integers(found: dict[str, str], shape: Shape, dtype: str) -> None:
    vector, bits = f"v{dtype}", 8 * size(dtype)
    unsigned = f"v{unsigned_of(dtype)}"
    # A scalar narrower than int is promoted to int: `unsigned int` there keeps a product from
    # overflowing it.
    work = "unsigned int" if shape.scalar and bits < 32 else unsigned
    for op, symbol in {"add": "+", "sub": "-", "mul": "*"}.items():
        binary(found, dtype, op, f"return ({vector})(({work})a {symbol} ({work})b);")
    for op, symbol in {"and": "&", "or": "|", "xor": "^"}.items():
        binary(found, dtype, op, f"return ({vector})(a {symbol} b);")
    unary(found, dtype, "not", f"return ({vector})~a;")
    unary(found, dtype, "neg", f"return ({vector})(-({work})a);")
    for op, symbol in {"min": "<", "max": ">"}.items():
        if shape.scalar:
            binary(found, dtype, op, f"return a {symbol} b ? a : b;")
        else:
            binary(found, dtype, op, f"return pick_{dtype}(a {symbol} b, a, b);")
    if dtype[0] == "u":
        unary(found, dtype, "abs", "return a;")
        sign = f"return cvt_mask_{dtype}({to_vmask(shape, dtype, 'a != 0')});"
    else:
        unary(
            found,
            dtype,
            "abs",
            f"v{dtype} s = a >> {bits - 1}; return ({vector})((({work})(a ^ s)) - ({work})s);",
        )
        if shape.scalar:
            sign = "return (a > 0) - (a < 0);"
        else:
            sign = f"return ({vector})((a < 0) - (a > 0));"
    unary(found, dtype, "sign", sign)
    # Out of range: a left shift gives 0, a right shift what shifting by all bits but one gives.
    zero = f"({vector})(({work})a << ((unsigned)b & {bits - 1}))"
    last = f"a >> {bits - 1}" if dtype[0] == "i" else f"splat_{dtype}(0)"
    if shape.scalar:
        inside = f"({unsigned})b < {bits}"
        binary(found, dtype, "shl", f"return {inside} ? {zero} : 0;")
        binary(found, dtype, "shr", f"return {inside} ? ({vector})(a >> b) : ({vector})({last});")
    else:
        inside = f"({unsigned})b < {bits}"
        low = f"(b & {bits - 1})"
        shifted = f"({vector})(({unsigned})a << ({unsigned}){low})"
        binary(found, dtype, "shl", f"return pick_{dtype}({inside}, {shifted}, splat_{dtype}(0));")
        binary(found, dtype, "shr", f"return pick_{dtype}({inside}, a >> {low}, {last});")


def _floats(found: dict[str, str], shape: Shape, dtype: str) -> None:
    vector, scalar, ints = f"v{dtype}", ctype(dtype), f"v{bits_of(dtype)}"
    suffix = "f" if dtype == "f32" else ""
    for op, symbol in {"add": "+", "sub": "-", "mul": "*", "div": "/"}.items():
        binary(found, dtype, op, f"return a {symbol} b;")
    unary(found, dtype, "neg", "return -a;")
    if shape.scalar:
        both = f"union {{ {scalar} f; {ctype(bits_of(dtype))} i; }} u"
        as_int, as_float = (
            f"{both} = {{ .f = a }}; return u.i;",
            f"{both} = {{ .i = a }}; return u.f;",
        )
    else:
        as_int, as_float = f"return ({ints})a;", f"return ({vector})a;"
    unary(found, dtype, "asi", as_int, returns=ints)
    found[f"asf_{dtype}"] = function(vector, f"asf_{dtype}", f"{ints} a", as_float)
    sign = "(-0x7fffffff - 1)" if dtype == "f32" else "(-0x7fffffffffffffffl - 1)"
    rest = "0x7fffffff" if dtype == "f32" else "0x7fffffffffffffffl"
    unary(found, dtype, "abs", f"return asf_{dtype}(asi_{dtype}(a) & {rest});")
    unary(
        found, dtype, "signbit", f"return {to_vmask(shape, dtype, f'asi_{dtype}(a) < 0')};", "vmask"
    )
    binary(
        found,
        dtype,
        "copysign",
        f"return asf_{dtype}((asi_{dtype}(a) & {rest}) | (asi_{dtype}(b) & {sign}));",
    )
    unary(found, dtype, "isnan", f"return {to_vmask(shape, dtype, 'a != a')};", "vmask")
    infinite = f"abs_{dtype}(a) == __builtin_inf{suffix}()"
    unary(found, dtype, "isinf", f"return {to_vmask(shape, dtype, infinite)};", "vmask")
    finite = f"abs_{dtype}(a) < __builtin_inf{suffix}()"
    unary(found, dtype, "isfinite", f"return {to_vmask(shape, dtype, finite)};", "vmask")
    one = f"splat_{dtype}(1)"
    zero = f"splat_{dtype}(0)"
    unary(
        found,
        dtype,
        "sign",
        f"return pick_{dtype}(a > 0, {one}, pick_{dtype}(a < 0, -{one}, {zero}));",
    )
    # lowest/highest(a, b): b where either is NaN, as the x86 instructions do it; min/max give NaN.
    for op, plain, symbol in (("min", "lowest", "<"), ("max", "highest", ">")):
        hardware = _register_builtin(shape, dtype, op)
        if shape.scalar:
            binary(found, dtype, plain, f"return a {symbol} b ? a : b;")
        elif hardware:
            binary(found, dtype, plain, f"return {hardware.format(args='a, b')};")
        else:
            binary(found, dtype, plain, f"return pick_{dtype}(a {symbol} b, a, b);")
        binary(found, dtype, op, f"return pick_{dtype}(a != a, a, {plain}_{dtype}(a, b));")
    square = _register_builtin(shape, dtype, "sqrt")
    if square:
        unary(found, dtype, "sqrt", f"return {square.format(args='a')};")
    else:
        _each(found, shape, dtype, "sqrt", f"__builtin_sqrt{suffix}(@a)")
    triple = f"{vector} a, {vector} b, {vector} c"
    fused = _fma(shape, dtype)
    found[f"fma_{dtype}"] = function(vector, f"fma_{dtype}", triple, fused)
    if shape.has_fma:
        found[f"madd_{dtype}"] = function(
            vector, f"madd_{dtype}", triple, f"return fma_{dtype}(a, b, c);"
        )
    else:
        found[f"madd_{dtype}"] = function(vector, f"madd_{dtype}", triple, "return a * b + c;")


def _fma(shape: Shape, dtype: str) -> str:
    suffix = "f" if dtype == "f32" else ""
    letter = "s" if dtype == "f32" else "d"
    total = shape.bytes(dtype)
    if shape.scalar:
        return f"return __builtin_fma{suffix}(a, b, c);"
    if shape.avx512 and total == 64:
        return f"return __builtin_ia32_vfmaddp{letter}512_mask(a, b, c, -1, 4);"
    if shape.avx2 and total in (16, 32):
        return f"return __builtin_ia32_vfmaddp{letter}{'256' if total == 32 else ''}(a, b, c);"
    return (
        f"v{dtype} r; for (int i = 0; i < {shape.lanes}; i++) "
        f"r[i] = __builtin_fma{suffix}(a[i], b[i], c[i]); return r;"
    )


def _register_builtin(shape: Shape, dtype: str, op: str) -> str | None:
    """The compiler builtin of one instruction over a whole register, with ``{args}`` to fill."""
    letter = "s" if dtype == "f32" else "d"
    if not shape.x86 or not shape.fits(dtype) or shape.bytes(dtype) < 16:
        return None
    total = shape.bytes(dtype)
    if total == 64:
        return f"__builtin_ia32_{op}p{letter}512_mask({{args}}, a, -1, 4)"
    return f"__builtin_ia32_{op}p{letter}{'256' if total == 32 else ''}({{args}})"


def _each(found: dict[str, str], shape: Shape, dtype: str, op: str, expression: str) -> None:
    """A unary function lane by lane; ``@a`` is the lane."""
    if shape.scalar:
        unary(found, dtype, op, f"return {expression.replace('@a', 'a')};")
        return
    each = expression.replace("@a", "a[i]")
    body = f"v{dtype} r; for (int i = 0; i < {shape.lanes}; i++) r[i] = {each}; return r;"
    unary(found, dtype, op, body)


# The rounding mode in the immediate of roundps and vrndscaleps; 8 keeps inexact quiet.
_ROUND = {"rint": 8, "floor": 9, "ceil": 10, "trunc": 11}


def _rounding(found: dict[str, str], shape: Shape, dtype: str) -> None:
    suffix = "f" if dtype == "f32" else ""
    letter = "s" if dtype == "f32" else "d"
    total = shape.bytes(dtype)
    for op, mode in _ROUND.items():
        if shape.x86 and shape.fits(dtype) and total >= 16:
            if total == 64:
                body = f"return __builtin_ia32_rndscalep{letter}_mask(a, {mode}, a, -1, 4);"
            else:
                wide = "256" if total == 32 else ""
                body = f"return __builtin_ia32_roundp{letter}{wide}(a, {mode});"
            unary(found, dtype, op, body)
        else:
            _each(found, shape, dtype, op, f"__builtin_{op}{suffix}(@a)")
