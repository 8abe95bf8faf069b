"""C functions that convert between vector types: cvt_<from>_<to>, half types, rounding to them.

Eager semantics: float to integer truncates (out of range as the x86 instructions do it), integers
wrap, a mask becomes 0 or 1 and a number becomes the mask of ``!= 0``. Conversions that change the
element width are one instruction each, written as inline assembly: gcc takes the generic vector
conversion of unequal widths apart, often lane by lane.
"""

from __future__ import annotations

from typing import Final

from fusec.codegen.c_shape import DTYPES, FLOATS, Shape, bits_of, ctype, function, size

# The floats that are stored narrow and computed in f32: name -> the integer type of their bits.
NARROW_FLOATS: Final = {"bf16": "u16", "f16": "u16", "f8e4m3fn": "u8", "f8e5m2": "u8"}
_LETTER = {1: "b", 2: "w", 4: "d", 8: "q"}


def functions(shape: Shape) -> dict[str, str]:
    """Name -> C source of every conversion."""
    found: dict[str, str] = {}
    for source in DTYPES:
        for target in DTYPES:
            body = _scalar(source, target) if shape.scalar else _vector(shape, source, target)
            _add(found, source, target, body)
        _add(found, source, "mask", _to_mask(shape, source))
        _add(found, "mask", source, _from_mask(shape, source))
    _add(found, "mask", "mask", "return a;")
    found |= _bfloat16()
    found |= _float16(shape)
    found |= _float8()
    for kind in NARROW_FLOATS:
        found[f"round_{kind}"] = function(
            "vf32", f"round_{kind}", "vf32 a", f"return from_{kind}(to_{kind}(a));"
        )
    return found


def _add(found: dict[str, str], source: str, target: str, body: str) -> None:
    kind = {d: "vmask" if d == "mask" else f"v{d}" for d in (source, target)}
    name = f"cvt_{source}_{target}"
    found[name] = function(kind[target], name, f"{kind[source]} a", body)


def _through(source: str, target: str) -> str | None:
    """The type a float passes through on its way to a narrow or unsigned integer."""
    if source not in FLOATS or target in FLOATS:
        return None
    if target == "u32":
        return "i64"
    return "i32" if size(target) < 4 else None


def _scalar(source: str, target: str) -> str:
    middle = _through(source, target)
    if middle is not None:
        return f"return ({ctype(target)})({ctype(middle)})a;"
    return f"return ({ctype(target)})a;"


def _vector(shape: Shape, source: str, target: str) -> str:
    generic = f"return __builtin_convertvector(a, v{target});"
    if source == target:
        return "return a;"
    middle = _through(source, target)
    if middle is not None:
        return f"return cvt_{middle}_{target}(cvt_{source}_{middle}(a));"
    if source in FLOATS and target == "u64":
        top = "0x1p63" if source == "f64" else "0x1p63f"
        return (
            f"v{bits_of(source)} high = a >= {top}; "
            f"v{source} low = pick_{source}(high, a - {top}, a); "
            f"return (vu64)cvt_{source}_i64(low) ^ ((vu64)cvt_{bits_of(source)}_i64(high) << 63);"
        )
    from_width, to_width = size(source), size(target)
    if source not in FLOATS and target not in FLOATS:
        if from_width == to_width:
            return f"return (v{target})a;"
        if from_width < to_width:
            signed = "s" if source[0] == "i" else "z"
            letters = _LETTER[from_width] + _LETTER[to_width]
            return _instruction(shape, source, target, f"pmov{signed}x{letters}") or generic
        return _narrow(shape, source, target)
    if source not in FLOATS and from_width < 4:
        return f"return cvt_i32_{target}(cvt_{source}_i32(a));"
    found: str | None = None
    if source in ("i64", "u64") and target == "f64" and not shape.avx512:
        return _LONG_TO_DOUBLE[source]
    if source == "f32" and target == "f64":
        found = _instruction(shape, source, target, "cvtps2pd")
    elif source == "i32" and target == "f64":
        found = _instruction(shape, source, target, "cvtdq2pd")
    elif shape.avx512:
        mnemonic = {
            ("u32", "f64"): "cvtudq2pd",
            ("i64", "f32"): "cvtqq2ps",
            ("u64", "f32"): "cvtuqq2ps",
            ("f32", "i64"): "cvttps2qq",
        }.get((source, target))
        if mnemonic is not None:
            found = _instruction(shape, source, target, mnemonic)
    return found or generic


