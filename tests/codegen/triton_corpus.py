"""Graphs whose kernels show what only GPUs' forms have, by name."""

# Walked in blocks: forms that read a row once less.
LOOPED = {
    "log_softmax": """\
%0 = input "x": bf16[20, 300]
%1 = call aten._to_copy.default(%0, dtype=dtype:f32): f32[20, 300]
%2 = call aten.amax.default(%1, [1], true): f32[20, 1]
%3 = call aten.sub.Tensor(%1, %2): f32[20, 300]
%4 = call aten.exp.default(%3): f32[20, 300]
%5 = call aten.sum.dim_IntList(%4, [1], true): f32[20, 1]
%6 = call aten.log.default(%5): f32[20, 1]
%7 = call aten.sub.Tensor(%3, %6): f32[20, 300]
return %6, %7
""",
    "softmax_of_nothing": """\
%0 = input "x": f32[20, 128]
%1 = input "m": bool[20, 128]
%2 = call aten.masked_fill.Scalar(%0, %1, -inf): f32[20, 128]
%3 = call aten.slice.Tensor(%2, 1, 0, 3): f32[20, 3] stride [128, 1]
%4 = call aten.amax.default(%3, [1], true): f32[20, 1]
%5 = call aten.sub.Tensor(%3, %4): f32[20, 3]
%6 = call aten.exp.default(%5): f32[20, 3]
%7 = call aten.mul.Tensor(%6, %3): f32[20, 3]
%8 = call aten.sum.dim_IntList(%6, [1], true): f32[20, 1]
%9 = call aten.sum.dim_IntList(%7, [1], true): f32[20, 1]
return %8, %9
""",
    "moments": """\
%0 = input "x": f32[20, 301]
%1 = call aten.var.correction(%0, [1], correction=1): f32[20]
%2 = call aten.mean.dim(%0, [1]): f32[20]
return %1, %2
""",
    "moments_whole_blocks": """\
%0 = input "x": bf16[20, 256]
%1 = call aten.add.Tensor(%0, 1000.0): bf16[20, 256]
%2 = call aten._to_copy.default(%1, dtype=dtype:f32): f32[20, 256]
%3 = call aten.var.correction(%2, [1], correction=0): f32[20]
return %3
""",
    "norm": """\
%0 = input "x": bf16[20, 260]
%1 = input "w": bf16[260]
%2 = call aten.mul.Tensor(%0, %0): bf16[20, 260]
%3 = call aten.mean.dim(%2, [1], true): bf16[20, 1]
%4 = call aten.rsqrt.default(%3): bf16[20, 1]
%5 = call aten.mul.Tensor(%0, %4): bf16[20, 260]
%6 = call aten.mul.Tensor(%5, %1): bf16[20, 260]
return %6
""",
    "extremes": """\
%0 = input "x": f32[20, 300]
%1 = call aten.argmax.default(%0, 1): i64[20]
%2 = call aten.argmin.default(%0, 1): i64[20]
%3 = call aten.amin.default(%0, [1]): f32[20]
%4 = call aten.prod.dim_int(%0, 1): f32[20]
return %1, %2, %3, %4
""",
    "scan": """\
%0 = input "x": f32[20, 300]
%1 = call aten.cumsum.default(%0, 1): f32[20, 300]
return %1
""",
}
