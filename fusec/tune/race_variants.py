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
) -> Raced | str:
    """The fastest of a kernel's variants that leave the same in memory; why there is none.

    binaries: by variant; left_out: why others were not compiled; deadline: of `time.monotonic`.
    """
    grids = {n: problem.grid(n) for n in binaries}
    out = {**left_out, **prune(binaries, grids, device)}
    racing = {n: b for n, b in sorted(binaries.items()) if n not in out}
    if not racing:
        return f"no variant can run: {'; '.join(out.values())}"
    samples: dict[int, tuple[float, ...]] = {}
    chosen = next(iter(racing))
    gap = 0.0
    if len(racing) > 1:
        outcome = timer.race(problem, racing, deadline)
        out.update(outcome.failed)
        if not outcome.decided:
            return "; ".join(outcome.failed.values()) or LATE
        samples = {n: tuple(times) for n, times in outcome.samples.items() if times}
        chosen = winner(samples)
        gap = margin(samples, chosen)
    variant = problem.source.variants[chosen]
    record = Record(chosen, variant.warps, variant.stages, samples, gap, dict(sorted(out.items())))
    return Raced(variant, racing[chosen], record)
