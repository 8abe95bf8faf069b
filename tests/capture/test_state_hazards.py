"""A front hit is as right as a miss under autocast, dynamic sizes, random numbers and regions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.capture.harness import graphs_of, leaf, three_ways
from tests.capture.twin import Twin

# Dynamo itself looks at the gradient of every input.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


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
    ways = three_ways(case, layers, graphs=graphs_of(case, layers))
    assert ways.miss.count("local_compiles") == 2  # the layers are one graph, forward and backward


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
