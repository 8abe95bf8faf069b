"""Training and generation as people write them: precision, checkpoints, optimizers, a cache."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.models import torch_zoo, transformers_zoo
from tests.models.training import Backend

Compile = Callable[[Any], Any]


def _distance(a: Tensor, b: Tensor) -> float:
    """Root mean square of the difference, relative to b's."""
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).square().mean().sqrt() / (b.square().mean().sqrt() + 1e-12))


def _trained(
    model: nn.Module,
    inputs: tuple[Tensor, ...],
    compile_: Compile,
    steps: int,
    context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> tuple[Tensor, Tensor]:
    """Losses and final parameters of some steps of momentum."""
    model = copy.deepcopy(model)
    compiled = compile_(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(steps):
        with context():
            loss, _output = compiled(*inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses), torch.cat([p.flatten() for p in model.parameters()])


def _compare(model: nn.Module, inputs: tuple[Tensor, ...], bound: float, **how: Any) -> None:
    torch._dynamo.reset()
    backend = Backend()
    losses, parameters = _trained(model, inputs, lambda f: f, **how)
    ours = _trained(model, inputs, lambda f: torch.compile(f, backend=backend), **how)
    assert not backend.fallbacks()
    assert backend.count("graphs") == 2
    assert _distance(ours[0], losses) < bound
    assert _distance(ours[1], parameters) < bound


class Checkpointed(nn.Module):
    """A part whose activations are computed again in the backward; forward(x, wanted)."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        y = self.norm(checkpoint(self.part, x, use_reentrant=False))
        return functional.mse_loss(y, wanted), y


class Encoder(nn.Module):
    """torch's own transformer layers; forward(x, wanted)."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layers(x)
        return functional.mse_loss(y, wanted), y


def _pair(*shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator), torch.randn(*shape, generator=generator)


@pytest.mark.parametrize(
    ("make", "inputs"),
    [(Checkpointed, _pair(8, 16)), (Encoder, _pair(4, 7, 16))],
    ids=["checkpointed", "encoder"],
)
def test_several_steps(make, inputs):
    torch.manual_seed(0)
    _compare(make(), inputs, 1e-5, steps=4)


@pytest.mark.extended
@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_several_steps_of_a_model(name):
    """Parameters change under the compiled graph, and so do a batch norm's statistics."""
    example = torch_zoo.example(name) if name == "resnet" else transformers_zoo.example(name)
    _compare(example.model, example.inputs, 1e-4, steps=6)


@pytest.mark.extended
@pytest.mark.parametrize("name", ["llama", "resnet"])
def test_autocast(name):
    """Rounding to bfloat16 happens where eager does it; less of it inside fused kernels."""
    example = torch_zoo.example(name) if name == "resnet" else transformers_zoo.example(name)
    autocast = lambda: torch.autocast("cpu", torch.bfloat16)  # noqa: E731
    _compare(example.model, example.inputs, 2e-2, steps=3, context=autocast)


@pytest.mark.extended
def test_half_precision():
    example = transformers_zoo.example("llama", torch.float16)
    _compare(example.model, example.inputs, 1e-2, steps=2)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "Adam, all at once": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, foreach=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.1, foreach=True),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.1, foreach=True),
}


@pytest.mark.extended
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    """Four steps: the first makes the state, the second may be compiled again, then no more."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    backend = Backend()
    eager = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    model = copy.deepcopy(eager)
    x = torch.randn(8, 16)
    steps = []
    for net, compile_ in ((eager, lambda f: f), (model, _with(backend))):
        optimizer = OPTIMIZERS[name](net.parameters())
        steps.append((net, optimizer, compile_(optimizer.step)))
    for _ in range(4):
        for net, optimizer, step in steps:
            net(x).square().mean().backward()
            step()
            optimizer.zero_grad()
    assert not backend.fallbacks()
    assert backend.graphs <= 2
    for a, b in zip(model.parameters(), eager.parameters()):
        assert _distance(a, b) < 1e-4


def _with(backend: Backend) -> Compile:
    return lambda f: torch.compile(f, backend=backend)


def test_clipped_gradients():
    torch._dynamo.reset()
    torch.manual_seed(0)
    backend = Backend()
    eager = nn.Linear(8, 8)
    model = copy.deepcopy(eager)
    x = torch.randn(4, 8)
    clip = lambda net: torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)  # noqa: E731
    for net in (eager, model):
        net(x).square().sum().backward()
    norm, ours = clip(eager), torch.compile(clip, backend=backend)(model)
    assert _distance(ours, norm) < 1e-6
    assert _distance(model.weight.grad, eager.weight.grad) < 1e-6
    assert not backend.fallbacks()


def test_a_second_backward_through_one_graph():
    torch._dynamo.reset()
    backend = Backend()
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    y = torch.compile(model, backend=backend)(torch.randn(4, 8))
    y.sum().backward(retain_graph=True)
    first = model[0].weight.grad.clone()
    model.zero_grad()
    y.sum().backward()
    assert torch.equal(model[0].weight.grad, first)


@pytest.mark.extended
def test_generation_with_a_cache_that_grows():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch._dynamo.reset()
    torch.manual_seed(0)
    backend = Backend()
    config = GPT2Config(vocab_size=96, n_embd=64, n_layer=2, n_head=4, n_positions=128)
    model = GPT2LMHeadModel(config).eval()
    tokens = torch.randint(0, 96, (2, 9))
    how = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(tokens, **how)
    model.forward = torch.compile(model.forward, backend=backend)
    assert torch.equal(model.generate(tokens, **how), expected)
    assert not backend.fallbacks()
    assert backend.graphs <= 4  # the prompt, then one token at a time over any length
