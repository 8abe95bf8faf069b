"""Graphs whose kernels show what only GPUs' forms have, by name."""

# Walked in blocks: forms that read a row once less.
LOOPED = {
    "log_softmax": """\
%0 = input "x": bf16[5, 300]
%1 = call aten._to_copy.default(%0, dtype=dtype:f32): f32[5, 300]
%2 = call aten.amax.default(%1, [1], true): f32[5, 1]
%3 = call aten.sub.Tensor(%1, %2): f32[5, 300]
%4 = call aten.exp.default(%3): f32[5, 300]
%5 = call aten.sum.dim_IntList(%4, [1], true): f32[5, 1]
%6 = call aten.log.default(%5): f32[5, 1]
%7 = call aten.sub.Tensor(%3, %6): f32[5, 300]
return %6, %7
""",
    "softmax_of_nothing": """\
%0 = input "x": f32[5, 128]
%1 = input "m": bool[5, 128]
%2 = call aten.masked_fill.Scalar(%0, %1, -inf): f32[5, 128]
%3 = call aten.slice.Tensor(%2, 1, 0, 3): f32[5, 3] stride [128, 1]
%4 = call aten.amax.default(%3, [1], true): f32[5, 1]
%5 = call aten.sub.Tensor(%3, %4): f32[5, 3]
%6 = call aten.exp.default(%5): f32[5, 3]
%7 = call aten.mul.Tensor(%6, %3): f32[5, 3]
%8 = call aten.sum.dim_IntList(%6, [1], true): f32[5, 1]
%9 = call aten.sum.dim_IntList(%7, [1], true): f32[5, 1]
return %8, %9
""",
    "moments": """\
%0 = input "x": f32[5, 301]
%1 = call aten.var.correction(%0, [1], correction=1): f32[5]
%2 = call aten.mean.dim(%0, [1]): f32[5]
return %1, %2
""",
    "moments_whole_blocks": """\
%0 = input "x": bf16[5, 256]
%1 = call aten.add.Tensor(%0, 1000.0): bf16[5, 256]
%2 = call aten._to_copy.default(%1, dtype=dtype:f32): f32[5, 256]
%3 = call aten.var.correction(%2, [1], correction=0): f32[5]
return %3
""",
    "norm": """\
%0 = input "x": bf16[5, 260]
%1 = input "w": bf16[260]
%2 = call aten.mul.Tensor(%0, %0): bf16[5, 260]
%3 = call aten.mean.dim(%2, [1], true): bf16[5, 1]
%4 = call aten.rsqrt.default(%3): bf16[5, 1]
%5 = call aten.mul.Tensor(%0, %4): bf16[5, 260]
%6 = call aten.mul.Tensor(%5, %1): bf16[5, 260]
return %6
""",
    "divided_by_one": """\
%0 = input "x": f32[5, 260]
%1 = call aten.abs.default(%0): f32[5, 260]
%2 = call aten.amax.default(%1, [1], true): f32[5, 1]
%3 = call aten.div.Tensor(%2, 127): f32[5, 1]
%4 = call aten.div.Tensor(%0, %3): f32[5, 260]
%5 = call aten.round.default(%4): f32[5, 260]
%6 = call aten._to_copy.default(%5, dtype=dtype:i8): i8[5, 260]
%7 = call aten.div.Tensor(%0, -0.3): f32[5, 260]
return %4, %6, %7
""",
    "groups_of_channels": """\
%0 = input "x": bf16[6, 3, 128]
%1 = input "w": bf16[6]
%2 = call aten._to_copy.default(%0, dtype=dtype:f32): f32[6, 3, 128]
%3 = call aten.view.default(%2, [2, 9, 128]): f32[2, 9, 128]
%4 = call aten.mean.dim(%3, [1, 2], true): f32[2, 1, 1]
%5 = call aten.sub.Tensor(%3, %4): f32[2, 9, 128]
%6 = call aten.view.default(%5, [6, 3, 128]): f32[6, 3, 128]
%7 = call aten.view.default(%1, [6, 1, 1]): bf16[6, 1, 1]
%8 = call aten.mul.Tensor(%6, %7): f32[6, 3, 128]
return %8
""",
    "extremes": """\
%0 = input "x": f32[5, 300]
%1 = call aten.argmax.default(%0, 1): i64[5]
%2 = call aten.argmin.default(%0, 1): i64[5]
%3 = call aten.amin.default(%0, [1]): f32[5]
%4 = call aten.prod.dim_int(%0, 1): f32[5]
return %1, %2, %3, %4
""",
    "overwritten_scan": """\
%0 = input "x": f32[5, 300]
%1 = call aten.cumsum.default(%0, 1): f32[5, 300]
%2 = call aten.copy_.default(%0, %1): f32[5, 300]
return
""",
    "exchange": """\
%0 = input "x": f32[5, 300]
%1 = input "y": f32[5, 300]
%2 = call aten.amax.default(%0, [1], true): f32[5, 1]
%3 = call aten.sub.Tensor(%1, %2): f32[5, 300]
%4 = call aten.add.Tensor(%0, %2): f32[5, 300]
%5 = call aten.copy_.default(%0, %3): f32[5, 300]
%6 = call aten.copy_.default(%1, %4): f32[5, 300]
return
""",
    "running_extremes": """\
%0 = input "x": f32[2, 70]
%1 = call aten.mul.Tensor(%0, 3.0): f32[2, 70]
%2 = call aten.round.default(%1): f32[2, 70]
%3 = call aten.cummax.default(%2, 1): (f32[2, 70], i64[2, 70])
%4 = call py.getitem(%3, 0): f32[2, 70]
%5 = call py.getitem(%3, 1): i64[2, 70]
%6 = call aten.cummin.default(%2, 1): (f32[2, 70], i64[2, 70])
%7 = call py.getitem(%6, 1): i64[2, 70]
return %4, %5, %7
""",
    "running_logs": """\
%0 = input "x": f32[2, 70]
%1 = call aten.logcumsumexp.default(%0, 1): f32[2, 70]
return %1
""",
    "scan": """\
%0 = input "x": f32[5, 300]
%1 = call aten.cumsum.default(%0, 1): f32[5, 300]
return %1
""",
}

