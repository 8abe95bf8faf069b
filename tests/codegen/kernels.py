"""Graphs whose kernels show every form of the code generator, by name."""

KERNELS = {
    "pointwise_tail": """\
%0 = input "x": f32[10, 1003]
%1 = input "y": f32[1003]
%2 = call aten.mul.Tensor(%0, %1): f32[10, 1003]
%3 = call aten.exp.default(%2): f32[10, 1003]
return %3
""",
    "pointwise_dynamic": """\
symbol s0 in [2, 1048576]
%0 = input "x": f32[s0, 4]
%1 = call aten.sigmoid.default(%0): f32[s0, 4]
%2 = call aten.mul.Tensor(%1, %0): f32[s0, 4]
return %2
""",
    "half": """\
%0 = input "x": bf16[64, 128]
%1 = input "y": f16[64, 128]
%2 = call aten.add.Tensor(%0, %1): f32[64, 128]
%3 = call aten._to_copy.default(%2, dtype=dtype:bf16): bf16[64, 128]
return %3
""",
    "guard_pad": """\
%0 = input "x": f32[8, 100]
%1 = call aten.constant_pad_nd.default(%0, [3, 2, 1, 0], 1.5): f32[9, 105]
return %1
""",
    "guard_cat": """\
%0 = input "x": f32[8, 20]
%1 = input "y": f32[8, 13]
%2 = call aten.cat.default([%0, %1], 1): f32[8, 33]
%3 = call aten.neg.default(%2): f32[8, 33]
return %3
""",
    "gather_strided": """\
%0 = input "x": i64[8, 100] stride [300, 3]
%1 = call aten.add.Tensor(%0, 1): i64[8, 100]
return %1
""",
    "tile_transpose": """\
%0 = input "x": f32[200, 300]
%1 = call aten.permute.default(%0, [1, 0]): f32[300, 200] stride [1, 300]
%2 = call aten.clone.default(%1, memory_format=memory_format:contiguous): f32[300, 200]
return %2
""",
    "rows_softmax": """\
%0 = input "x": f32[64, 300]
%1 = call aten.amax.default(%0, [1], true): f32[64, 1]
%2 = call aten.sub.Tensor(%0, %1): f32[64, 300]
%3 = call aten.exp.default(%2): f32[64, 300]
%4 = call aten.sum.dim_IntList(%3, [1], true): f32[64, 1]
%5 = call aten.div.Tensor(%3, %4): f32[64, 300]
return %5
""",
    "columns_remainder": """\
%0 = input "x": f32[50, 131]
%1 = call aten.sum.dim_IntList(%0, [0]): f32[131]
%2 = call aten.amax.default(%0, [0]): f32[131]
return %1, %2
""",
    "fold_outer_and_inner": """\
%0 = input "x": f32[6, 20, 5, 7]
%1 = call aten.sum.dim_IntList(%0, [0, 2, 3]): f32[20]
return %1
""",
    "fold_everything": """\
%0 = input "x": f32[100, 70]
%1 = call aten.sum.default(%0): f32[]
return %1
""",
    "argmax": """\
%0 = input "x": f32[20, 31]
%1 = call aten.argmax.default(%0, 1): i64[20]
return %1
""",
    "fold_dynamic": """\
symbol s0 in [2, 1048576]
symbol s1 in [2, 1048576]
%0 = input "x": f32[s0, s1]
%1 = call aten.sum.dim_IntList(%0, [1], true): f32[s0, 1]
%2 = call aten.sub.Tensor(%0, %1): f32[s0, s1]
return %2
""",
    "rows_and_columns": """\
%0 = input "x": f32[100, 37]
%1 = input "y": f32[100, 37]
%2 = call aten.mul.Tensor(%0, %1): f32[100, 37]
%3 = call aten.sum.dim_IntList(%2, [1], true): f32[100, 1]
%4 = call aten.sub.Tensor(%2, %3): f32[100, 37]
%5 = call aten.sum.dim_IntList(%4, [0]): f32[37]
%6 = call aten.amax.default(%0, [0]): f32[37]
return %4, %5, %6
""",
    "rows_of_two_axes_and_columns": """\
%0 = input "x": f32[8, 16, 5, 7] stride [560, 35, 1, 5]
%1 = call aten.sum.dim_IntList(%0, [2, 3], true): f32[8, 16, 1, 1]
%2 = call aten.sub.Tensor(%0, %1): f32[8, 16, 5, 7]
%3 = call aten.sum.dim_IntList(%0, [0, 1]): f32[5, 7]
%4 = call aten.gt.Scalar(%0, 0.5): bool[8, 16, 5, 7]
%5 = call aten.any.dims(%4, [0, 1]): bool[5, 7]
return %2, %3, %5
""",
    "any_and_all": """\
%0 = input "x": f32[20, 31]
%1 = call aten.gt.Scalar(%0, 0.5): bool[20, 31]
%2 = call aten.any.dim(%1, 1): bool[20]
return %1, %2
""",
    "overwrite": """\
%0 = input "x": f32[20, 31]
%1 = call aten.mul.Tensor(%0, 0.9): f32[20, 31]
%2 = call aten.copy_.default(%0, %1): f32[20, 31]
return
""",
    "mask_strided": """\
%0 = input "x": f64[8, 4]
%1 = input "m": bool[8, 4] stride [1, 8]
%2 = call aten.where.self(%1, %0, %0): f64[8, 4]
%3 = call aten.neg.default(%0): f64[8, 4]
%4 = call aten.where.self(%1, %2, %3): f64[8, 4]
return %4
""",
    "scan_rows": """\
%0 = input "x": f32[20, 131]
%1 = call aten.exp.default(%0): f32[20, 131]
%2 = call aten.cumsum.default(%1, 1): f32[20, 131]
%3 = call aten.mul.Tensor(%2, %0): f32[20, 131]
return %3
""",
    "scan_columns": """\
%0 = input "x": i64[40, 35]
%1 = call aten.cumprod.default(%0, 0): i64[40, 35]
%2 = call aten.add.Tensor(%1, 1): i64[40, 35]
return %2
""",
}
