"""Choosing the variant of each kernel on the GPU at hand.

All processors compile variants while the GPU times those of the kernels that are ready. What is not
worth timing is left out before (`prune`), the others race (`timing`), and what was found is kept
(`record`). Where nothing can be measured, the cost model's choice stands: the first variant.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cache.store import Store
from fusec.codegen.gpu_binary import GpuBinary
from fusec.codegen.triton_toolchain import compile_variants, compiler_version
from fusec.errors import ChildLost, CompileError
from fusec.trace import Recorder
from fusec.tune.device import Device
from fusec.tune.problem import Problem
from fusec.tune.prune import prune
from fusec.tune.race import margin, winner
from fusec.tune.record import Record, find, keep, record_key
from fusec.tune.timing import Timer

_COMPILE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Tuned:
    """The choice for one problem. binary: of the variant, None where it was not compiled here;
    record: what it is based on, None where nothing was measured, ``why`` then says why."""

    problem: Problem
    variant: int = 0
    binary: GpuBinary | None = None
    record: Record | None = None
    why: str = ""


def tune(
    problems: Sequence[Problem],
    *,
    budget_s: float,
    recorder: Recorder,
    store: Store | None = None,
    ordinal: int = 0,
) -> list[Tuned]:
    """The variant to use for each problem, in their order.

    budget_s: wall seconds for all of it; kernels whose turn does not come keep their first variant.
    store: where records are looked up and kept. ordinal: of the GPU, as this process counts them.
    Never raises for a kernel or a GPU at fault: its problem is then not tuned.
    """
    with recorder.span("tune"):
        if not any(len(p.source.variants) > 1 for p in problems):
            return [Tuned(p, why="it has one variant") for p in problems]
        deadline = time.monotonic() + budget_s
        timer = Timer(ordinal)
        try:
            device = timer.open()
            compiler = compiler_version()
        except (ChildLost, CompileError) as error:
            timer.close()
            return [Tuned(p, why=error.message) for p in problems]
        try:
            return _Run(problems, device, compiler, timer, deadline, store, recorder).result()
        finally:
            timer.close()


@dataclass(slots=True)
class _Run:
    problems: Sequence[Problem]
    device: Device
    compiler: str
    timer: Timer
    deadline: float
    store: Store | None
    recorder: Recorder
    found: dict[int, Tuned] = field(default_factory=dict)

    def result(self) -> list[Tuned]:
        open_: dict[int, _Open] = {}
        for place, problem in enumerate(self.problems):
            tuned = self._without_timing(problem)
            if tuned is None:
                open_[place] = _Open(problem)
            else:
                self.found[place] = tuned
        jobs = [(place, n) for place, o in open_.items() for n in range(o.count)]
        sources = [(self.problems[place].source, n) for place, n in jobs]
        for number, built in compile_variants(sources, _COMPILE_S):
            place, variant = jobs[number]
            ready = open_[place]
            if isinstance(built, CompileError):
                ready.left_out[variant] = built.message
            else:
                ready.binaries[variant] = built
            if ready.complete:
                self.found[place] = self._race(ready)
            if time.monotonic() > self.deadline:
                break
        late = "the time for tuning was up"
        return [self.found.get(i, Tuned(p, why=late)) for i, p in enumerate(self.problems)]

    def _without_timing(self, problem: Problem) -> Tuned | None:
        if len(problem.source.variants) == 1:
            return Tuned(problem, why="it has one variant")
        if problem.source.isa != self.device.isa:
            return Tuned(problem, why=f"it is for {problem.source.isa}, not {self.device.isa}")
        if self.store is None:
            return None
        key = record_key(problem.source, self.device.name, self.compiler)
        known = find(self.store, key, problem.source)
        if known is None:
            return None
        self.recorder.count("tuning_hits")
        return Tuned(problem, known[0].variant, known[1], known[0])

    def _race(self, ready: _Open) -> Tuned:
        problem = ready.problem
        grids = {n: problem.grid(n) for n in ready.binaries}
        left_out = {**ready.left_out, **prune(ready.binaries, grids, self.device)}
        racing = {n: b for n, b in ready.binaries.items() if n not in left_out}
        if len(racing) > 1:
            outcome = self.timer.race(problem, racing, self.deadline)
            self.recorder.count("variants_timed", sum(map(bool, outcome.samples.values())))
            left_out.update(outcome.failed)
            if not outcome.decided:
                return Tuned(problem, binary=ready.binaries.get(0), why="no variant could be timed")
            chosen = winner(outcome.samples)
            record = Record(
                chosen, outcome.samples, margin(outcome.samples, chosen), dict(left_out)
            )
        elif racing:
            (chosen,) = racing
            record = Record(chosen, {}, 0.0, dict(left_out))
        else:
            return Tuned(problem, why=f"no variant can run: {'; '.join(left_out.values())}")
        self.recorder.count("kernels_tuned")
        if self.store is not None:
            key = record_key(problem.source, self.device.name, self.compiler)
            if not keep(self.store, key, record, racing[chosen]):
                self.recorder.count("store_full")
        return Tuned(problem, chosen, racing[chosen], record)


@dataclass(slots=True)
class _Open:
    """A problem whose variants are being compiled."""

    problem: Problem
    binaries: dict[int, GpuBinary] = field(default_factory=dict)
    left_out: dict[int, str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.problem.source.variants)

    @property
    def complete(self) -> bool:
        return len(self.binaries) + len(self.left_out) == self.count
