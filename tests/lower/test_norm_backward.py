"""Gradients of norms: sums over rows and over columns of the same values, in one pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.lower.harness import Compiled, compare_with_eager


def _rms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w


def _layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, w.shape, w, b)


def _both_ways(fn: Callable[..., torch.Tensor]) -> Callable[..., list[torch.Tensor]]:
    """The result and its gradients for fixed weights of its elements."""

    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        leaves = [x.detach().requires_grad_() for x in inputs]
        out = fn(*leaves)
        weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape)
        grads = torch.autograd.grad((out * weights.to(out.dtype)).sum(), leaves)
        return [x.detach() for x in (out, *grads)]

    return run


@pytest.mark.parametrize(
    ("fn", "shape", "weight", "dtype"),
    [
        (_layer, (1024, 131), (131,), torch.float32),
        (_layer, (512, 33), (33,), torch.bfloat16),
        (_layer, (16, 128, 96), (96,), torch.float32),
        (_layer, (128, 20, 33), (20, 33), torch.float32),  # rows of two axes
        (_rms, (1000, 120), (120,), torch.float32),
        (_rms, (16, 32, 4, 24), (4, 24), torch.float32),  # heads beside the rows
    ],
)
def test_norms(fn: Any, shape: tuple[int, ...], weight: tuple[int, ...], dtype: Any) -> None:
    inputs = [torch.randn(shape, dtype=dtype), torch.randn(weight, dtype=dtype)]
    if fn is _layer:
        inputs.append(torch.randn(weight, dtype=dtype))
    compiled = Compiled(fn)
    compare_with_eager(_both_ways(compiled), _both_ways(fn), *inputs)
    assert not compiled.fallbacks
