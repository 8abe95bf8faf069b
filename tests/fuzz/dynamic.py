"""Random programs of dynamic size: one artifact, run at several sizes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd

from fusec.capture.decompositions import table
from fusec.capture.export import export
from fusec.codegen.isa import host_target
from fusec.options import Options
from fusec.pipeline import Plan, plan
from fusec.trace import Recorder
from tests.fuzz.case import Case
from tests.fuzz.check import KERNELS, load
from tests.fuzz.compare import faults

# Expressions over inputs x (s, t) and y (t,) or z (s, 1), none of which bakes a size in.
_STEPS = (
    "{a} + {b}", "{a} * {b}", "torch.maximum({a}, {b})", "{a} - 0.5", "torch.tanh({a})",
    "torch.where({a} > 0, {a}, {b})", "{a}.sum(-1, keepdim=True)", "{a}.mean(0, keepdim=True)",
    "{a}.amax({a}.dim() - 1, keepdim=True)", "torch.softmax({a}, -1)", "{a}.transpose(-1, -2)",
    "{a}[..., 1:]", "{a}[..., ::2]", "{a}.flip(-1)", "torch.cat([{a}, {a} * 2], -1)",
    "F.pad({a}, (1, 2), value=3)", "{a}.flatten()", "{a}.reshape(-1)", "{a}.unsqueeze(0)",
    "{a} + torch.arange({a}.shape[-1])", "{a}.sum()", "{a} * {a}.shape[-1]",
    "F.layer_norm({a}, {a}.shape[-1:])", "{a}.argmax(-1)", "torch.triu({a} + {b}, 1)",
    "{a}.expand(3, *{a}.shape)", "torch.stack([{a}, {a}], 1)", "{a}.to({dtype})",
    "{a} @ {a}.transpose(-1, -2)", "{a}.view({a}.shape[0], -1)", "{a}.add_({b}[..., :1].clone())",
)  # fmt: skip
_SIZES = ((5, 12), (4, 33), (70, 300), (9, 17), (33, 8))


class Backend:
    """A torch.compile backend that keeps its plans and builds kernels as fuzzing does."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self.call = aot_autograd(
            fw_compiler=self._compile,
            inference_compiler=self._compile,
            decompositions=table(),
            keep_inference_input_mutations=True,
        )

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        made: Callable[..., Any] = self.call(gm, inputs)
        return made

    def _compile(self, gm: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        exported = export(gm)
        target = host_target()
        made = plan(exported.graph, target, Options(progress=False), recorder=Recorder())
        self.plans.append(made)
        loaded: list[Any] = []

        def boxed(inputs: list[Any]) -> list[Any]:
            if not loaded:
                KERNELS.add(made.kernels)
                loaded.append(load(made, target))
            inputs.extend(exported.constants)
            return loaded[0](inputs)

        boxed._boxed_call = True  # type: ignore[attr-defined]
        return boxed


def dynamic_case(seed: int) -> Callable[[int, int], Case]:
    """Makes the program of a seed at a size."""
    rng = random.Random(seed)
    texts: list[tuple[str, str]] = []
    names = ["x0", "x1", "x2"]
    for _ in range(40):
        if len(texts) >= rng.randrange(2, 7):
            break
        text = rng.choice(_STEPS).format(
            a=rng.choice(names[-3:]), b=rng.choice(names), dtype=rng.choice(("f32", "bf16", "f64"))
        )
        candidate = (*texts, (f"v{len(texts)}", text))
        if all(_usable(_case(seed, candidate, s, t)) for s, t in _SIZES[:3]):
            texts.append(candidate[-1])
            names.append(candidate[-1][0])
    return lambda s, t: _case(seed, tuple(texts), s, t)


def _case(seed: int, steps: Sequence[tuple[str, str]], s: int, t: int) -> Case:
    g = torch.Generator().manual_seed(seed)
    dtype = (torch.float32, torch.float32, torch.bfloat16)[seed % 3]
    inputs = (
        ("x0", torch.randn((s, t), generator=g).to(dtype)),
        ("x1", torch.randn((t,), generator=g)),
        ("x2", torch.randn((s, 1), generator=g)),
    )
    return Case(seed, inputs, tuple(steps), tuple(n for n, _ in steps) or ("x0",))


def _usable(case: Case) -> bool:
    try:
        with torch.no_grad():
            made = case.function()(*case.fresh())
    except (RuntimeError, IndexError, TypeError, ValueError):
        return False
    return all(m.numel() < 400_000 for m in made)


def check_dynamic(seed: int) -> str:
    """What is wrong with the program of that seed at some size; empty when nothing is."""
    torch._dynamo.reset()
    make = dynamic_case(seed)
    first = make(*_SIZES[0])
    backend = Backend()
    compiled = torch.compile(first.function(), backend=backend, dynamic=True)
    for s, t in _SIZES:
        case = make(s, t)
        inputs = case.fresh()
        try:
            with torch.no_grad():
                got = compiled(*inputs)
        except Exception as error:  # noqa: BLE001 - whatever it is, the program shows it
            return f"# {s}x{t}: {type(error).__name__}: {error}\n{case.pasteable('')}"
        found = faults(case, inputs, got)
        if found:
            return f"# {s}x{t}, dynamic: {found}\n{case.pasteable('')}"
    return ""
