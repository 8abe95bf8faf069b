"""A front hit is as right as a miss, whatever hooks, modes and results gradients have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.capture.harness import graphs_of, leaf, net, three_ways
from tests.capture.twin import Twin

# Dynamo itself looks at the gradient of every input.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


def pack(x: Tensor) -> Tensor:
    return x.clone()


def test_module_forward_and_backward() -> None:
    def case(compiled: Any, model: nn.Module) -> Any:
        x = leaf(5, 6)
        y = compiled(model)(x)
        y.square().mean().backward()
        return y, x.grad, model

    three_ways(case, net())


def test_inference() -> None:
    def case(compiled: Any, model: nn.Module) -> Any:
        f = compiled(model)
        with torch.no_grad():
            y = f(leaf(5, 6))
        return y

    three_ways(case, net())


def test_inference_mode() -> None:
    def case(compiled: Any, model: nn.Module) -> Any:
        f = compiled(model)
        with torch.inference_mode():
            y = f(torch.ones(5, 6))
        assert y.is_inference()
        return y.clone()

    three_ways(case, net())


def test_one_function_with_and_without_gradients() -> None:
    """Gradient mode is guarded by Dynamo: two graphs, each with its own key."""

    def case(compiled: Any, model: nn.Module) -> Any:
        f = compiled(model)
        x = leaf(5, 6)
        y = f(x)
        with torch.no_grad():
            z = f(x)
        y.sum().backward()
        return y, z, x.grad

    three_ways(case, net(), graphs=2)


def test_training_callable_called_without_gradients() -> None:
    """Not through Dynamo, which would compile again: the callable itself."""
    twin = Twin()
    model = net()
    x = leaf(5, 6)
    for _ in range(2):
        torch._dynamo.reset()
        kept: list[Callable[..., Any]] = []

        def keep(
            gm: Any, inputs: Any, twin: Twin = twin, kept: list[Callable[..., Any]] = kept
        ) -> Any:
            kept.append(twin(gm, inputs))
            kept.append(inputs)
            return kept[0]

        expected = torch.compile(model, backend=keep)(x)
        with torch.no_grad():
            (y,) = kept[0](*kept[1])
        torch.testing.assert_close(y, expected)
        assert not y.requires_grad or twin.count("front_hits") == 0
        twin = Twin(twin.store)


def test_hooks_on_tensors_and_parameters() -> None:
    """As a data-parallel wrapper does it: hooks on leaves, on results, after accumulation."""

    def case(compiled: Any, model: nn.Module) -> Any:
        seen: list[str] = []
        for name, p in model.named_parameters():
            p.register_hook(lambda g, name=name: (seen.append(name), g * 2)[1])
            p.register_post_accumulate_grad_hook(lambda p, name=name: seen.append(f"post {name}"))
        f = compiled(model)
        x = leaf(5, 6)
        y = f(x)
        y.register_hook(lambda g: g * 3)
        y.sum().backward()
        return x.grad, model, sorted(seen)

    three_ways(case, net())


def test_hooks_on_modules() -> None:
    def case(compiled: Any, model: nn.Module) -> Any:
        model[1].register_forward_hook(lambda m, args, out: out * 2)
        model.register_full_backward_hook(lambda m, gi, go: None)
        x = leaf(5, 6)
        y = compiled(model)(x)
        y.sum().backward()
        return y, x.grad, model

    three_ways(case, net(), graphs=graphs_of(case, net()))


def test_hooks_inside_the_graph() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.sin()
        y.register_hook(lambda g: g * 2)
        return y.cos()

    def case(compiled: Any, _: None) -> Any:
        x = leaf(4)
        y = compiled(f)(x)
        y.sum().backward()
        return y, x.grad

    torch.manual_seed(0)
    twin = Twin()
    expected = case(lambda f: f, None)
    got = case(lambda f: torch.compile(f, backend=twin), None)
    torch.testing.assert_close(got, expected)
    assert twin.count("front_hits") == 0


def test_saved_tensor_hooks_at_the_call() -> None:
    """Active at a later call only: they see the tensors. (While it is traced: the next test.)"""

    def case(compiled: Any, model: nn.Module) -> Any:
        seen: list[int] = []

        def counting(x: Tensor) -> Tensor:
            seen.append(x.numel())
            return x * 1

        f = compiled(model)
        x = leaf(5, 6)
        f(x).sum().backward()
        x.grad = None
        with torch.autograd.graph.saved_tensors_hooks(counting, lambda x: x):
            y = f(x)
        y.sum().backward()
        return y, x.grad, bool(seen)

    three_ways(case, net())


def test_saved_tensor_hooks_while_tracing() -> None:
    def case(compiled: Any, model: nn.Module) -> Any:
        f = compiled(model)
        x = leaf(5, 6)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            y = f(x)
        y.sum().backward()
        return y, x.grad

    three_ways(case, net(), eligible=False)


def test_outputs_without_gradients_and_of_integers() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
        y = x.sin()
        return y, y.argmax(-1), (y.detach() > 0), 7

    def case(compiled: Any, _: None) -> Any:
        x = leaf(3, 4)
        y, index, positive, seven = compiled(f)(x)
        y.sum().backward()
        return y, index, positive, seven, x.grad

    three_ways(case)


def test_outputs_whose_gradients_are_undefined() -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin() * w, (x * w).cos()

    def case(compiled: Any, _: None) -> Any:
        x, w = leaf(3, 4), leaf(4, seed=2)
        first, second = compiled(f)(x, w)
        second.sum().backward()
        return first, second, x.grad, w.grad

    three_ways(case)


def test_inputs_that_are_not_used() -> None:
    """Nothing flows into them: no gradient, not even zeros, and no history is touched."""

    def f(x: Tensor, unused: Tensor, constant: Tensor) -> Tensor:
        return x.sin() + unused.detach().sum() + constant

    def case(compiled: Any, _: None) -> Any:
        x, unused = leaf(4), leaf(4, seed=2)
        touched: list[int] = []
        inner = unused * 2
        inner.register_hook(lambda g: touched.append(1))
        y = compiled(f)(x, inner, torch.ones(4))
        y.sum().backward()
        return y, x.grad, unused.grad, touched

    three_ways(case)


def test_retained_graph() -> None:
    def case(compiled: Any, model: nn.Module) -> Any:
        x = leaf(5, 6)
        y = compiled(model)(x)
        y.sum().backward(retain_graph=True)
        y.sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            y.sum().backward()
        return y, x.grad, model

    three_ways(case, net())


def test_second_derivative_is_an_error() -> None:
    def case(compiled: Any, model: nn.Module) -> Any:
        x = leaf(5, 6)
        y = compiled(model)(x)
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        assert g.requires_grad
        if compiled.__name__ != "eager":
            with pytest.raises(RuntimeError, match=r"double backward|second derivative"):
                g.sum().backward()
        return y, g

    def eager(f: Any) -> Any:
        return f

    store = Twin().store
    expected = case(eager, net())
    for _ in range(2):
        torch._dynamo.reset()
        twin = Twin(store)
        got = case(lambda f, twin=twin: torch.compile(f, backend=twin), net())
        torch.testing.assert_close(got, expected)
    assert twin.count("front_hits") == 1


def test_gradients_switched_inside() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            scale = x.abs().max()
        return x / scale, scale

    def case(compiled: Any, _: None) -> Any:
        x = leaf(4)
        y, scale = compiled(f)(x)
        y.sum().backward()
        return y, scale, x.grad

    three_ways(case)


def test_gradients_switched_on_inside() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.enable_grad():
            return x.sin()

    def case(compiled: Any, _: None) -> Any:
        g = compiled(f)
        x = leaf(4)
        with torch.no_grad():
            y = g(x)
        y.sum().backward()
        return y, x.grad

    three_ways(case)


def test_checkpointed_layer() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        def forward(self, x: Tensor) -> Tensor:
            from torch.utils.checkpoint import checkpoint

            y: Tensor = checkpoint(self.inner, x, use_reentrant=False)
            return y.sin()

    def case(compiled: Any, model: nn.Module) -> Any:
        x = leaf(5, 6)
        y = compiled(model)(x)
        y.sum().backward()
        return y, x.grad, model

    three_ways(case, Checkpointed(), eligible=False)


def test_custom_autograd_function() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 5

    def case(compiled: Any, _: None) -> Any:
        x = leaf(4)
        y = compiled(lambda x: Twice.apply(x).sin())(x)
        y.sum().backward()
        return y, x.grad

    three_ways(case, eligible=False)
