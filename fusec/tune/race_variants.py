"""One kernel's compiled variants raced on a GPU, those left out that are not worth timing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fusec.codegen.gpu_binary import GpuBinary
from fusec.codegen.gpu_source import Variant
from fusec.tune.device import Device
from fusec.tune.problem import Problem
from fusec.tune.prune import prune
from fusec.tune.race import margin, winner
from fusec.tune.record import Record
from fusec.tune.timing import Timer

LATE: Final = "the time for tuning was up"
STANDS: Final = "what an earlier race chose is as fast"
_STANDING: Final = -1  # before all variants, so that it wins where it is as fast


@dataclass(frozen=True, slots=True)
class Raced:
    """A race's outcome: the winner, and what else a record says."""

    variant: Variant
    binary: GpuBinary
    record: Record


def race_variants(
    problem: Problem,
    binaries: Mapping[int, GpuBinary],
    left_out: Mapping[int, str],
    timer: Timer,
    device: Device,
    deadline: float,
    standing: GpuBinary | None = None,
) -> Raced | str:
    """The fastest of a kernel's variants that leave the same in memory; why there is none.

    binaries: by variant; left_out: why others were not compiled; deadline: of `time.monotonic`.
    standing: what an earlier race chose: STANDS unless it is beaten in this one by more than a tie.
    """
    entrants = dict(sorted(binaries.items()))
    if standing is not None:
        entrants = {_STANDING: standing, **entrants}
    grids = {n: problem.grid(b) for n, b in entrants.items()}
    out = {**left_out, **prune(entrants, grids, device)}
    out.pop(_STANDING, None)  # it is to be timed, whatever may be said of it
    racing = {n: b for n, b in entrants.items() if n not in out}
    if not racing:
        return f"no variant can run: {'; '.join(out.values())}"
    outcome = timer.race(problem, racing, deadline)
    out.update(outcome.failed)
    if not outcome.decided:
        return "; ".join(outcome.failed.values()) or LATE
    samples = {n: tuple(times) for n, times in outcome.samples.items() if times}
    chosen = winner(samples)
    gap = margin(samples, chosen)
    if chosen == _STANDING:
        return STANDS
    for about in (samples, out):
        about.pop(_STANDING, None)  # it is no variant of the problem
    variant = problem.source.variants[chosen]
    left = dict(sorted(out.items()))
    record = Record(chosen, variant.warps, variant.constants, samples, gap, left)
    return Raced(variant, racing[chosen], record)
