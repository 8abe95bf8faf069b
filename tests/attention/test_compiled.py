"""Attention in compiled programs: the operators as calls of a plan, forward and backward."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.prewarm_keys import CASES
from fusec.attention.attend import attend
from tests.models.training import Backend

# Dynamo itself looks at the gradient of every input.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def step(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    out = attend(q * 2, k + 1, v, mask).transpose(1, 2).flatten(2)
    return torch.nn.functional.silu(out)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_a_plan_calls_the_operators(device: str) -> None:
    backend = Backend()
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 8, 4, 16, device=device).transpose(1, 2) for _ in range(3))
    mask = torch.randn(8, 8, device=device)
    compiled = torch.compile(step, backend=backend)
    given = [x.detach().requires_grad_() for x in (q, k, v, mask)]
    out = compiled(*given)
    grads = torch.autograd.grad(out, given, torch.cos(out.detach()))
    expected = step(*given)
    wanted = torch.autograd.grad(expected, given, torch.cos(expected.detach()))
    torch.testing.assert_close(out, expected, rtol=2e-5, atol=2e-5)
    for mine, eager in zip(grads, wanted, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(q, k, v, mask), expected, rtol=2e-5, atol=2e-5)
    assert not backend.fallbacks()
    assert backend.count("fallback_calls") == 0
    assert backend.count("external_calls") == 3


def results(function: Any, args: tuple[Any, ...], model: Any) -> list[Tensor]:
    out = function(*args)
    out.float().sin().sum().backward()
    return [out.detach(), *(p.grad for p in model.parameters())]


@GPU
@pytest.mark.parametrize("name", ["llama-fp32", "llama-bf16", "llama-dynamic", "bert-mask", "conv"])
def test_models_train_as_in_eager(name: str) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    with torch.device("cuda"):
        model, args, _ = case.make()
    assert isinstance(model, torch.nn.Module)
    compiled, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    backend = Backend()
    ours = results(torch.compile(compiled, backend=backend, dynamic=case.dynamic), args, compiled)
    eager = results(model, args, model)
    wide = tuple(x.double() if x.is_floating_point() else x for x in args)
    truth = results(exact, wide, exact)
    assert not backend.fallbacks()
    for mine, theirs, right in zip(ours, eager, truth, strict=True):
        error = (mine.double() - right).norm().item()
        of_eager = (theirs.double() - right).norm().item()
        # Of sums over a batch and layers, in an order that the tuned kernels choose.
        rounding = 8 * torch.finfo(mine.dtype).eps * right.norm().item()
        assert error <= max(2 * of_eager, rounding)
