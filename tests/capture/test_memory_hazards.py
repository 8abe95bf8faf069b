"""A front hit is as right as a miss where tensors share memory, change or lie otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.capture.harness import leaf, three_ways
from tests.capture.twin import Twin

# Dynamo itself looks at the gradient of every input.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


def test_one_tensor_given_twice() -> None:
    def f(a: Tensor, b: Tensor) -> Tensor:
        return a * b.sin()

    def case(compiled: Any, _: None) -> Any:
        x = leaf(4)
        y = compiled(f)(x, x)
        y.sum().backward()
        return y, x.grad

    three_ways(case)


def test_inputs_that_share_memory() -> None:
    def f(a: Tensor, b: Tensor) -> Tensor:
        return a * b.sin()

    def case(compiled: Any, _: None) -> Any:
        base = leaf(8)
        y = compiled(f)(base[:4], base[2:6])
        y.sum().backward()
        return y, base.grad

    three_ways(case)


def test_sharing_memory_is_in_the_key() -> None:
    def f(a: Tensor, b: Tensor) -> Tensor:
        return a * b.sin()

    base = torch.ones(8)
    twin = Twin()
    torch.compile(f, backend=twin)(base[:4], base[4:])
    torch._dynamo.reset()
    other = Twin(twin.store)
    torch.compile(f, backend=other)(torch.ones(4), torch.ones(4))
    assert (other.count("front_hits"), other.count("graph_hits")) == (0, 1)


def test_views_as_inputs() -> None:
    def f(a: Tensor, b: Tensor) -> Tensor:
        return a.exp() + b.t()

    def case(compiled: Any, _: None) -> Any:
        base, other = leaf(6, 4), leaf(3, 8)
        y = compiled(f)(base[1:4], other.t()[::2])
        y.sum().backward()
        return y, base.grad, other.grad

    three_ways(case)


def test_output_that_is_a_view_of_an_input() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.t(), x.sin()

    def case(compiled: Any, _: None) -> Any:
        x = torch.ones(3, 4)
        view, y = compiled(f)(x)
        view.mul_(2)
        return x, view, y

    three_ways(case, eligible=False)


def test_outputs_that_share_memory() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sin()
        return y, y.view(-1)[2:]

    def case(compiled: Any, _: None) -> Any:
        x = leaf(3, 4)
        y, view = compiled(f)(x)
        (y.sum() + view.sum()).backward()
        return y, view, x.grad

    three_ways(case, eligible=False)


def test_input_changed_in_place() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x * y

    def case(compiled: Any, _: None) -> Any:
        x, y = torch.ones(4), leaf(4)
        version = x._version
        z = compiled(f)(x, y)
        z.sum().backward()
        return x, z, y.grad, x._version > version

    three_ways(case)


def test_input_with_history_changed_in_place() -> None:
    def f(x: Tensor) -> Tensor:
        x.mul_(2)
        return x.sin()

    def case(compiled: Any, _: None) -> Any:
        base = leaf(4)
        x = base * 1
        y = compiled(f)(x)
        (y.sum() + x.sum()).backward()
        return x, y, base.grad

    three_ways(case, eligible=False)


def test_inputs_that_share_memory_and_change() -> None:
    def f(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return b * 2

    def case(compiled: Any, _: None) -> Any:
        base = torch.arange(8.0)
        y = compiled(f)(base[:6], base[2:])
        return base, y

    three_ways(case, eligible=False)


def test_cache_written_under_no_grad() -> None:
    """A key-value cache: written by index, read back, by later calls too."""

    def f(cache: Tensor, position: Tensor, new: Tensor) -> Tensor:
        cache.index_copy_(1, position, new)
        return cache.sum(1)

    def case(compiled: Any, _: None) -> Any:
        cache = torch.zeros(2, 6, 3)
        g = compiled(f)
        out = []
        with torch.no_grad():
            for i in range(3):
                out.append(g(cache, torch.tensor([i]), torch.full((2, 1, 3), i + 1.0)))
        return out, cache

    three_ways(case)


def test_batch_norm_training() -> None:
    def case(compiled: Any, model: nn.Module) -> Any:
        f = compiled(model)
        x = leaf(4, 3, 5, 5)
        out = []
        for _ in range(2):
            y = f(x)
            y.square().sum().backward()
            out.append(y)
        return out, x.grad, model

    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU())
    three_ways(case, model)


@pytest.mark.parametrize("layout", ["expanded", "transposed", "channels_last", "sliced"])
def test_gradients_of_other_layouts(layout: str) -> None:
    def case(compiled: Any, model: nn.Module) -> Any:
        x = leaf(2, 3, 6, 6)
        y = compiled(model)(x)
        g = torch.arange(y.numel(), dtype=torch.float32).reshape(y.shape) / y.numel()
        if layout == "expanded":
            g = torch.ones(()).expand(y.shape)
        elif layout == "transposed":
            g = g.transpose(2, 3).contiguous().transpose(2, 3)
        elif layout == "channels_last":
            g = g.contiguous(memory_format=torch.channels_last)
        else:
            g = torch.cat([g, g], 1)[:, ::2]
        y.backward(g)
        return y, x.grad, model

    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.SiLU())
    three_ways(case, model)


def test_channels_last_model() -> None:
    def case(compiled: Any, model: nn.Module) -> Any:
        x = leaf(2, 3, 6, 6).detach().contiguous(memory_format=torch.channels_last)
        x.requires_grad_()
        y = compiled(model)(x)
        y.sum().backward()
        return y, x.grad, model

    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).to(memory_format=torch.channels_last)
    three_ways(case, model)


def test_changed_saved_tensor_is_an_error() -> None:
    def case(compiled: Any, _: None) -> Any:
        x = leaf(4)
        w = torch.ones(4)
        y = compiled(lambda x, w: x * w)(x, w)
        w.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        return y

    three_ways(case)


def test_tensor_subclass() -> None:
    class Marked(torch.Tensor):
        pass

    def case(compiled: Any, _: None) -> Any:
        x = torch.ones(4).as_subclass(Marked)
        return compiled(lambda x: x.sin() * 2)(x).as_subclass(Tensor)

    three_ways(case, eligible=False)


def test_conjugate_input() -> None:
    def case(compiled: Any, _: None) -> Any:
        x = torch.complex(torch.ones(4), torch.arange(4.0)).conj()
        return compiled(lambda x: (x * 2).real.clone())(x)

    three_ways(case)
