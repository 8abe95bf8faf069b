"""Whether a compiled program's results are right: eager's, or what rounding could make of them.

Rounding differs where operations are fused. What it can do is measured: eager runs again and again
with every result moved by a few units in its last place. A value that lies inside that spread is
right; a comparison or an index may turn out as in any of those runs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from tests.fuzz.case import Case, run_steps
from tests.lower.harness import difference, widened

_RUNS = 24
_UNITS = 3.0
_CANCELLED = 4e-5  # what is left of values of a few units when they cancel inside one step


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


def _noisy_runs(case: Case) -> list[dict[str, torch.Tensor]]:
    runs = []
    for seed in range(_RUNS):
        inputs = case.fresh()
        rng = torch.Generator().manual_seed(seed)
        memory: set[int] = {x.untyped_storage().data_ptr() for x in inputs}
        with torch.no_grad():
            values = run_steps(case, inputs, functools.partial(_moved, rng, memory))
        wanted = {*case.outputs, *(n for n, _ in case.inputs)}
        runs.append({name: values[name] for name in wanted})
    return runs


def _moved(rng: torch.Generator, memory: set[int], x: torch.Tensor) -> torch.Tensor:
    """The result of a step, a little off; as it is where it is a view of something older."""
    place = x.untyped_storage().data_ptr()
    if not x.is_floating_point() or place in memory or not x.numel():
        memory.add(place)
        return x
    eps = torch.finfo(x.dtype).eps * _UNITS
    noise = torch.rand(x.shape, generator=rng, dtype=torch.float64) * 2 - 1
    size = x.double().abs().nan_to_num(0.0, 0.0, 0.0)
    amount = eps * (size + size.mean()) * noise
    moved = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) if _dense(x) else x.clone()
    moved.copy_(torch.where(x.isfinite(), x.double() + amount, x.double()))
    memory.add(moved.untyped_storage().data_ptr())
    return moved


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
