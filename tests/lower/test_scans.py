"""Cumulative sums, products, extremes and logarithms: every axis, layout and dtype, fused with what
is around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fusec.errors import VerifyError
from fusec.ir.loop import Reduction
from fusec.ir.loop_text import format_program
from fusec.ir.verify_loop import verify_program
from tests.lower.harness import Compiled, check_batch, compare_with_eager, compile_and_compare
from tests.lower.on_cpu import OnCpu
from tests.lower.samples import values
from tests.schedule.programs import dissolved, kernels, scheduled

_CASES: dict[str, Callable[..., Any]] = {
    "each_axis": lambda x: [x.cumsum(d) for d in range(3)],
    "products": lambda x: [x.cumprod(d) for d in range(-1, 2)],
    "fused": lambda x: (x * 2 + 1).cumsum(1).neg() * x,
    "two": lambda x: (x.cumsum(1) - (x * x).cumsum(1), x.cumsum(-1).cumsum(-1)),
    "of_views": lambda x: (x.transpose(0, 2).cumsum(0), x[:, ::2].cumsum(1), x[:1].cumsum(0)),
    "backwards": lambda x: x.flip(1).cumsum(1).flip(1),
    "expanded": lambda x: x[:, :1].expand(-1, 4, -1).cumsum(1),
    "then_folded": lambda x: (x.cumsum(2).sum(2), x.cumsum(2).amax(2), x.cumsum(1).sum(0)),
    "types": lambda x: (x.cumsum(1, dtype=torch.float64), x.cumsum(0, dtype=torch.int32)),
    "mask": lambda x: (x > 0).cumsum(1) * (x > 0),
    "extremes": lambda x: [found for d in range(3) for found in (*x.cummax(d), *x.cummin(d))],
    "extremes_fused": lambda x: ((x * 2).cummax(2).values - x, x.flip(1).cummin(1).indices.flip(1)),
    "logs": lambda x: [x.logcumsumexp(d) for d in range(3)],
    "logs_fused": lambda x: (x * 30).logcumsumexp(1) - x,
    "reshaped": lambda x: x.reshape(-1, 19).cumsum(1).view(x.shape) + x,
}


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]
)
def test_every_function(dtype: torch.dtype) -> None:
    assert check_batch(list(_CASES.items()), values((5, 37, 19), dtype)) == {}


def test_nothing_is_left_to_aten_and_softmax_fuses_with_its_scan() -> None:
    x = torch.randn(30, 133)
    compiled = compile_and_compare(
        lambda x: x.softmax(-1).sort(-1).values.cumsum(-1) + x.softmax(-1).cumsum(-1), x
    )
    assert [target for target, _ in compiled.calls] == ["aten.sort.default"]
    assert (
        compile_and_compare(lambda x: x.softmax(-1).cumsum(-1), x).recorder.counters["kernels"] == 1
    )


def test_values_and_places_of_extremes_come_of_one_kernel() -> None:
    compiled = compile_and_compare(lambda x: x.cummax(-1), torch.randn(30, 133))
    assert compiled.calls == []
    assert compiled.recorder.counters["kernels"] == 1


def test_sizes_known_at_the_call_and_gradients() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        logs = x.logcumsumexp(0) + x.cummax(1).values * x.cummin(0).indices
        return (x.cumsum(0).tanh() + x.cumprod(1) + logs).cumsum(1)

    compiled = Compiled(fn, dynamic=True)
    for shape in ((6, 9), (1, 9), (300, 3), (4, 700)):
        x = torch.rand(shape) + 0.5
        compare_with_eager(compiled, fn, x)
    mine, theirs = ((torch.ones(6, 9) / 3).requires_grad_() for _ in range(2))
    Compiled(fn)(mine).square().sum().backward()
    fn(theirs).square().sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-4)


def test_nan_and_infinity_stay_where_they_begin() -> None:
    x = torch.ones(3, 40)
    x[0, 7], x[1, 9], x[1, 30], x[2, 0] = torch.nan, torch.inf, -torch.inf, -torch.inf
    found = check_batch(
        [
            ("sum", lambda x: x.cumsum(1)),
            ("prod", lambda x: x.cumprod(1)),
            ("max", lambda x: x.cummax(1)),
            ("min", lambda x: (x.cummin(1), x.t().contiguous().cummin(0))),
            ("log", lambda x: (x.logcumsumexp(1), x.t().contiguous().logcumsumexp(0))),
            ("nothing", lambda x: (x - torch.inf).nan_to_num(neginf=-torch.inf).logcumsumexp(1)),
        ],
        x,
    )
    assert found == {}
    assert check_batch([("empty", lambda x: (x[:0].cumsum(0), x[:, :0].cumsum(0)))], x) == {}


def test_finished_and_running_results_are_used_apart() -> None:
    """A share of the total needs the total: it reads the scan in another walk."""
    text = """\
%0 = input "x": f64[40, 50]
%1 = call aten.cumsum.default(%0, 1): f64[40, 50]
%2 = call aten.sum.dim_IntList(%0, [1], true): f64[40, 1]
%3 = call aten.div.Tensor(%1, %2): f64[40, 50]
return %3
"""
    assert len(kernels(scheduled(text))) == 2
    x = torch.rand(40, 50, dtype=torch.float64)
    compile_and_compare(lambda x: x.cumsum(1) / x.sum(1, keepdim=True), x)


def test_a_gpu_accumulates_in_the_compute_type_and_leaves_one_long_row() -> None:
    text = """\
%0 = input "x": f32[64, 50] @cuda
%1 = input "y": f32[3, 65536] @cuda
%2 = call aten.cumsum.default(%0, 1): f32[64, 50] @cuda
%3 = call aten.cumsum.default(%1, 1): f32[3, 65536] @cuda
return %2, %3
"""
    program = dissolved(text)
    assert "f64" not in format_program(program)
    run = OnCpu(text)
    assert run.calls == ["aten.cumsum.default"]
    x, y = torch.randn(64, 50), torch.randn(3, 65536)
    for got, source in zip(run(x, y), (x, y), strict=True):
        torch.testing.assert_close(got, source.cumsum(1), rtol=1e-4, atol=1e-3)


def test_a_scan_is_verified() -> None:
    from dataclasses import replace

    program = dissolved(
        '%0 = input "x": f64[4, 5]\n%1 = call aten.cumsum.default(%0, 1): f64[4, 5]\nreturn %1\n'
    )
    (step,) = program.steps
    for wrong in (
        Reduction("cumsum", step.axes, step.axes),
        Reduction("sum", step.reduction.axes, step.axes),
        Reduction("cumsum", step.reduction.axes, step.axes[::-1]),
    ):
        with pytest.raises(VerifyError):
            verify_program(replace(program, steps=(replace(step, reduction=wrong),)))


def test_scans_written_over_inputs() -> None:
    """What overwrites an input may be what a scan of the same loop gives, of that input too."""

    def fn(x: torch.Tensor, o: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        o.copy_(x.cumsum(1) + o)
        s.copy_(x.sum(0))
        x.copy_(x.cumprod(1) * o)
        return o + 1, s, x.cummax(1)[0]

    x = values((9, 37), torch.float32)
    compile_and_compare(fn, x, x.flip(0), x[0] * 0)
    compile_and_compare(lambda x: (x.cumsum_(1), x.sum(0)), x)