# Rows of sizes from 2⁻⁶⁰ to 2⁶⁰, zeros and infinities, each row by one number of either sign.
QUOTIENTS = """\
%0 = input "x": f32[64, 300]
%1 = input "size": f32[64, 300]
%2 = input "by": f32[64, 1]
%3 = call aten.mul.Tensor(%1, 15.0): f32[64, 300]
%4 = call aten.round.default(%3): f32[64, 300]
%5 = call aten.exp2.default(%4): f32[64, 300]
%6 = call aten.mul.Tensor(%0, %5): f32[64, 300]
%7 = call aten.gt.Scalar(%1, 2.0): bool[64, 300]
%8 = call aten.masked_fill.Scalar(%6, %7, -0.0): f32[64, 300]
%9 = call aten.lt.Scalar(%1, -2.0): bool[64, 300]
%10 = call aten.masked_fill.Scalar(%8, %9, -inf): f32[64, 300]
%11 = call aten.div.Tensor(%10, %2): f32[64, 300]
%12 = call aten.div.Tensor(%10, 3.3): f32[64, 300]
%13 = call aten.amax.default(%12, [1]): f32[64]
return %11, %12, %13
"""

# Axes of no points: there may be no memory to load from.
EMPTY = {
    "rows": """\
%0 = input "x": f32[0, 31]
%1 = call aten.exp.default(%0): f32[0, 31]
%2 = call aten.sum.dim_IntList(%1, [1]): f32[0]
return %1, %2
""",
    "columns": """\
%0 = input "x": f32[0, 31]
%1 = call aten.sum.dim_IntList(%0, [0]): f32[31]
%2 = call aten.erf.default(%0): f32[0, 31]
return %1, %2
""",
    "everything": """\
%0 = input "x": f32[5, 0, 3]
%1 = call aten.sum.default(%0): f32[]
%2 = call aten.any.default(%0): bool[]
%3 = call aten.cumsum.default(%0, 1): f32[5, 0, 3]
return %1, %2, %3
""",
}

_UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh asin acos atan asinh acosh "
    "atanh erf erfc sqrt rsqrt sigmoid reciprocal lgamma neg abs sign floor ceil trunc round relu"
).split()
_TESTS = "isnan isinf signbit logical_not".split()
_BINARY = (
    "add.Tensor sub.Tensor mul.Tensor div.Tensor maximum minimum fmax fmin atan2 copysign.Tensor "
    "remainder.Tensor fmod.Tensor floor_divide pow.Tensor_Tensor"
).split()
_COMPARISONS = "eq ne lt le gt ge".split()
_WHOLE = "add.Tensor sub.Tensor mul.Tensor maximum minimum".split()
_BITS = "bitwise_and bitwise_or bitwise_xor".split()
_BY_NUMBER = "floor_divide remainder.Scalar fmod.Scalar".split()
_TYPES = "f64 f32 bf16 f16 i64 i32 i16 i8 u8 bool".split()


def _full(name: str) -> str:
    return f"aten.{name if '.' in name else name + '.default'}"


