"""One case on one GPU: every side on the same tensors, in turn, checked against float64.

A sample is one step between two events, after writes of memory larger than the L2 cache, so that
no side finds its inputs there. ``lead`` writes keep the GPU busy while the host starts the step:
many of them, and the figure is the GPU's time; one, and a host that is slower than the GPU shows.
Rounds rotate the order of the sides; medians are quoted.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.gpu.kernels import Case
from fusec.demo.check import errors
from fusec.demo.results import Result, Times

SIDES = (
    "eager",
    "inductor",
    "inductor-max",
    "inductor-graphs",
    "fusec",
    "fusec-max",
    "fusec-graphs",
)
_FLUSH_BYTES = 256 << 20


def compiled(function: Callable[..., Any], side: str) -> Callable[..., Any]:
    """The function as that side runs it. Raises ValueError for a name not in SIDES."""
    options: dict[str, dict[str, Any]] = {
        "inductor": {},
        "inductor-max": {"mode": "max-autotune-no-cudagraphs"},
        "inductor-graphs": {"mode": "reduce-overhead"},
        "fusec": {"backend": "fusec"},
        "fusec-max": {"backend": "fusec", "options": {"mode": "max-autotune"}},
        "fusec-graphs": {"backend": "fusec", "options": {"mode": "reduce-overhead"}},
    }
    if side == "eager":
        return function
    if side not in options:
        raise ValueError(f"no side {side!r}: {', '.join(SIDES)}")
    made: Callable[..., Any] = torch.compile(function, **options[side])
    return made


def tensors(nest: Any) -> Iterator[Tensor]:
    """Every tensor of a nest of lists, tuples and tensors, in order."""
    if isinstance(nest, Tensor):
        yield nest
    elif isinstance(nest, (list, tuple)):
        for item in nest:
            yield from tensors(item)


class Step:
    """One forward pass, or one forward and backward pass, of a case on one side."""

    def __init__(self, case: Case, function: Callable[..., Any]) -> None:
        self.case = case
        self.function = function
        self.gradients: list[Tensor] = []  # of the outputs: made once, as they come from elsewhere
        self.leaves = [t for t in tensors(case.inputs) if t.requires_grad]
        if case.train and case.module is not None:
            self.leaves += list(case.module.parameters())

    def __call__(self) -> list[Tensor]:
        torch.compiler.cudagraph_mark_step_begin()
        if not self.case.train:
            with torch.no_grad():
                return list(tensors(self.function(*self.case.inputs)))
        for leaf in self.leaves:
            leaf.grad = None
        outputs = list(tensors(self.function(*self.case.inputs)))
        if not self.gradients:
            self.gradients = [torch.ones_like(o) for o in outputs]
        torch.autograd.backward(outputs, self.gradients)
        return outputs

    def results(self) -> dict[str, Tensor]:
        """Outputs and gradients of the inputs by name."""
        outputs = self()
        found = {f"output {i}": t.detach().clone() for i, t in enumerate(outputs)}
        if self.case.train:
            for i, leaf in enumerate(self.leaves):
                if leaf.grad is not None:
                    found[f"gradient {i}"] = leaf.grad.detach().clone()
        return found


def double(case: Case) -> Case:
    """The case in float64 on copies of its inputs."""

    def widen(nest: Any) -> Any:
        if isinstance(nest, Tensor):
            if not nest.is_floating_point():
                return nest
            return nest.detach().double().requires_grad_(nest.requires_grad)
        return [widen(item) for item in nest]

    module = None
    function = case.function
    if case.module is not None and case.function is case.module:
        module = copy.deepcopy(case.module).double()
        function = module
    return Case(function, tuple(widen(i) for i in case.inputs), None, case.train, module=module)


@dataclass(frozen=True)
class Measured:
    """ms: median of a step; peak_mib: allocated over what is held before; first_s: first call."""

    ms: float
    low: float
    high: float
    peak_mib: float
    first_s: float
    error: float | None
    allowed: float | None
    tensor: str = ""

    @property
    def right(self) -> bool | None:
        return None if self.error is None or self.allowed is None else self.error <= self.allowed


def measure(
    case: Case, sides: list[str], *, seconds: float, check: bool, lead: int
) -> dict[str, Any]:
    """Figures by side; a side that fails has its error's text instead."""
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    steps: dict[str, Step] = {}
    first: dict[str, float] = {}
    peak: dict[str, float] = {}
    failed: dict[str, str] = {}
    results: dict[str, Mapping[str, Tensor]] = {}
    pristine = [t.detach().clone() for t in tensors(case.inputs)] if case.mutates else []
    for side in sides:
        torch._dynamo.reset()
        _restore(case, pristine)
        step = Step(case, compiled(case.function, side))
        try:
            torch.cuda.synchronize()
            start = time.perf_counter()
            named = step.results()
            torch.cuda.synchronize()
            first[side] = time.perf_counter() - start
            if check and case.exact:
                results[side] = named
            del named
            step()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
            step()
            torch.cuda.synchronize()
            peak[side] = (torch.cuda.max_memory_allocated() - held) / 2**20
            steps[side] = step
        except Exception as error:  # noqa: BLE001 - a peer that fails must not end the suite
            failed[side] = f"{type(error).__name__}: {error}"[:300]
    _restore(case, pristine)
    verdicts = _verdicts(case, results) if results else {}
    results.clear()
    samples = _samples(steps, flush, seconds, lead)
    found: dict[str, Any] = dict(failed)
    for side, values in samples.items():
        low, high = statistics.quantiles(values, n=10)[0], statistics.quantiles(values, n=10)[-1]
        error, allowed, tensor = verdicts.get(side, (None, None, ""))
        found[side] = Measured(
            statistics.median(values), low, high, peak[side], first[side], error, allowed, tensor
        )
    return found


