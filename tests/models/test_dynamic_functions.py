"""Operations over sizes that are symbols, many in one graph: each gives what eager gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from tests.models.training import Backend

# Of one matrix x. Sizes enter as shapes, bounds, coordinates and numbers.
MATRIX: dict[str, Callable[[Tensor], Any]] = {
    "softmax over rows": lambda x: torch.softmax(x, -1),
    "softmax over columns": lambda x: torch.softmax(x, 0),
    "variance": lambda x: (x.var(0), x.std(-1), x.mean()),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "extremes": lambda x: (x.max(0).values, x.argmax(-1), x.amin()),
    "concatenation": lambda x: torch.cat([x, x[:2], x * 2], 0),
    "flattening": lambda x: (x.reshape(-1) + 1, x.t().reshape(-1) * 2),
    "slices": lambda x: (x[:, 1:] * 2, x[::2] + 1, x[: x.shape[0] // 2] * 3, x[-2:].clone()),
    "views": lambda x: (x[:, 1:], x[::2], x.t()),
    "halves": lambda x: [a + 1 for a in x.chunk(2, 0)],
    "a row in the middle": lambda x: x[x.shape[0] // 2] + x[-1],
    "padding": lambda x: F.pad(x, (1, 2, 3, 0)),
    "range": lambda x: torch.arange(x.shape[0])[:, None] + x,
    "running sum": lambda x: torch.cumsum(x * 2, 0) + 1,
    "product": lambda x: torch.relu(x @ x.t()) + 1,
    "outer product": lambda x: (x[:, None] * x[None]).sum(-1),
    "division by a size": lambda x: x.sum() / x.shape[0],
    "root of a size": lambda x: x / math.sqrt(x.shape[-1]),
    "power of a size": lambda x: x * (x.shape[0] ** -0.5),
    "sums of sizes": lambda x: x * (x.shape[0] * x.shape[1] - 1) / (x.shape[0] + 1),
    "rest of a size": lambda x: x * (x.shape[0] % 3),
    "bound from a size": lambda x: x.clamp(max=x.shape[0] / 10),
    "constant of a size": lambda x: torch.full((x.shape[0],), 1.0 / x.shape[0]) + x.sum(-1),
    "reversal": lambda x: (x.flip(0) + 1, x.roll(1, 0) * 2, x.roll(x.shape[0] // 2, 0) - 1),
    "expansion": lambda x: (x[:, None, :].expand(-1, 3, -1) * 2).reshape(-1, x.shape[1]),
    "repetition": lambda x: (x.repeat(2, 3) + 1, x.repeat_interleave(2, 0) + 1),
    "stacking": lambda x: torch.stack([x, x + 1], 1).flatten(0, 1),
    "triangle": lambda x: x.tril() + 1,
    "causal mask": lambda x: torch.where(
        torch.arange(x.shape[1])[None, :] <= torch.arange(x.shape[0])[:, None], x, -math.inf
    ).softmax(-1),
    "choice": lambda x: torch.where(x > 0, x, x.shape[0] * 1.0),
    "gather": lambda x: x.gather(0, x.argsort(0)),
    "index": lambda x: x[torch.arange(x.shape[0] - 1, -1, -1)],
    "scatter": lambda x: torch.slice_scatter(x, x[:2] * 2, 0, 0, 2) + 1,
    "windows": lambda x: x.unfold(0, 2, 1) * 2,
    "cross entropy": lambda x: F.cross_entropy(x, torch.zeros(x.shape[0], dtype=torch.long)),
    "nearest": lambda x: F.interpolate(x[None, None], scale_factor=2.0),
    "bilinear": lambda x: F.interpolate(x[None, None], size=(x.shape[0] * 3, 7), mode="bilinear"),
    "pooling": lambda x: (F.avg_pool2d(x[None, None], 2), F.max_pool2d(x[None, None], 2)),
    "narrow types": lambda x: ((x * 9).to(torch.int8) + 1, (x.bfloat16() * 2).sum(0)),
    "in place": lambda x: x.clone().mul_(2).add_(x),
}
SIZES = [(8, 6), (5, 9), (17, 8), (64, 33), (2, 2)]

# Of several inputs, whose sizes are related in one way or none.
SEVERAL: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "a product": (
        lambda x, y: x @ y + x.sum(-1, keepdim=True),
        lambda n: (_random(n, n + 3), _random(n + 3, n * 2)),
    ),
    "one after the other": (
        lambda x, y: torch.cat([x, y], 0).softmax(0),
        lambda n: (_random(n, 4), _random(2 * n + 1, 4)),
    ),
    "a whole number": (
        lambda x, n: x[:n] * n + x.shape[0] - n,
        lambda n: (_random(n + 4, 3), n // 2 + 2),
    ),
    "a number that is divided": (
        lambda x, n: x * (n**2) / (n + 1),
        lambda n: (_random(n, 3), n // 2 + 2),
    ),
    "a cache that is written": (
        lambda cache, x, n: _write(cache, x, n),
        lambda n: (torch.zeros(2, 64, 4), _random(2, n, 4), n // 2),
    ),
    "rows that overlap others": (
        lambda x: (x.relu() + 1).sum(0),
        lambda n: (_random(2 * n, n + 1)[::2].t(),),
    ),
    "channels last": (
        lambda x: F.relu(x * 2).mean((2, 3)),
        lambda n: (_random(n, 3, n + 1, n + 2).to(memory_format=torch.channels_last),),
    ),
    "convolution": (
        lambda x: F.conv2d(x, torch.ones(4, 3, 3, 3), stride=2, padding=1).relu() + 1,
        lambda n: (_random(2, 3, n + 3, n + 4),),
    ),
    "a number returned": (lambda x: (x * 2, x.shape[0] * 2), lambda n: (_random(n, n + 2),)),
}


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _write(cache: Tensor, x: Tensor, start: int) -> Tensor:
    cache[:, start : start + x.shape[1]] = x
    return cache[:, : start + x.shape[1]].sum(1) * 2


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _differences(names: list[str], got: list[Any], expected: list[Any]) -> list[str]:
    found = []
    for name, a, b in zip(names, got, expected, strict=True):
        try:
            tolerance = 2e-2 if isinstance(b, Tensor) and b.dtype == torch.bfloat16 else 2e-5
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
        except AssertionError as error:
            found.append(f"{name}: {error}")
    return found


def _all(x: Tensor) -> list[list[Any]]:
    return [pytree.tree_leaves(f(x)) for f in MATRIX.values()]


@pytest.mark.parametrize(
    "grad",
    [False, pytest.param(True, marks=pytest.mark.extended)],
    ids=["inference", "training"],
)
def test_functions_of_a_matrix(grad):
    """One graph for all sizes but 2, of which the half is 1: torch makes a graph of its own."""
    torch._dynamo.reset()
    backend = Backend()
    compiled = torch.compile(_all, backend=backend, dynamic=True)
    for size in SIZES:
        x, y = (_random(*size).requires_grad_(grad) for _ in range(2))
        expected, got = _all(x), compiled(y)
        names = [n for n, part in zip(MATRIX, expected) for _ in part]
        flat = [[t for part in parts for t in part] for parts in (got, expected)]
        faults = _differences(names, *flat)
        if grad:
            for leaf, values in ((x, flat[1]), (y, flat[0])):
                smooth = [t for t in values if t.requires_grad]
                torch.autograd.backward([t.float().sin().sum() for t in smooth])
                assert leaf.grad is not None
            faults += _differences(["gradient"], [y.grad / 100], [x.grad / 100])
        assert not faults, f"{size}:\n" + "\n".join(faults)
    assert not backend.fallbacks()
    assert backend.count("graphs") <= (4 if grad else 2)


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("dynamic", [True, None], ids=["symbols", "automatic"])
def test_functions_of_several_inputs(name, dynamic):
    """Sizes 0 and 1 too, for which torch makes graphs of their own."""
    function, make = SEVERAL[name]
    torch._dynamo.reset()
    backend = Backend()
    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    for n in (8, 5, 17, 30, 1, 0):
        inputs, copies = make(n), [_copy(x) for x in make(n)]
        try:
            expected = [*pytree.tree_leaves(function(*inputs)), *inputs]
        except RuntimeError:
            continue  # eager refuses this size
        with torch.no_grad():
            got = [*pytree.tree_leaves(compiled(*copies)), *copies]
        faults = _differences([str(i) for i in range(len(got))], got, expected)
        assert not faults, f"{n}:\n" + "\n".join(faults)
    assert not backend.fallbacks()
    assert backend.graphs <= 5


def _of_the_input(x: Tensor) -> list[Tensor]:
    return [x[1:, ::2].reshape(-1), x[::2].flatten(), x[:, 1:].t(), x.view(-1)[3:]]


def _of_what_is_made(x: Tensor) -> list[Tensor]:
    y = x * 2
    return [y, y[1:, ::2].reshape(-1), y[:, 1:].t()]


@pytest.mark.parametrize("function", [_of_the_input, _of_what_is_made])
def test_views_of_sizes_as_symbols_lie_where_eagers_lie(function):
    """Whether a reshape is a view depends on the sizes, and only on guards of torch's."""
    torch._dynamo.reset()
    backend = Backend()
    compiled = torch.compile(function, backend=backend, dynamic=True)
    for size in ((5, 12), (4, 33), (33, 8), (6, 7), (7, 4)):
        x = _random(*size)
        with torch.no_grad():
            expected, got = function(x), compiled(x)
        for a, b in zip(got, expected, strict=True):
            assert a.stride() == b.stride()
            assert a.storage_offset() == b.storage_offset()
            torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert not backend.fallbacks()
