"""What the search makes of known networks' parts for a GPU: how often memory is walked."""

from __future__ import annotations

from fusec.schedule.cost import GPU, points
from fusec.schedule.groups import Schedule
from fusec.schedule.kernel_loop import read_outside
from fusec.schedule.search import schedule
from fusec.schedule.split_folds import split_folds
from fusec.schedule.verify import verify_schedule
from tests.schedule.programs import dissolved

_LOG_SOFTMAX = """\
%0 = input "x": bf16[8192, 128256]
%1 = call aten.amax.default(%0, [1], true): bf16[8192, 1]
%2 = call aten.sub.Tensor(%0, %1): bf16[8192, 128256]
%3 = call aten.exp.default(%2): bf16[8192, 128256]
%4 = call aten.sum.dim_IntList(%3, [1], true): bf16[8192, 1]
%5 = call aten.log.default(%4): bf16[8192, 1]
%6 = call aten.sub.Tensor(%2, %5): bf16[8192, 128256]
return %6
"""
_GATED = """\
%0 = input "x": f32[64, 4096]
%1 = input "y": f32[64, 4096]
%2 = call aten.sigmoid.default(%0): f32[64, 4096]
%3 = call aten.mul.Tensor(%2, %1): f32[64, 4096]
%4 = call aten.mul.Tensor(%3, %2): f32[64, 4096]
%5 = call aten.sum.dim_IntList(%4, [0, 1]): f32[]
%6 = call aten.add.Tensor(%4, %5): f32[64, 4096]
return %6
"""


def _for_gpu(text: str) -> Schedule:
    found = schedule(split_folds(dissolved(text), GPU), machine=GPU)
    verify_schedule(found)
    return found


def test_rows_that_the_cache_holds_are_walked_by_one_kernel() -> None:
    assert [str(g.space) for g in _for_gpu(_LOG_SOFTMAX).groups] == ["(8192, fold 128256)"]


def test_a_repeated_value_brings_what_it_is_made_of() -> None:
    """The values of the first pass are computed again in the last: nothing large is stored."""
    found = _for_gpu(_GATED)
    stored = {b for buffers in read_outside(found).values() for b in buffers}
    large = [b for b in stored if points(found.program.buffers[b].shape) >= 64 * 4096]
    assert len(large) == 1  # what is returned


_AT = "[64, 64, 56, 56] stride [200704, 1, 3584, 64]"
_BATCH_NORM_BACKWARD = f"""\
%0 = input "x": bf16{_AT}
%1 = input "w": bf16[64, 1, 1]
%2 = input "b": bf16[64, 1, 1]
%3 = input "mean": f32[1, 64, 1, 1]
%4 = input "rstd": f32[1, 64, 1, 1]
%5 = input "grad": bf16{_AT}
%6 = call aten.sub.Tensor(%0, %3): f32{_AT}
%7 = call aten.mul.Tensor(%6, %4): f32{_AT}
%8 = call aten.mul.Tensor(%7, %1): f32{_AT}
%9 = call aten.add.Tensor(%8, %2): f32{_AT}
%10 = call aten.le.Scalar(%9, 0): bool{_AT}
%11 = call aten.masked_fill.Scalar(%5, %10, 0): bf16{_AT}
%12 = call aten._to_copy.default(%11, dtype=dtype:f32): f32{_AT}
%13 = call aten._to_copy.default(%3, dtype=dtype:bf16): bf16[1, 64, 1, 1]
%14 = call aten.sum.dim_IntList(%12, [0, 2, 3], true): f32[1, 64, 1, 1]
%15 = call aten._to_copy.default(%0, dtype=dtype:f32): f32{_AT}
%16 = call aten.sub.Tensor(%15, %13): f32{_AT}
%17 = call aten.mul.Tensor(%12, %16): f32{_AT}
%18 = call aten.sum.dim_IntList(%17, [0, 2, 3], true): f32[1, 64, 1, 1]
%19 = call aten.mul.Tensor(%16, %18): f32{_AT}
%20 = call aten.sub.Tensor(%12, %19): f32{_AT}
%21 = call aten.sub.Tensor(%20, %14): f32{_AT}
%22 = call aten.mul.Tensor(%21, %4): f32{_AT}
%23 = call aten._to_copy.default(%22, dtype=dtype:bf16): bf16{_AT}
return %23, %14, %18
"""


def test_the_gradient_of_a_batch_norm_stores_nothing_large_between() -> None:
    found = _for_gpu(_BATCH_NORM_BACKWARD)
    assert len(found.groups) == 3  # chunks of both sums, the sums, the gradient
    stored = {b for buffers in read_outside(found).values() for b in buffers}
    large = [b for b in stored if points(found.program.buffers[b].shape) >= 1 << 22]
    assert len(large) == 1  # what is returned
