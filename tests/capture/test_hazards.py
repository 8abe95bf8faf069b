"""A front hit is as right as a miss, in each case where skipping AOTAutograd could go wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.capture.harness import three_ways
from tests.capture.twin import Twin

# Dynamo itself looks at the gradient of every input.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def leaf(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4))


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

    three_ways(case, net(), graphs=_graphs_of(case, net()))


def _graphs_of(case: Any, subject: Any) -> int:
    """How many graphs Dynamo cuts a case into."""
    twin = Twin()
    torch._dynamo.reset()
    case(lambda f, **kw: torch.compile(f, backend=twin, **kw), subject)
    return len(twin.graphs)


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


def pack(x: Tensor) -> Tensor:
    return x.clone()


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


def test_autocast() -> None:
    def case(compiled: Any, model: nn.Module) -> Any:
        f = compiled(model)
        x = leaf(5, 6)
        with torch.autocast("cpu", torch.bfloat16):
            y = f(x)
        y.float().sum().backward()
        plain = f(x)
        return y.dtype, plain.dtype, plain

    three_ways(case, nn.Linear(6, 4), graphs=2)


def test_autocast_inside() -> None:
    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            with torch.autocast("cpu", torch.bfloat16):
                y = self.linear(x)
            return y, self.linear(x)

    def case(compiled: Any, model: nn.Module) -> Any:
        y, z = compiled(model)(leaf(5, 6))
        (y.float().sum() + z.sum()).backward()
        return y.dtype, z, z.dtype

    three_ways(case, Inside())


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


def test_dynamic_shapes() -> None:
    def case(compiled: Any, model: nn.Module) -> Any:
        f = compiled(model, dynamic=True)
        out = []
        for n in (3, 5, 9):
            x = leaf(n, 6)
            y = f(x)
            y.square().sum().backward()
            out += [y, x.grad]
        return out, model

    three_ways(case, nn.Sequential(nn.Linear(6, 8), nn.Softmax(-1), nn.Linear(8, 4)))


def test_automatic_dynamic_shapes() -> None:
    """The second size makes Dynamo compile again with a symbol: two keys, both found."""

    def case(compiled: Any, model: nn.Module) -> Any:
        f = compiled(model)
        return [f(leaf(n, 6)) for n in (3, 5, 9)]

    three_ways(case, nn.Linear(6, 4), graphs=2)


def test_dynamic_size_as_a_number() -> None:
    def f(x: Tensor) -> tuple[Tensor, int]:
        return x.sum(0) / x.shape[0], x.shape[0] * 2

    def case(compiled: Any, _: None) -> Any:
        g = compiled(f, dynamic=True)
        x = leaf(5, 3)
        y, n = g(x)
        y.sum().backward()
        return y, n, x.grad, g(leaf(7, 3))[1]

    three_ways(case)


def test_guards_that_aotautograd_adds_keep_the_recipe_away() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y]).reshape(-1, 4).softmax(-1) * x.shape[0]

    def case(compiled: Any, _: None) -> Any:
        x = leaf(4, 8)
        z = compiled(f, dynamic=True)(x, torch.ones(6, 8))
        z.square().sum().backward()
        return z, x.grad

    three_ways(case, eligible=False)


def test_dropout_draws_anew_and_as_eager_does() -> None:
    model = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.25))

    def case(compiled: Any, model: nn.Module) -> Any:
        f = compiled(model)
        x = torch.ones(200, 6)
        torch.manual_seed(7)
        first, second = f(x), f(x)
        torch.manual_seed(7)
        again = f(x)
        first.sum().backward()
        kept = (first != 0).float().mean()
        assert abs(kept - 0.75) < 0.02
        assert not torch.equal(first, second)
        assert torch.equal(first, again)
        # The mask of the forward is the mask of the backward.
        bias = model[0].bias.grad
        assert bias is not None
        torch.testing.assert_close(bias, (first != 0).sum(0) / 0.75)
        return first, bias

    three_ways(case, model)


def test_random_numbers_draw_anew() -> None:
    def f(x: Tensor) -> Tensor:
        return x + torch.rand_like(x)

    def case(compiled: Any, _: None) -> Any:
        g = compiled(f)
        x = torch.zeros(100)
        a, b = g(x), g(x)
        assert not torch.equal(a, b)
        return a, b

    three_ways(case)


def test_tensor_subclass() -> None:
    class Marked(torch.Tensor):
        pass

    def case(compiled: Any, _: None) -> Any:
        x = torch.ones(4).as_subclass(Marked)
        return compiled(lambda x: x.sin() * 2)(x).as_subclass(Tensor)

    three_ways(case, eligible=False)


def test_nested_compiled_regions() -> None:
    """Layers compiled one by one, as regions, with eager code between."""

    def case(compiled: Any, model: nn.Module) -> Any:
        layers = [compiled(layer) for layer in model]
        x = leaf(5, 6)
        h = x
        for layer in layers:
            h = layer(h)
        h.sum().backward()
        return h, x.grad, model

    torch.manual_seed(3)
    layers = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3))
    ways = three_ways(case, layers, graphs=_graphs_of(case, layers))
    assert ways.miss.count("local_compiles") == 2  # the layers are one graph, forward and backward


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


def test_conjugate_input() -> None:
    def case(compiled: Any, _: None) -> Any:
        x = torch.complex(torch.ones(4), torch.arange(4.0)).conj()
        return compiled(lambda x: (x * 2).real.clone())(x)

    three_ways(case)


def test_deterministic_mode_set_later_is_an_error() -> None:
    def case(compiled: Any, _: None) -> Any:
        x = leaf(4)
        y = compiled(lambda x: x.sin())(x)
        torch.use_deterministic_algorithms(True)
        try:
            if compiled.__name__ != "eager":
                with pytest.raises(RuntimeError, match="deterministic"):
                    y.sum().backward()
        finally:
            torch.use_deterministic_algorithms(False)
        return y

    store = Twin().store
    for _ in range(2):
        torch._dynamo.reset()
        twin = Twin(store)
        case(lambda f, twin=twin: torch.compile(f, backend=twin), None)
    assert twin.count("front_hits") == 1


def test_embedding_and_cross_entropy() -> None:
    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(11, 6, padding_idx=0)
            self.head = nn.Linear(6, 11)

        def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
            logits = self.head(self.embedding(tokens))
            return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def case(compiled: Any, model: nn.Module) -> Any:
        tokens = torch.arange(12).reshape(2, 6) % 11
        labels = torch.where(tokens == 3, -100, (tokens * 5) % 11)
        loss = compiled(model)(tokens, labels)
        loss.backward()
        return loss, model

    torch.manual_seed(3)
    three_ways(case, Tiny())
