"""Choosing the variant of each kernel on the GPU at hand.

All processors compile variants while the GPU times those of the kernels that are ready. What is not
worth timing is left out before (`prune`), the others race (`timing`), and what was found is kept
(`record`). Where nothing can be measured, the cost model's choice stands: the first variant.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from cache.store import Store
from fusec.codegen.gpu_binary import GpuBinary
from fusec.codegen.triton_toolchain import compile_variants, compiler_version
from fusec.errors import ChildLost, CompileError
from fusec.trace import Recorder
from fusec.tune.device import Device, device_class, visible_gpus
from fusec.tune.neighbours import STEPS, next_step
from fusec.tune.problem import Problem
from fusec.tune.race_variants import LATE, Raced, race_variants
from fusec.tune.record import Record, find, keep, record_key
from fusec.tune.timing import Timer

_COMPILE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Tuned:
    """The choice for one problem. binary: compiled, None where nothing was: the first variant is to
    be used then; record: what the choice is based on, None where nothing was measured, ``why`` then
    says why."""

    problem: Problem
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
    descend: bool = False,
) -> list[Tuned]:
    """The variant to use for each problem, in their order.

    budget_s: wall seconds for all of it; kernels whose turn does not come keep their first variant.
    store: where records are looked up and kept. ordinal: of the GPU, as this process counts them.
    descend: go on from each winner to its neighbours, while one of them is faster.
    Never raises for a kernel or a GPU at fault: its problem is then not tuned.
    """
    with recorder.span("tune"):
        if not descend and not any(len(p.source.variants) > 1 for p in problems):
            return [Tuned(p, why=_SINGLE) for p in problems]
        gpus = visible_gpus()
        try:
            compiler = compiler_version()
        except CompileError as error:
            return [Tuned(p, why=error.message) for p in problems]
        if ordinal >= len(gpus):
            return [Tuned(p, why=f"there is no GPU {ordinal}") for p in problems]
        name, isa = gpus[ordinal]
        records = _Records(device_class(name, isa), isa, compiler, store, descend, recorder)
        deadline = time.monotonic() + budget_s
        return _tune(problems, records, ordinal, deadline, recorder)


_SINGLE: Final = "it has one variant"


def _tune(
    problems: Sequence[Problem],
    records: _Records,
    ordinal: int,
    deadline: float,
    recorder: Recorder,
) -> list[Tuned]:
    found = {place: records.find(problem) for place, problem in enumerate(problems)}
    racing = {place: problems[place] for place, known in found.items() if known is None}
    why = LATE
    if racing:
        timer = Timer(ordinal)
        with ThreadPoolExecutor(1, thread_name_prefix="fusec-timer") as starter:
            # Its child starts, and makes a context, while the first variants are compiled.
            races = _Races(starter.submit(timer.open), timer, deadline, recorder)
            try:
                found |= races.run(racing, records)
            except ChildLost as error:  # it did not start: what a variant does stays in its race
                why = error.message
            finally:
                races.opening.exception()  # it may not have been waited for
                timer.close()
    result = [found[place] or Tuned(p, why=why) for place, p in enumerate(problems)]
    untuned = sum(t.binary is None and t.why != _SINGLE for t in result)
    recorder.count("kernels_untuned", untuned)
    return result


@dataclass(frozen=True, slots=True)
class _Records:
    """What is known of kernels without timing them, and what is kept for the next time."""

    device_class: str
    isa: str
    compiler: str
    store: Store | None
    descend: bool
    recorder: Recorder

    def find(self, problem: Problem) -> Tuned | None:
        if len(problem.source.variants) == 1 and not self.descend:
            return Tuned(problem, why=_SINGLE)
        if problem.source.isa != self.isa:
            return Tuned(problem, why=f"it is for {problem.source.isa}, not {self.isa}")
        if self.store is None:
            return None
        known = find(self.store, self._key(problem))
        if known is None:
            return None
        self.recorder.count("tuning_hits")
        return Tuned(problem, known[1], known[0])

    def keep(self, problem: Problem, best: Raced) -> Tuned:
        self.recorder.count("kernels_tuned")
        if self.store is not None:
            standing = keep(self.store, self._key(problem), best.record, best.binary)
            if standing is not None:
                return Tuned(problem, standing[1], standing[0])
            self.recorder.count("store_full")
        return Tuned(problem, best.binary, best.record)

    def _key(self, problem: Problem) -> str:
        return record_key(problem.source, self.device_class, self.compiler, self.descend)


@dataclass(frozen=True, slots=True)
class _Races:
    """opening: what the timer is of, once it is open."""

    opening: Future[Device]
    timer: Timer
    deadline: float
    recorder: Recorder

    def run(self, problems: Mapping[int, Problem], records: _Records) -> dict[int, Tuned]:
        """The outcomes of all that are decided in time. Raises ChildLost where nothing can be
        timed."""
        found: dict[int, Tuned] = {}
        raced: dict[int, Raced] = {}
        for place, outcome in self._races(problems):
            if isinstance(outcome, str):
                found[place] = Tuned(problems[place], why=outcome)
            else:
                raced[place] = outcome
        if records.descend:
            raced = self._descend(problems, raced)
        return found | {place: records.keep(problems[place], r) for place, r in raced.items()}

    def _descend(
        self, problems: Mapping[int, Problem], raced: Mapping[int, Raced]
    ) -> dict[int, Raced]:
        """From each winner on to its neighbours, all kernels a step at a time."""
        best = dict(raced)
        history = {place: [problems[place]] for place in raced}
        moving = list(raced)
        for _ in range(STEPS):
            steps: dict[int, Problem] = {}
            for place in moving:
                step = next_step(history[place], best[place].variant)
                if step is not None:
                    history[place].append(step)
                    steps[place] = step
            moving = []
            for place, outcome in self._races(steps):
                if not isinstance(outcome, str) and outcome.variant != best[place].variant:
                    best[place] = outcome
                    moving.append(place)
        return best

    def _races(self, racing: Mapping[int, Problem]) -> Iterator[tuple[int, Raced | str]]:
        """Compile and race, each kernel as soon as all its variants are there; where there is no
        winner, why. Ends when the time is up."""
        gathered = {place: _Gathered(problem) for place, problem in racing.items()}
        jobs = [(place, n) for place, g in gathered.items() for n in range(g.count)]
        sources = [(racing[place].source, n) for place, n in jobs]
        for number, built in compile_variants(sources, _COMPILE_S):
            place, variant = jobs[number]
            ready = gathered[place]
            if isinstance(built, CompileError):
                ready.left_out[variant] = built.message
            else:
                ready.binaries[variant] = built
            if ready.complete:
                yield place, self._race(ready)
            if time.monotonic() > self.deadline:
                return

    def _race(self, ready: _Gathered) -> Raced | str:
        outcome = race_variants(
            ready.problem,
            ready.binaries,
            ready.left_out,
            self.timer,
            self.opening.result(),
            self.deadline,
        )
        if isinstance(outcome, Raced):
            self.recorder.count("variants_timed", len(outcome.record.samples))
        return outcome


@dataclass(slots=True)
class _Gathered:
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
