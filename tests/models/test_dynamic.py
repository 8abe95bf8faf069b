"""Sizes as symbols: one artifact serves many sizes, and gives what eager gives for each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fusec.demo.models import Example, build
from tests.models import torch_zoo
from tests.models.training import Backend, compare_passes


def _text(batch: int, length: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(batch * 100 + length)
    # Clones: two views of one tensor would make Dynamo watch the size of that tensor too.
    return tuple(x.clone() for x in torch.randint(0, 96, (2, batch, length), generator=generator))


def _rows(batch: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(batch)
    x = torch.randn(batch, 32, generator=generator)
    return x, torch.randint(0, 10, (batch,), generator=generator)


def _images(batch: int, edge: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(batch * 100 + edge)
    x = torch.randn(batch, 3, edge, edge, generator=generator)
    return x, torch.randint(0, 10, (batch,), generator=generator)


def _llama() -> Example:
    return build("llama", layers=1, hidden=64, batch=2, length=8, vocab=96)


def _convnet() -> Example:
    return build("convnet", layers=2, hidden=16, batch=4, length=8, vocab=10)


CASES = {
    "mlp": (lambda: torch_zoo.example("mlp"), lambda: [_rows(n) for n in (4, 7, 16, 33)]),
    "llama": (_llama, lambda: [_text(*n) for n in ((2, 8), (3, 8), (3, 13), (5, 31))]),
    "convnet": (_convnet, lambda: [_images(*n) for n in ((4, 8), (6, 8), (6, 16), (3, 32))]),
}


def _run(name: str, dynamic: bool | None) -> list[int]:
    """Train on inputs of several sizes with one compiled model; fails where eager differs.

    The result counts, after each size, the graphs that were made so far.
    """
    make, inputs = CASES[name]
    torch._dynamo.reset()
    backend = Backend()
    model = make().model
    compiled = torch.compile(model, backend=backend, dynamic=dynamic)
    counts = []
    for given in inputs():  # new tensors: Dynamo marks those that it has seen vary
        faults = compare_passes(model, compiled, given)
        assert not faults, f"{[tuple(x.shape) for x in given]}:\n" + "\n".join(faults)
        counts.append(backend.count("graphs"))
    assert not backend.fallbacks()
    return counts


def _names(slow: str) -> list[Any]:
    return [pytest.param(n, marks=[pytest.mark.extended] if n == slow else []) for n in CASES]


@pytest.mark.parametrize("name", _names(slow="llama"))
def test_one_artifact_serves_many_sizes(name):
    """However often Dynamo traced the first size, forward and backward serve all that follow."""
    assert _run(name, dynamic=True) == [2] * 4


@pytest.mark.parametrize("name", _names(slow="convnet"))
def test_sizes_that_turn_out_to_vary(name):
    """The first size is taken as fixed; a forward and a backward for each size that changes."""
    counts = _run(name, dynamic=None)
    assert counts == {"mlp": [2, 4, 4, 4], "llama": [2, 4, 6, 6], "convnet": [2, 4, 6, 6]}[name]