def _graph(dtype: str, calls: list[tuple[str, str]]) -> str:
    """A graph of one call a line on two inputs; each line: arguments and the result's type."""
    lines = [f'%0 = input "x": {dtype}[7, 19]', f'%1 = input "y": {dtype}[7, 19]']
    lines += [
        f"%{number} = call {call}: {kind}[7, 19]" for number, (call, kind) in enumerate(calls, 2)
    ]
    outputs = ", ".join(f"%{number}" for number in range(2, len(calls) + 2))
    return "\n".join([*lines, f"return {outputs}"]) + "\n"


def _floats(dtype: str) -> str:
    return _graph(
        dtype,
        [(f"{_full(name)}(%0)", dtype) for name in _UNARY]
        + [(f"{_full(name)}(%0)", "bool") for name in _TESTS]
        + [(f"{_full(name)}(%0, %1)", dtype) for name in _BINARY]
        + [(f"aten.{name}.Tensor(%0, %1)", "bool") for name in _COMPARISONS]
        + [(f"aten._to_copy.default(%0, dtype=dtype:{to})", to) for to in _TYPES],
    )


def _integers(dtype: str) -> str:
    number = "3" if dtype == "u8" else "-3"
    return _graph(
        dtype,
        [(f"{_full(name)}(%0, %1)", dtype) for name in (*_WHOLE, *(f"{b}.Tensor" for b in _BITS))]
        + [(f"{_full(name)}(%0)", dtype) for name in ("neg", "abs", "sign", "bitwise_not")]
        + [(f"{_full(name)}(%0, {number})", dtype) for name in _BY_NUMBER]
        + [("aten.mul.Tensor(%0, -3)", dtype)]
        + [(f"aten.{name}.Tensor(%0, %1)", "bool") for name in _COMPARISONS]
        + [(f"aten._to_copy.default(%0, dtype=dtype:{to})", to) for to in _TYPES],
    )


# Every operation of the scalar instruction set on every type that it takes.
OPERATIONS = {
    **{f"operations_{dtype}": _floats(dtype) for dtype in ("f64", "f32", "bf16")},
    **{f"operations_{dtype}": _integers(dtype) for dtype in ("i64", "i32", "i8", "u8")},
    "operations_bool": _graph(
        "bool",
        [(f"aten.logical_{name}.default(%0, %1)", "bool") for name in ("and", "or", "xor")]
        + [("aten.logical_not.default(%0)", "bool"), ("aten.where.self(%0, %1, %0)", "bool")]
        + [(f"aten.{name}.Tensor(%0, %1)", "bool") for name in _COMPARISONS]
        + [(f"aten._to_copy.default(%0, dtype=dtype:{to})", to) for to in _TYPES],
    ),
}

# Places that are loaded: rows added up, in float32 for a half type; an input changed in place.
SCATTERS = {
    "rows_added": """\
%0 = input "g": bf16[6, 5, 40]
%1 = input "i": i64[6, 5]
%2 = call aten.remainder.Scalar(%1, 9): i64[6, 5]
%3 = call aten.mul.Tensor(%0, 2.0): bf16[6, 5, 40]
%4 = call aten.embedding_dense_backward.default(%3, %2, 9, 3, false): bf16[9, 40]
return %4
""",
    "rows_added_to": """\
%0 = input "x": f64[7, 300]
%1 = input "i": i64[20]
%2 = input "v": f64[300]
%3 = call aten.remainder.Scalar(%1, 7): i64[20]
%4 = call aten._unsafe_index_put.default(%0, [%3], %2, true): f64[7, 300]
return %4
""",
    "input_changed": """\
%0 = input "x": f32[7, 33]
%1 = input "v": f32[4, 33]
%2 = call aten.arange.default(4, dtype=dtype:i64): i64[4]
%3 = call aten.mul.Tensor(%2, 3): i64[4]
%4 = call aten.remainder.Scalar(%3, 7): i64[4]
%5 = call aten._unsafe_index_put.default(%0, [%4], %1): f32[7, 33]
%6 = call aten.copy_.default(%0, %5): f32[7, 33]
return
""",
}

# Additions at one of few places: sums for each place, where many would meet.
FEW_PLACES = {
    "kinds_of_tokens": """\
%0 = input "g": bf16[6, 50, 40] @cuda
%1 = input "i": i64[6, 50] @cuda
%2 = call aten.remainder.Scalar(%1, 3): i64[6, 50] @cuda
%3 = call aten.embedding_dense_backward.default(%0, %2, 3, 1, false): bf16[3, 40] @cuda
return %3
""",
    "counts": """\
%0 = input "x": i64[2] @cuda
%1 = input "i": i64[300] @cuda
%2 = input "v": i64[300] @cuda
%3 = call aten.bitwise_and.Scalar(%1, 1): i64[300] @cuda
%4 = call aten.scatter_add.default(%0, 0, %3, %2): i64[2] @cuda
return %4
""",
}

