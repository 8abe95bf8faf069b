"""Whether a compiled program's results are right: eager's, or what rounding could make of them.

Rounding differs where operations are fused. What it can do is measured: eager runs again and again
with every result moved by a few units in its last place, and computed from operands moved so: what
cancels inside one operation (of a norm, the mean of equal values) shows by its operands alone. A
value that lies inside that spread is right; a comparison or an index may turn out as in any of
those runs. What adds nothing up is given its operands as they are: it rounds its result alone. In
some runs values move to the points of a grid instead: those that are nearly equal become equal.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Final

import torch

from tests.fuzz.case import Case, Values, names_in, run_steps
from tests.lower.harness import difference, widened

_RUNS = 24
_UNITS = 3.0
_CANCELLED = 4e-5  # what is left of values of a few units when they cancel inside one step
# Operations that add up: what cancels in them is far larger than their results' own rounding.
_ADDS_UP: Final = re.compile(r"norm\(|var\(|mean\(|sum\(|softmax\(|logsumexp\(|@")


def faults(case: Case, inputs: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> list[str]:
    """What is wrong: ``inputs`` as the compiled program left them, ``got`` its results."""
    theirs = case.fresh()
    with torch.no_grad():
        eager = case.function()(*theirs)
        exact = _exact(case, eager)
    found: list[str] = []
    noisy: list[dict[str, torch.Tensor]] | None = None
    for name, mine, wanted, wide in zip(case.outputs, got, eager, exact, strict=True):
        fault = difference(like(mine, wanted), wanted, wide)
        if fault is None:
            fault = _sharing(mine, inputs, wanted, theirs)
        elif _same_form(mine, wanted):
            noisy = noisy or _noisy_runs(case)
            if _within(mine, wanted, [run[name] for run in noisy], wide):
                fault = None
        if fault is not None:
            found.append(f"{name}: {fault}")
    for (name, _), mine, wanted in zip(case.inputs, inputs, theirs, strict=True):
        fault = difference(mine, wanted, wanted)
        if fault is not None:
            noisy = noisy or _noisy_runs(case)
            if not _within(mine, wanted, [run[name] for run in noisy], wanted):
                found.append(f"{name} afterwards: {fault}")
    return found


def _exact(case: Case, eager: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Results in float64; eager's where the program cannot run so."""
    try:
        return case.function(wide=True)(*widened(case.fresh()))
    except (RuntimeError, TypeError):
        return eager


def like(mine: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The values with the strides of ``wanted``: tracing decides on strides, not the compiler."""
    if mine.shape != wanted.shape or mine.stride() == wanted.stride() or not _dense(wanted):
        return mine
    return torch.empty_strided(mine.shape, wanted.stride(), dtype=mine.dtype).copy_(mine)


def _same_form(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape


def _sharing(
    mine: torch.Tensor,
    inputs: Sequence[torch.Tensor],
    wanted: torch.Tensor,
    theirs: Sequence[torch.Tensor],
) -> str | None:
    """Results share memory with the same inputs as eager's do."""
    if not wanted.numel():
        return None
    have = [_shares(mine, x) for x in inputs]
    want = [_shares(wanted, x) for x in theirs]
    return None if have == want else f"shares memory with inputs {have}, in eager {want}"


def _shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _noisy_runs(case: Case) -> list[Values]:
    runs = []
    for seed in range(_RUNS):
        inputs = case.fresh()
        noise = _Noise(seed)
        memory: set[int] = {x.untyped_storage().data_ptr() for x in inputs}
        with torch.no_grad():
            values = run_steps(case, inputs, functools.partial(_moved, noise, memory))
        wanted = {*case.outputs, *(n for n, _ in case.inputs)}
        runs.append({name: values[name] for name in wanted})
    return runs


def _moved(
    noise: _Noise,
    memory: set[int],
    text: str,
    evaluate: Callable[[Values], torch.Tensor],
    values: Values,
) -> torch.Tensor:
    """The result of a step, a little off; as it is where it is a view of something older."""
    x = evaluate(values)
    place = x.untyped_storage().data_ptr()
    if not x.is_floating_point() or place in memory or not x.numel():
        memory.add(place)
        return x
    if _ADDS_UP.search(text):
        x = evaluate({n: noise(values[n]) for n in names_in(text)})
    moved = noise(x)
    memory.add(moved.untyped_storage().data_ptr())
    return moved


class _Noise:
    """Moves values by a few units in their last place, or in that of their tensor's mean; whole
    numbers stay. Every third one moves them to a grid."""

    def __init__(self, seed: int) -> None:
        self.rng = torch.Generator().manual_seed(seed)
        self.offset = float(torch.rand((), generator=self.rng)) if seed % 3 == 2 else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return x
        wide = x.double()
        size = wide.abs().nan_to_num(0.0, 0.0, 0.0)
        step = torch.finfo(x.dtype).eps * _UNITS * (size + size.mean())
        if self.offset is None:
            noise = torch.rand(x.shape, generator=self.rng, dtype=torch.float64) * 2 - 1
            off = wide + step * noise
        else:
            step = torch.exp2(torch.floor(torch.log2(step.clamp_min(1e-300))))
            off = torch.floor(wide / step + self.offset) * step
        moved = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) if _dense(x) else x.clone()
        return moved.copy_(torch.where(x.isfinite(), off, wide))


def _dense(x: torch.Tensor) -> bool:
    span = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return x.numel() == span


def _within(
    mine: torch.Tensor, eager: torch.Tensor, runs: Sequence[torch.Tensor], exact: torch.Tensor
) -> bool:
    if not mine.numel():
        return True
    if not mine.is_floating_point():
        doubtful = mine == exact
        for run in runs:
            doubtful |= run != eager
        return not bool(((mine != eager) & ~doubtful).any())
    eps = torch.finfo(mine.dtype).eps
    a, b = mine.double(), eager.double()
    spread = torch.zeros(a.shape, dtype=torch.float64)
    doubtful = torch.zeros(a.shape, dtype=torch.bool)
    for run in runs:
        spread = torch.maximum(spread, (run.double() - b).abs().nan_to_num(0.0))
        doubtful |= run.isfinite() != eager.isfinite()
    size = b.abs().nan_to_num(0.0, 0.0, 0.0)
    bound = 4 * spread + 4 * eps * (size + size.mean()) + _CANCELLED
    same = (a == b) | (a.isnan() & b.isnan()) | ((a - b).abs() <= bound)
    return bool((same | doubtful).all())
