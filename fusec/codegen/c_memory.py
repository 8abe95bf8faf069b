"""C functions that move vectors between memory and registers: ld_* st_* splat_* iota_*, and squares
of them within registers: transpose_*.

``n`` is the number of valid lanes. A call with a constant ``n`` equal to the lane count is one
unaligned move; any other touches the first ``n`` elements only and leaves zero in the other lanes.
"""

from __future__ import annotations

from fusec.codegen.c_convert import NARROW_FLOATS
from fusec.codegen.c_shape import DTYPES, Shape, bits_of, ctype, function, size

_BARRIER = '__asm__("" : "+r"(i));'  # keeps the compiler from vectorising a loop over the tail


def functions(shape: Shape) -> dict[str, str]:
    """Name -> C source of every memory function."""
    found: dict[str, str] = {}
    for dtype in DTYPES:
        found[f"ld_{dtype}"] = _load(shape, dtype)
        found[f"st_{dtype}"] = _store(shape, dtype)
        scalar = ctype(dtype)
        items = "x" if shape.scalar else f"(v{dtype}){{{shape.each(lambda _: 'x')}}}"
        found[f"splat_{dtype}"] = function(
            f"v{dtype}", f"splat_{dtype}", f"{scalar} x", f"return {items};"
        )
        if not shape.scalar:
            found[f"transpose_{dtype}"] = _transpose(shape, dtype)
    for dtype in ("i64", "i32"):
        steps = "start" if shape.scalar else f"start + (v{dtype}){{{shape.each(str)}}}"
        found[f"iota_{dtype}"] = function(
            f"v{dtype}", f"iota_{dtype}", f"{ctype(dtype)} start", f"return {steps};"
        )
    found["splat_mask"] = function("vmask", "splat_mask", "int x", "return splat_i32(-(x != 0));")
    found["ld_bool"] = function(
        "vmask", "ld_bool", "const unsigned char *p, int n", "return cvt_u8_mask(ld_u8(p, n));"
    )
    found["st_bool"] = function(
        "void", "st_bool", "unsigned char *p, vmask v, int n", "st_u8(p, cvt_mask_u8(v), n);"
    )
    for kind, stored in NARROW_FLOATS.items():
        pointer = f"{ctype(stored)} *p"
        found[f"ld_{kind}"] = function(
            "vf32",
            f"ld_{kind}",
            f"const {pointer}, int n",
            f"return from_{kind}(ld_{stored}(p, n));",
        )
        found[f"st_{kind}"] = function(
            "void",
            f"st_{kind}",
            f"{pointer}, vf32 v, int n",
            f"st_{stored}(p, to_{kind}(v), n);",
        )
    return found


def _transpose(shape: Shape, dtype: str) -> str:
    """A square of as many vectors as lanes: blocks beside the diagonal change places, single
    elements first, then ever larger ones (Eklundh, 1972)."""
    kind, lanes = f"v{bits_of(dtype)}", shape.lanes
    lines = [f"v{dtype} t;"]
    side = 1
    while side < lanes:
        first = shape.each(lambda i, d=side: str(lanes + i - d if i & d else i))  # type: ignore[misc]
        second = shape.each(lambda i, d=side: str(lanes + i if i & d else i + d))  # type: ignore[misc]
        lines.append(f"{{ const {kind} a = {{{first}}}, b = {{{second}}};")
        for row in (i for i in range(lanes) if not i & side):
            pair = f"m[{row}], m[{row + side}]"
            lines.append(
                f"t = __builtin_shuffle({pair}, a); "
                f"m[{row + side}] = __builtin_shuffle({pair}, b); m[{row}] = t;"
            )
        lines.append("}")
        side *= 2
    return function("void", f"transpose_{dtype}", f"v{dtype} *m", " ".join(lines))


def _load(shape: Shape, dtype: str) -> str:
    params = f"const {ctype(dtype)} *p, int n"
    full = f"*(const w{dtype} *)p"
    if shape.scalar:
        return function(f"v{dtype}", f"ld_{dtype}", params, f"(void)n; return {full};")
    body = f"if (__builtin_constant_p(n) && n == {shape.lanes}) return {full}; "
    if _masked(shape, dtype):
        body += f"v{dtype} r; {_masked_move(shape, dtype, load=True)} return r;"
    else:
        body += (
            f"union {{ v{dtype} v; {ctype(dtype)} e[{shape.lanes}]; }} u = {{0}}; "
            f"for (long i = 0; i < n; i++) {{ {_BARRIER} u.e[i] = p[i]; }} return u.v;"
        )
    return function(f"v{dtype}", f"ld_{dtype}", params, body)


def _store(shape: Shape, dtype: str) -> str:
    params = f"{ctype(dtype)} *p, v{dtype} v, int n"
    full = f"*(w{dtype} *)p = v;"
    if shape.scalar:
        return function("void", f"st_{dtype}", params, f"(void)n; {full}")
    body = f"if (__builtin_constant_p(n) && n == {shape.lanes}) {{ {full} return; }} "
    body += "if (__builtin_constant_p(n) && n == 1) { *p = v[0]; return; } "
    if _masked(shape, dtype):
        body += _masked_move(shape, dtype, load=False)
    else:
        body += (
            f"union {{ v{dtype} v; {ctype(dtype)} e[{shape.lanes}]; }} u = {{v}}; "
            f"for (long i = 0; i < n; i++) {{ {_BARRIER} p[i] = u.e[i]; }}"
        )
    return function("void", f"st_{dtype}", params, body)


def _masked(shape: Shape, dtype: str) -> bool:
    """True when one masked instruction moves part of a vector."""
    if not shape.fits(dtype):
        return False
    if shape.avx512:
        return True
    return shape.avx2 and size(dtype) >= 4 and shape.bytes(dtype) >= 16


def _masked_move(shape: Shape, dtype: str, *, load: bool) -> str:
    reg = shape.reg(dtype)
    bits = 8 * size(dtype)
    memory = f"*({'const ' if load else ''}w{dtype} *)p"
    if shape.avx512:
        mask = {16: "unsigned short", 32: "unsigned int", 64: "unsigned long"}.get(
            shape.lanes, "unsigned char"
        )
        select = f"{mask} m = ({mask})((1ul << n) - 1); "
        if shape.lanes == 64:
            select = "unsigned long m = n < 64 ? (1ul << n) - 1 : ~0ul; "
        if load:
            return (
                f'{select}__asm__("vmovdqu{bits} %1, %{reg}0%{{%2%}}%{{z%}}" '
                f': "=v"(r) : "m"({memory}), "Yk"(m));'
            )
        return (
            f'{select}__asm__("vmovdqu{bits} %{reg}1, %0%{{%2%}}" '
            f': "+m"({memory}) : "v"(v), "Yk"(m));'
        )
    kind = bits_of(dtype)
    letter = "d" if bits == 32 else "q"
    lanes = f"v{kind} m = (v{kind}){{{shape.each(str)}}} < ({ctype(kind)})n; "
    if load:
        return (
            f'{lanes}__asm__("vpmaskmov{letter} %2, %{reg}1, %{reg}0" '
            f': "=x"(r) : "x"(m), "m"({memory}));'
        )
    return (
        f'{lanes}__asm__("vpmaskmov{letter} %{reg}2, %{reg}1, %0" '
        f': "+m"({memory}) : "x"(m), "x"(v));'
    )