def _restore(case: Case, pristine: list[Tensor]) -> None:
    """What a side has written on its inputs is undone, so that all start from the same."""
    for t, old in zip(tensors(case.inputs), pristine, strict=False):
        t.detach().copy_(old)


def _verdicts(
    case: Case, results: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, tuple[float, float, str]]:
    """Each side's error where it uses most of its bound: twice eager's, or the rounding's."""
    if "eager" not in results:
        return {}
    wide = double(case)
    exact = _result(Step(wide, wide.function).results())
    eager = _result(results["eager"])
    found = {}
    for side, named in results.items():
        worst = errors(_result(named), eager, exact)[0]
        found[side] = (worst.fusec, worst.allowed, worst.name)
    return found


def _result(named: Mapping[str, Tensor]) -> Result:
    # Whole numbers too: a quantised value is off by one, or it is not.
    floats = {n: t if t.is_floating_point() else t.double() for n, t in named.items()}
    return Result(Times(), {}, {}, floats)


def _samples(
    steps: Mapping[str, Step], flush: Tensor, seconds: float, lead: int
) -> dict[str, list[float]]:
    for step in steps.values():
        step()
    torch.cuda.synchronize()
    samples: dict[str, list[float]] = {side: [] for side in steps}
    order = list(steps)
    end = time.perf_counter() + seconds * len(order)
    rounds = 0
    while order and (rounds < 10 or (time.perf_counter() < end and rounds < 400)):
        events = []
        for side in order:
            for _ in range(lead):
                flush.zero_()
            begin, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            steps[side]()
            done.record()
            events.append((side, begin, done))
        torch.cuda.synchronize()
        for side, begin, done in events:
            samples[side].append(begin.elapsed_time(done))
        order.append(order.pop(0))
        rounds += 1
    return samples


def copy_ceiling() -> float:
    """TB/s of a plain copy of 1 GiB: bytes read and written over time."""
    x = torch.empty(1 << 30, device="cuda", dtype=torch.int8)
    y = torch.empty_like(x)
    times = []
    for _ in range(30):
        begin, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        y.copy_(x)
        done.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(done))
    return 2 * x.numel() / statistics.median(times[5:]) / 1e9