# Sizes that are known only at the call, in every form of kernel.
_SYMBOLS = "symbol s0 in [2, 1048576]\nsymbol s1 in [2, 1048576]\n"
DYNAMIC = {
    "softmax": f"""\
{_SYMBOLS}%0 = input "x": f32[s0, s1]
%1 = call aten.amax.default(%0, [1], true): f32[s0, 1]
%2 = call aten.sub.Tensor(%0, %1): f32[s0, s1]
%3 = call aten.exp.default(%2): f32[s0, s1]
%4 = call aten.sum.dim_IntList(%3, [1], true): f32[s0, 1]
%5 = call aten.div.Tensor(%3, %4): f32[s0, s1]
return %5
""",
    "transposed": f"""\
{_SYMBOLS}%0 = input "x": f32[s0, s1]
%1 = input "y": f32[s1, s0]
%2 = call aten.permute.default(%0, [1, 0]): f32[s1, s0] stride [1, s1]
%3 = call aten.add.Tensor(%2, %1): f32[s1, s0] stride [s0, 1]
return %3
""",
    "columns": f"""\
{_SYMBOLS}%0 = input "x": f32[s0, s1]
%1 = call aten.mul.Tensor(%0, %0): f32[s0, s1]
%2 = call aten.sum.dim_IntList(%1, [0]): f32[s1]
return %2
""",
    "argmax": f"""\
{_SYMBOLS}%0 = input "x": f32[s0, s1]
%1 = call aten.argmax.default(%0, 1): i64[s0]
return %1
""",
    "side_by_side": f"""\
{_SYMBOLS}%0 = input "x": f32[s0, s1]
%1 = call aten.exp.default(%0): f32[s0, s1]
%2 = call aten.cat.default([%0, %1], 1): f32[s0, s1*2]
return %2
""",
}

# Reads and writes at places that kernels assert to be in range.
PLACES = {
    "rows": """\
%0 = input "w": f32[9, 40] @cuda
%1 = input "i": i64[6, 5] @cuda
%2 = call aten.remainder.Scalar(%1, 9): i64[6, 5] @cuda
%3 = call aten.embedding.default(%0, %2): f32[6, 5, 40] @cuda
%4 = call aten.sum.dim_IntList(%3, [2], true): f32[6, 5, 1] @cuda
%5 = call aten.sub.Tensor(%3, %4): f32[6, 5, 40] @cuda
return %5
""",
    "counted_from_the_end": """\
%0 = input "x": bf16[7, 33] @cuda
%1 = input "i": i64[70] @cuda
%2 = call aten.fmod.Scalar(%1, 7): i64[70] @cuda
%3 = call aten.index.Tensor(%0, [%2]): bf16[70, 33] @cuda
return %3
""",
    "some_of_no_interest": """\
%0 = input "x": f32[7] @cuda
%1 = input "i": i64[50] @cuda
%2 = input "y": f32[30] @cuda
%3 = input "none": f32[50] @cuda
%4 = call aten.remainder.Scalar(%1, 7): i64[50] @cuda
%5 = call aten.eq.Scalar(%3, 0.0): bool[50] @cuda
%6 = call aten.masked_fill.Scalar(%4, %5, 99): i64[50] @cuda
%7 = call aten.index_select.default(%0, 0, %6): f32[50] @cuda
%8 = call aten.cat.default([%7, %2]): f32[80] @cuda
return %8
""",
    "a_size_of_the_call": """\
symbol s0 in [2, 64]
%0 = input "x": f32[s0, 33] @cuda
%1 = input "i": i64[11] @cuda
%2 = call aten.bitwise_and.Scalar(%1, 1): i64[11] @cuda
%3 = call aten.index_select.default(%0, 0, %2): f32[11, 33] @cuda
return %3
""",
    "written": """\
%0 = input "x": f32[70, 33] @cuda
%1 = input "i": i64[4] @cuda
%2 = input "v": f32[33] @cuda
%3 = call aten.remainder.Scalar(%1, 70): i64[4] @cuda
%4 = call aten.index_put.default(%0, [%3], %2): f32[70, 33] @cuda
return %4
""",
}
# The same without the arithmetic that brings the places in range.
OUT_OF_RANGE = {
    "rows": PLACES["rows"].replace("(%0, %2)", "(%0, %1)"),
    "counted_from_the_end": PLACES["counted_from_the_end"].replace("[%2]", "[%1]"),
    "some_of_no_interest": PLACES["some_of_no_interest"].replace("0, %6)", "0, %1)"),
    "a_size_of_the_call": PLACES["a_size_of_the_call"].replace("0, %2)", "0, %1)"),
    "written": PLACES["written"].replace("[%3]", "[%1]"),
}
