"""Runs a function eager, as a front miss and as a front hit, and compares all that it does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tests.capture.twin import Twin


@dataclass
class Outcome:
    """What one way of running gave: outputs, gradients, state of module and inputs afterwards."""

    values: list[Any] = field(default_factory=list)


@dataclass
class Ways:
    """The twins of the miss and of the hit."""

    miss: Twin
    hit: Twin


Case = Callable[[Callable[..., Any], Any], Any]
"""case(compile, subject) -> values to compare: compile is torch.compile or the identity."""


def three_ways(case: Case, subject: Any = None, *, eligible: bool = True, graphs: int = 1) -> Ways:
    """Run `case` eager, with an empty store, and with the store that the second run filled.

    subject: a module or anything else, copied for each way. eligible: whether a front hit is
    expected; graphs: how many graphs Dynamo makes. Fails when any value differs.
    """
    torch.manual_seed(0)
    expected = case(lambda f, **_: f, copy.deepcopy(subject))
    miss = Twin()
    got = _run(case, subject, miss)
    compare(expected, got, "miss")
    hit = Twin(miss.store)
    got = _run(case, subject, hit)
    compare(expected, got, "hit")
    assert miss.count("fallbacks_to_eager") == hit.count("fallbacks_to_eager") == 0
    if eligible:
        assert hit.count("front_hits") == graphs, hit.recorder.counters
        assert "trace" not in hit.recorder.stages
    else:
        assert hit.count("front_hits") == 0, hit.recorder.counters
        assert hit.count("graph_misses") == 0  # the graph key serves
    return Ways(miss, hit)


def _run(case: Case, subject: Any, twin: Twin) -> Any:
    torch._dynamo.reset()
    torch.manual_seed(0)
    compile_ = lambda f, **kwargs: torch.compile(f, backend=twin, **kwargs)  # noqa: E731
    return case(compile_, copy.deepcopy(subject))


def compare(expected: Any, got: Any, where: str) -> None:
    """Equal structure; tensors of one dtype, shape, stride and (nearly) one value."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(got, torch.Tensor), f"{where}: {got!r} is no tensor"
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape), where
        assert got.requires_grad == expected.requires_grad, where
        torch.testing.assert_close(got.detach(), expected.detach(), rtol=2e-5, atol=2e-5)
    elif isinstance(expected, nn.Module):
        assert isinstance(got, nn.Module)
        for (name, a), (_, b) in zip(expected.named_parameters(), got.named_parameters()):
            compare(a.grad, b.grad, f"{where}: gradient of {name}")
        for (name, a), (_, b) in zip(expected.named_buffers(), got.named_buffers()):
            compare(a, b, f"{where}: buffer {name}")
    elif isinstance(expected, (list, tuple)):
        assert len(expected) == len(got), where
        for i, (a, b) in enumerate(zip(expected, got)):
            compare(a, b, f"{where}[{i}]")
    else:
        assert expected == got, f"{where}: {got!r} is not {expected!r}"


def leaf(*shape: int, seed: int = 1) -> Tensor:
    """Random numbers that want a gradient."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def net() -> nn.Module:
    """A small network: 6 features to 4."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4))


def graphs_of(case: Case, subject: Any) -> int:
    """How many graphs Dynamo cuts a case into."""
    twin = Twin()
    torch._dynamo.reset()
    case(lambda f, **kw: torch.compile(f, backend=twin, **kw), subject)
    return len(twin.graphs)
