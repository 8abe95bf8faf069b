"""One training step of a model by eager, by fusec and in float64, compared tensor by tensor."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cache.memory import MemoryStore
from fusec.codegen.isa import target_of
from fusec.demo.check import errors
from fusec.demo.float64 import Float64
from fusec.demo.models import Example
from fusec.demo.results import Result, Times
from fusec.options import Options
from fusec.remote.resolve import Resolver
from fusec.runtime.loader import load
from fusec.session import Session
from fusec.trace import Recorder

_STORE = MemoryStore(512 << 20)  # models of one process share kernels

LEARNING_RATE = 0.01
# Much larger than AdamW's usual one. A gradient that is zero but for rounding has a random sign,
# and AdamW's first step moves its parameter by the whole learning rate in that direction: neither
# eager nor anything else agrees with float64 then. This keeps such steps small.
EPSILON = 1e-2
# Sums of few powers of two. torch.compile keeps the step count a float32 tensor, eager takes it as
# a number: with 0.999, `1 - beta ** step` has lost four digits in float32 before anybody adds.
BETAS = (0.875, 0.984375)


@dataclass
class Backend:
    """The real session with a recorder of its own, as a backend for torch.compile."""

    recorder: Recorder = field(default_factory=Recorder)
    options: Options = field(default_factory=lambda: Options(progress=False))
    graphs: int = 0  # that Dynamo handed over

    def __post_init__(self) -> None:
        resolver = Resolver(_STORE, None, self.options, self.recorder)
        self.session = Session(self.options, target_of, resolver, load, self.recorder)

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs += 1
        return self.session.backend(gm, inputs)

    def count(self, name: str) -> int:
        return self.recorder.counters.get(name, 0)

    def fallbacks(self) -> Mapping[str, int]:
        """What stopped a compile: counters that must be zero."""
        names = ("fallbacks_to_eager", "corrupt", "store_full")
        return {name: self.count(name) for name in names if self.count(name)}


def adamw(model: nn.Module, *, foreach: bool = False) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        model.parameters(),
        lr=LEARNING_RATE,
        betas=BETAS,
        eps=EPSILON,
        weight_decay=0.1,
        foreach=foreach,
    )


def step(
    model: nn.Module,
    inputs: Sequence[Tensor],
    compile_: Callable[[Any], Any],
    *,
    foreach: bool = False,
) -> dict[str, Tensor]:
    """Forward, backward and one step of AdamW: everything that they compute, by name.

    compile_: torch.compile with a backend, or the identity. `model` is changed.
    """
    model.train()
    loss, output = compile_(model)(*inputs)
    loss.backward()
    made = {"loss": loss.detach().clone(), "output": output.detach().clone()}
    made.update(_gradients(model))
    optimizer = adamw(model, foreach=foreach)
    compile_(optimizer.step)()
    for name, parameter in model.named_parameters():
        made[f"parameter {name}"] = parameter.detach().clone()
    made.update(_statistics(model))
    return made


def compare(example: Example, backend: Backend, *, foreach: bool = False) -> list[str]:
    """Every tensor of a training step whose error is over its bound, in words."""
    torch._dynamo.reset()
    eager = step(copy.deepcopy(example.model), example.inputs, _as_is, foreach=foreach)
    with exact():
        wide = [x.double() if x.is_floating_point() else x for x in example.inputs]
        reference = step(copy.deepcopy(example.model).double(), wide, _as_is, foreach=foreach)
    compiled = step(
        copy.deepcopy(example.model),
        example.inputs,
        lambda f: torch.compile(f, backend=backend),
        foreach=foreach,
    )
    return faults(compiled, eager, reference)


def compare_passes(
    model: nn.Module, compiled: Callable[..., Any], inputs: Sequence[Tensor]
) -> list[str]:
    """Forward and backward of a compiled model; every tensor whose error is over its bound.

    Nothing is kept of the pass: gradients are cleared, statistics of the model put back.
    """
    saved = copy.deepcopy(model.state_dict())
    eager = passes(copy.deepcopy(model), None, inputs)
    with exact():
        wide = [x.double() if x.is_floating_point() else x for x in inputs]
        reference = passes(copy.deepcopy(model).double(), None, wide)
    made = passes(model, compiled, inputs)
    model.load_state_dict(saved)
    return faults(made, eager, reference)


def passes(
    model: nn.Module, compiled: Callable[..., Any] | None, inputs: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Forward and backward: everything that they compute, by name. Gradients are cleared."""
    model.train()
    loss, output = (model if compiled is None else compiled)(*inputs)
    loss.backward()
    made = {"loss": loss.detach().clone(), "output": output.detach().clone()}
    made.update(_gradients(model))
    made.update(_statistics(model))
    model.zero_grad()
    return made


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    return {
        f"gradient of {name}": parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def _statistics(model: nn.Module) -> dict[str, Tensor]:
    """Mean and variance together: what a mean near zero is rounded against is the data's spread."""
    return {
        f"statistics of {name}": torch.stack([module.running_mean, module.running_var]).clone()
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
    }


def faults(
    made: Mapping[str, Tensor], eager: Mapping[str, Tensor], reference: Mapping[str, Tensor]
) -> list[str]:
    """Every tensor of another type or shape than eager's, or else whose error is over its bound."""
    assert set(made) == set(eager) == set(reference)
    layout = [
        f"{name}: {made[name].dtype} {tuple(made[name].shape)}"
        for name in eager
        if (made[name].dtype, made[name].shape) != (eager[name].dtype, eager[name].shape)
    ]
    return layout or [
        f"{e.name}: {e.fusec:.2e} is over {e.allowed:.2e} (eager's error is {e.eager:.2e})"
        for e in errors(_result(made), _result(eager), _result(reference))
        if not e.within
    ]


def exact() -> contextlib.AbstractContextManager[object]:
    """While it is active, whatever asks for a lower precision gets float64."""
    return Float64()


def _as_is(function: Any) -> Any:
    return function


def _result(tensors: Mapping[str, Tensor]) -> Result:
    return Result(Times(), {}, {}, tensors)
