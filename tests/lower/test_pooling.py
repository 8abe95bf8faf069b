"""Pooling, both ways: windows that overlap, are cut, reach into the padding or tile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.lower.harness import (
    Compiled,
    check_batch,
    compare_with_eager,
    compile_and_compare,
    values_differ,
)
from tests.lower.on_cpu import OnCpu, captured, cuda_graph

_AVERAGES: dict[str, Callable[..., Any]] = {
    "tiles": lambda x: F.avg_pool2d(x, 2),
    "overlap": lambda x: F.avg_pool2d(x, 3, 1, 1),
    "stride": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "ceil": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "ceil_inside": lambda x: F.avg_pool2d(x, 2, 2, ceil_mode=True, count_include_pad=False),
    "divisor": lambda x: F.avg_pool2d(x, (2, 3), (1, 2), (1, 0), divisor_override=5),
    "gaps": lambda x: F.avg_pool2d(x, 2, 3),
    "large": lambda x: F.avg_pool2d(x, 7, 2, 3),
    "large_tiles": lambda x: F.avg_pool2d(x, (6, 12)),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
    "adaptive_one": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive_uneven": lambda x: F.adaptive_avg_pool2d(x, (5, 7)),
    "one_dimension": lambda x: F.avg_pool1d(x[0], 3, 2, 1),
    "three_dimensions": lambda x: F.avg_pool3d(x, 2, 1, 1),
    "fused": lambda x: F.avg_pool2d(x.relu() * 2, 3, 2).tanh() + 1,
    "local_response_norm": lambda x: F.local_response_norm(x, 3),
}
_MAXIMA: dict[str, Callable[..., Any]] = {
    "tiles": lambda x: F.max_pool2d(x, 2, return_indices=True),
    "overlap": lambda x: F.max_pool2d(x, 3, 1, 1, return_indices=True),
    "stride": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "ceil": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True, return_indices=True),
    "ceil_pad": lambda x: F.max_pool2d(x, (2, 4), (2, 3), (1, 2), 1, True, return_indices=True),
    "gaps": lambda x: F.max_pool2d(x, 2, 3, return_indices=True),
    "large": lambda x: F.max_pool2d(x, 6, 2, 3, return_indices=True),
    "dilated": lambda x: F.max_pool2d(x, 2, 1, 0, 2, return_indices=True),
    "one_dimension": lambda x: F.max_pool1d(x[0], 3, 2, 1),
    "three_dimensions": lambda x: F.max_pool3d(x, 2, 1, 1),
    "fused": lambda x: F.max_pool2d(x.abs() - 1, 3, 2).exp() * 2,
}


@pytest.mark.parametrize(
    ("dtype", "last"),
    [
        (torch.float32, True),
        (torch.bfloat16, False),
        pytest.param(torch.float32, False, marks=pytest.mark.extended),
        pytest.param(torch.float64, True, marks=pytest.mark.extended),
        pytest.param(torch.float16, False, marks=pytest.mark.extended),
    ],
)
def test_every_window(dtype: torch.dtype, last: bool) -> None:
    g = torch.Generator().manual_seed(0)
    # Few different values: maxima repeat within a window.
    x = torch.randint(-4, 5, (2, 3, 12, 24), generator=g).to(dtype) / 2
    if last:
        x = x.to(memory_format=torch.channels_last)
    assert (
        check_batch([*_AVERAGES.items(), *((f"max_{k}", v) for k, v in _MAXIMA.items())], x) == {}
    )


def test_averages_are_loops() -> None:
    x = torch.randn(2, 3, 12, 24)

    def each(x: torch.Tensor) -> list[torch.Tensor]:
        return [fn(x) for name, fn in _AVERAGES.items() if name != "adaptive_uneven"]

    assert compile_and_compare(each, x).calls == []
    assert compile_and_compare(_AVERAGES["fused"], x).recorder.counters["kernels"] == 1
    assert compile_and_compare(_MAXIMA["stride"], x).calls == []
    assert compile_and_compare(lambda x: F.avg_pool2d(x, 3, 2, 1), x.long()).calls != []


def test_nan_and_infinity() -> None:
    x = torch.full((1, 1, 8, 8), -torch.inf)
    x[0, 0, 2, 3], x[0, 0, 3, 2], x[0, 0, 6, 6] = torch.nan, torch.nan, torch.inf
    assert check_batch([*_MAXIMA.items(), *_AVERAGES.items()], x) == {}


@pytest.mark.parametrize("name", ["stride", "ceil", "tiles"])
def test_gradients_on_a_cpu(name: str) -> None:
    for table in (_AVERAGES, _MAXIMA):
        fn = table[name]

        def loss(x: torch.Tensor, fn: Callable[..., Any] = fn) -> torch.Tensor:
            found = fn(x)
            found = found if isinstance(found, torch.Tensor) else found[0]
            return (found * found).sum()

        mine, theirs = (torch.arange(864.0).view(1, 3, 12, 24).sin().requires_grad_() for _ in "ab")
        Compiled(loss)(mine).backward()
        loss(theirs).backward()
        torch.testing.assert_close(mine.grad, theirs.grad)


def _gradients(x: torch.Tensor) -> list[torch.Tensor]:
    """The operators that gradients are made of, each of a loss over squares."""
    aten = torch.ops.aten
    found = []
    for kernel, stride, pad, ceil in (
        ([2, 2], [2, 2], [0, 0], False),
        ([3, 3], [2, 2], [1, 1], False),
        ([3, 3], [1, 1], [1, 1], False),
        ([3, 3], [2, 2], [1, 1], True),
        ([2, 3], [3, 2], [0, 1], False),
    ):
        best, where = aten.max_pool2d_with_indices(x, kernel, stride, pad, [1, 1], ceil)
        found.append(
            aten.max_pool2d_with_indices_backward(
                best * 2, x, kernel, stride, pad, [1, 1], ceil, where
            )
        )
        for include, divisor in ((True, None), (False, None), (True, 3)):
            mean = aten.avg_pool2d(x, kernel, stride, pad, ceil, include, divisor)
            found.append(
                aten.avg_pool2d_backward(mean, x, kernel, stride, pad, ceil, include, divisor)
            )
    found.append(aten._adaptive_avg_pool2d_backward(x[:, :, :3, :4], x))
    size = [2, 3, 6, 8]
    found.append(aten.upsample_nearest2d_backward(x, [12, 24], size))
    best, where = aten.max_pool3d_with_indices(x, [2, 2, 3], [1, 2, 2], [0, 1, 1])
    found.append(
        aten.max_pool3d_with_indices_backward(
            best, x, [2, 2, 3], [1, 2, 2], [0, 1, 1], [1, 1, 1], False, where
        )
    )
    return found


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.extended)]
)
def test_gradients_of_a_gpu_graph_gather(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 12, 24).to(dtype)
    run = OnCpu(cuda_graph(captured(_gradients, [x])))
    assert run.calls == []
    wide = _gradients(x.double())
    for n, (got, want, exact) in enumerate(zip(run(x), _gradients(x), wide, strict=True)):
        assert values_differ(got, want, exact) is None, n


def test_sizes_known_at_the_call() -> None:
    def fn(x: torch.Tensor) -> Any:
        return (
            F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            F.avg_pool2d(x, 2, ceil_mode=True),
            F.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True),
        )

    compiled = Compiled(fn, dynamic=True)
    for shape in ((2, 3, 9, 12), (5, 3, 8, 7), (2, 4, 31, 5)):
        compare_with_eager(compiled, fn, torch.randn(shape))


def test_padding_is_zero_whatever_is_fused_into_a_window() -> None:
    """What is computed from nothing is not nothing: exp(0) is 1, and a constant reads no memory."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(1, 5, 17, generator=generator)
    for function in (
        lambda x: F.avg_pool1d(x.exp(), 3, 1, 1),
        lambda x: F.avg_pool1d(torch.full_like(x, 2.0), 3, 1, 1),
        lambda x: F.avg_pool2d((x + 1)[None], 3, 2, 1, True),
        lambda x: F.max_pool2d(x.exp()[None] - 3, 3, 1, 1),
    ):
        compile_and_compare(function, x)