# Both halves become doubles by being placed in the mantissas of 2^84 and 2^52 (the signed upper
# half biased by 2^31); one subtraction takes the powers away exactly, the sum rounds once.
_LONG_TO_DOUBLE = {
    "i64": (
        "vu64 u = (vu64)a; vf64 high = (vf64)((u >> 32) ^ 0x4530000080000000ul); "
        "vf64 low = (vf64)((u & 0xfffffffful) | 0x4330000000000000ul); "
        "return (high - (0x1p84 + 0x1p63 + 0x1p52)) + low;"
    ),
    "u64": (
        "vf64 high = (vf64)((a >> 32) | 0x4530000000000000ul); "
        "vf64 low = (vf64)((a & 0xfffffffful) | 0x4330000000000000ul); "
        "return (high - (0x1p84 + 0x1p52)) + low;"
    ),
}


def _narrow(shape: Shape, source: str, target: str) -> str:
    """Keep the low bits of each element."""
    from_width, to_width = size(source), size(target)
    if shape.avx512:
        found = _instruction(shape, source, target, f"pmov{_LETTER[from_width]}{_LETTER[to_width]}")
        if found is not None:
            return found
    if from_width == 2 * to_width:
        if from_width == 8 and shape.x86:
            pieces = ", ".join(str(2 * lane) for lane in range(shape.lanes))
            wide = f"typedef int pair __attribute__((vector_size({shape.bytes(source)}))); "
            return f"{wide}return (v{target})__builtin_shufflevector((pair)a, (pair)a, {pieces});"
        return f"return __builtin_convertvector(a, v{target});"
    middle = f"{source[0]}{4 * from_width}"
    return f"return cvt_{middle}_{target}(cvt_{source}_{middle}(a));"


def _instruction(shape: Shape, source: str, target: str, mnemonic: str) -> str | None:
    """One x86 instruction from register to register, or None where the types do not fit it."""
    if not shape.x86 or not shape.fits(source, target):
        return None
    prefix = "v" if shape.avx2 else ""
    operands = f"%{shape.reg(source)}1, %{shape.reg(target)}0"
    return f'v{target} r; __asm__("{prefix}{mnemonic} {operands}" : "=v"(r) : "v"(a)); return r;'


def _to_mask(shape: Shape, source: str) -> str:
    if shape.scalar:
        return "return -(a != 0);"
    native = bits_of(source)
    return f"return cvt_{native}_i32((v{native})(a != 0));"


def _from_mask(shape: Shape, target: str) -> str:
    if shape.scalar:
        return f"return ({ctype(target)})(a & 1);"
    native = bits_of(target)
    if target in FLOATS:
        one = "0x3f800000" if target == "f32" else "0x3ff0000000000000"
        return f"return (v{target})(cvt_i32_{native}(a) & {one});"
    if size(target) < 4:
        return f"return cvt_i32_{target}(a & 1);"
    return f"return (v{target})(cvt_i32_{native}(a) & 1);"


def _bfloat16() -> dict[str, str]:
    found = {
        "from_bf16": function(
            "vf32", "from_bf16", "vu16 a", "return asf_f32((vi32)(cvt_u16_u32(a) << 16));"
        ),
        # Round to nearest even by adding half of the last place kept; a NaN keeps its sign and
        # payload and is made quiet.
        "to_bf16": function(
            "vu16",
            "to_bf16",
            "vf32 a",
            "vi32 b = asi_f32(a); vu32 u = (vu32)b; "
            "vi32 even = (vi32)((u + 0x7fff + ((u >> 16) & 1)) >> 16); "
            "vi32 nan = (vi32)((u >> 16) | 0x40); "
            "return cvt_i32_u16(pick_i32(a != a, nan, even));",
        ),
    }
    return found


