"""What a joint graph computes twice is computed once, and nothing that must stay two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fusec.capture.equal_nodes import merge_equal_nodes


def _calls(fn: Callable[..., Any], *inputs: Tensor) -> list[str]:
    """Names of the operators of a function's graph after the pass, which gives what it gave."""
    traced = make_fx(fn, tracing_mode="fake")(*inputs)
    merge_equal_nodes(traced.graph)
    traced.graph.lint()
    traced.recompile()
    results = []
    for run in (traced, fn):
        torch.manual_seed(0)
        copies = [x.clone() for x in inputs]
        results.append((run(*copies), copies))
    torch.testing.assert_close(results[0], results[1])
    return [n.target.__name__.split(".")[0] for n in traced.graph.nodes if n.op == "call_function"]


def test_chains_of_equal_operations_are_one() -> None:
    def fn(x: Tensor) -> Tensor:
        return x.sigmoid().sum(0, keepdim=True) * x.sigmoid().sum([0], keepdim=True) + x.topk(1)[0]

    assert _calls(fn, torch.randn(4, 3)) == "sigmoid sum mul topk getitem add".split()


def _changed(x: Tensor) -> Tensor:
    before = x.sin()
    x.add_(1)
    return before * x.sin()


@pytest.mark.parametrize(
    ("fn", "twice"),
    [
        (lambda x: x * 0.0 + (x * -0.0).reciprocal(), "mul"),
        (lambda x: torch.full_like(x, 1) / torch.full_like(x, True), "full_like"),
        (lambda x: x.sum(0) + x.sum(1), "sum"),
        (lambda x: torch.rand_like(x) - torch.rand_like(x), "rand_like"),
        (lambda x: torch.empty_like(x).fill_(1) + torch.empty_like(x).fill_(2), "empty_like"),
        (lambda x: (x.sin(), x.sin()), "sin"),
        (lambda x: (x.sin().view(-1), x.sin()), "sin"),
        (_changed, "sin"),
    ],
)
def test_what_must_stay_two_stays_two(fn: Callable[..., Any], twice: str) -> None:
    assert _calls(fn, torch.randn(3, 3)).count(twice) == 2
