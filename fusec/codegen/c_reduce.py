"""C functions that reduce a vector to one scalar: hsum_ hprod_ hmin_ hmax_ hany hall; scans of the
lanes: scan_sum_ scan_prod_ scan_max_ scan_min_ scan_logaddexp_.

The lanes are folded in halves, so the order of a float sum is fixed by the lane count alone.
"""

from __future__ import annotations

from fusec.codegen.c_shape import FLOATS, Shape, bits_of, ctype, function

_OPS = {"hsum": "add", "hprod": "mul", "hmin": "min", "hmax": "max"}
# Scan -> what combines, and its neutral number; None: a value combined with itself is itself.
_SCANS: dict[str, tuple[str, str | None]] = {
    "sum": ("add", "0"),
    "prod": ("mul", "1"),
    "max": ("max", None),
    "min": ("min", None),
    "logaddexp": ("logaddexp", "-__builtin_inf()"),
}


def functions(shape: Shape) -> dict[str, str]:
    """Name -> C source of every horizontal reduction."""
    found: dict[str, str] = {}
    for dtype in (*FLOATS, "i64", "i32"):
        for name, op in _OPS.items():
            full = f"{name}_{dtype}"
            found[full] = function(
                ctype(dtype), full, f"v{dtype} a", _fold(shape, dtype, f"{op}_{dtype}")
            )
    for dtype in (*FLOATS, "i64", "i32"):
        for scan, (op, neutral) in _SCANS.items():
            if scan == "logaddexp" and dtype not in FLOATS:
                continue
            full = f"scan_{scan}_{dtype}"
            body = _scan(shape, dtype, f"{op}_{dtype}", neutral)
            found[full] = function(f"v{dtype}", full, f"v{dtype} a", body)
    found["hany"] = function("int", "hany", "vmask a", _any(shape, "i32", "hany"))
    found["hall"] = function("int", "hall", "vmask a", "return !hany(~a);")
    found["any_f32"] = function("int", "any_f32", "vi32 a", "return hany(a);")
    found["any_f64"] = function("int", "any_f64", "vi64 a", _any(shape, "i64", "any_f64"))
    if shape.scalar:  # the native masks of scalars are not 0/-1
        found["hall"] = function("int", "hall", "vmask a", "return a != 0;")
    return found


def _fold(shape: Shape, dtype: str, combine: str) -> str:
    if shape.scalar:
        return "return a;"
    steps = []
    distance = shape.lanes // 2
    while distance:
        order = shape.each(lambda lane, d=distance: str(lane ^ d))  # type: ignore[misc]
        index = f"(v{bits_of(dtype)}){{{order}}}"
        steps.append(f"a = {combine}(a, __builtin_shuffle(a, {index}));")
        distance //= 2
    return " ".join(steps) + " return a[0];"


def _scan(shape: Shape, dtype: str, combine: str, neutral: str | None) -> str:
    """Each lane becomes the fold of the lanes up to it (Hillis and Steele, 1986)."""
    if shape.scalar:
        return "return a;"
    steps = [f"v{dtype} e = {'a' if neutral is None else f'splat_{dtype}({neutral})'};"]
    distance = 1
    while distance < shape.lanes:
        order = shape.each(
            lambda lane, d=distance: str(lane - d if lane >= d else shape.lanes + lane)  # type: ignore[misc]
        )
        index = f"(v{bits_of(dtype)}){{{order}}}"
        steps.append(f"a = {combine}(__builtin_shuffle(a, e, {index}), a);")
        if neutral is None:
            steps.append("e = a;")
        distance *= 2
    return " ".join(steps) + " return a;"


def _any(shape: Shape, dtype: str, name: str) -> str:
    """Whether a native mask of 32- or 64-bit lanes has a lane set."""
    if shape.scalar:
        return "return a != 0;"
    total = shape.bytes(dtype)
    if shape.x86 and shape.fits(dtype) and total >= 16:
        if shape.avx512:
            if dtype == "i32":
                return f"return __builtin_ia32_cvtd2mask{8 * total}(a) != 0;"
            native = f"typedef long long q __attribute__((vector_size({total}))); "
            return f"{native}return __builtin_ia32_cvtq2mask{8 * total}((q)a) != 0;"
        letter, kind = ("s", "f32") if dtype == "i32" else ("d", "f64")
        wide = "256" if total == 32 else ""
        return f"return __builtin_ia32_movmskp{letter}{wide}((v{kind})a) != 0;"
    if dtype == "i64":
        return "return hany(cvt_i64_i32(a));"
    return f"for (int i = 0; i < {shape.lanes}; i++) if (a[i]) return 1; return 0;"