def _float16(shape: Shape) -> dict[str, str]:
    if shape.avx2 and shape.scalar:
        # The barrier keeps gcc from comparing the halves themselves, by a function of libgcc.
        read = (
            "union { unsigned short u; _Float16 h; } b = { .u = a }; float r = (float)b.h; "
            '__asm__("" : "+x"(r)); return r;'
        )
        write = "union { unsigned short u; _Float16 h; } b = { .h = (_Float16)a }; return b.u;"
    elif shape.avx2 and shape.fits("u16", "f32"):
        wide, narrow = shape.reg("f32"), shape.reg("u16")
        read = f'vf32 r; __asm__("vcvtph2ps %{narrow}1, %{wide}0" : "=v"(r) : "v"(a)); return r;'
        write = (
            f'vu16 r; __asm__("vcvtps2ph $0, %{wide}1, %{narrow}0" : "=v"(r) : "v"(a)); return r;'
        )
    else:
        read, write = _HALF_READ, _HALF_WRITE
    return {
        "from_f16": function("vf32", "from_f16", "vu16 a", read),
        "to_f16": function("vu16", "to_f16", "vf32 a", write),
    }


def _float8() -> dict[str, str]:
    """The 8-bit floats: 4 exponent bits with one NaN and no infinity, or 5 as in a short half.

    Too large for the first saturates, as eager does since torch 2.13; for the second it is
    infinite.
    """
    found: dict[str, str] = {}
    found["from_f8e5m2"] = function(
        "vf32", "from_f8e5m2", "vu8 a", "return from_f16((vu16)(cvt_u8_u16(a) << 8));"
    )
    found["from_f8e4m3fn"] = function(
        "vf32",
        "from_f8e4m3fn",
        "vu8 a",
        "vi32 u = cvt_u8_i32(a), m = u & 0x7f, r = asi_f32(asf_f32(m << 20) * 0x1p120f); "
        "r = pick_i32(m == 0x7f, splat_i32(0x7fc00000), r); "
        "return asf_f32(r | (vi32)((vu32)(u & 0x80) << 24));",
    )
    # As for halves below: an integer addition rounds normal numbers, the adder the small ones.
    for kind, shift, bias, smallest, magic, top, overflow in (
        ("f8e4m3fn", 20, 120, 121, "16384.0f", "0x43e80000", "0x7e"),
        ("f8e5m2", 21, 112, 113, "128.0f", "0x47800000", "0x7c"),
    ):
        half = (1 << (shift - 1)) - 1
        found[f"to_{kind}"] = function(
            "vu8",
            f"to_{kind}",
            "vf32 a",
            "vi32 b = asi_f32(a), m = b & 0x7fffffff; "
            f"vi32 r = (m - {(bias << 23) - half} + ((m >> {shift}) & 1)) >> {shift}; "
            f"vi32 small = asi_f32(asf_f32(m) + {magic}) - asi_f32(splat_f32({magic})); "
            f"r = pick_i32(m < {smallest << 23}, small, r); "
            f"vi32 over = pick_i32(m > 0x7f800000, splat_i32(0x7f), splat_i32({overflow})); "
            f"r = pick_i32(m >= {top}, over, r); "
            "return cvt_i32_u8(r | ((b >> 24) & 0x80));",
        )
    return found


# Without a conversion instruction. Reading: place the half's exponent and mantissa at a float's,
# then one exact multiplication by 2^112 rebiases and normalises; infinities and NaN get the top
# exponent back. Writing: normal numbers round by an integer addition; results below 2^-14 are
# rounded by the adder itself, against 0.5 whose last place is 2^-24.
_HALF_READ = (
    "vi32 u = cvt_u16_i32(a); vi32 em = (u & 0x7fff) << 13; "
    "vi32 r = asi_f32(asf_f32(em) * 0x1p112f); "
    "r = pick_i32(em >= 0x0f800000, r | 0x7f800000, r); "
    "return asf_f32(r | (vi32)((vu32)(u & 0x8000) << 16));"
)
_HALF_WRITE = (
    "vi32 b = asi_f32(a); vi32 sign = (vi32)((vu32)b >> 16) & 0x8000; vi32 m = b & 0x7fffffff; "
    "vi32 normal = (vi32)((vu32)(m - 0x37fff001 + ((m >> 13) & 1)) >> 13); "
    "vi32 small = asi_f32(asf_f32(m) + 0.5f) - 0x3f000000; "
    "vi32 top = pick_i32(m > 0x7f800000, ((m >> 13) & 0x3ff) | 0x7e00, splat_i32(0x7c00)); "
    "vi32 r = pick_i32(m < 0x38800000, small, normal); "
    "r = pick_i32(m >= 0x477ff000, top, r); "
    "return cvt_i32_u16(r | sign);"
)
