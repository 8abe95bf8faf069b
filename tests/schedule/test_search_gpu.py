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
