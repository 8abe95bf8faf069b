"""What follows a compile, with the real compiler: verifying, and choosing kernels' variants."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cache.artifacts import Found
from farm.quality_tasks import Candidate, Chosen, Compiled
from fusec.artifact.quality import Outcome, Verification
from fusec.errors import ChildLost, CompileError
from fusec.options import Target
from fusec.trace import Recorder

if TYPE_CHECKING:
    from fusec.tune.timing import Timer
    from fusec.verification.verify import Limits

_COMPILE_S: Final = 60.0
_START_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class FusecQuality:
    """The real one: loaded where it runs, on its first use."""

    def verify(
        self,
        graph: bytes,
        target: Target,
        found: Found,
        seconds: float,
        gpu: int,
        recorder: Recorder,
    ) -> Verification:
        from fusec.codegen.isa import host_target
        from fusec.tune.device import only_gpu
        from fusec.verification.verify import verify

        shown = None
        if target.device == "cuda":
            shown = only_gpu(gpu, os.environ)
        elif not _runs(target.isa, host_target().isa):
            why = f"the worker's processor is {host_target().isa}, the target {target.isa}"
            return Verification(Outcome.SKIPPED, why=why)
        return verify(graph, found, limits=_limits(seconds), recorder=recorder, gpu=shown)

    def warm(self, gpu: int) -> None:
        from fusec.tune.device import only_gpu
        from fusec.verification.verify import warm

        warm(_limits(_START_S), only_gpu(gpu, os.environ))

    def candidates(self, plan: bytes, device: str, single: bool) -> list[Candidate]:
        from fusec.codegen.triton_toolchain import compiler_version
        from fusec.ir.program_wire import program_from_bytes
        from fusec.pipeline import Plan
        from fusec.tune.problem import problem_to_bytes, problems, starts
        from fusec.tune.record import record_key

        made = Plan.from_bytes(plan)
        compiler = compiler_version()
        program = program_from_bytes(made.program)
        found = problems(program, made.kernels)
        moved = starts(program, found)
        return [
            Candidate(
                problem.source.digest,
                record_key(problem.source, device, compiler, False),
                problem_to_bytes(problem),
                len(problem.source.variants),
                record_key(problem.source, device, compiler, True),
            )
            for problem in sorted(found, key=lambda p: -p.bytes * moved[p.source.digest])
            if single or len(problem.source.variants) > 1
        ]

    def variants(
        self, problem: bytes, numbers: Sequence[int]
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        from fusec.codegen.triton_toolchain import compile_variant
        from fusec.tune.problem import problem_from_bytes

        source = problem_from_bytes(problem).source
        binaries: dict[str, bytes] = {}
        left_out: dict[str, str] = {}
        # One after the other, in one compiler's process: it is the farm that works in parallel.
        for number in numbers:
            try:
                binaries[str(number)] = compile_variant(source, number, _COMPILE_S).to_bytes()
            except CompileError as error:
                left_out[str(number)] = error.message
        return binaries, left_out

    def race(self, compiled: Sequence[Compiled], seconds: float, gpu: int) -> dict[str, Chosen]:
        from fusec.codegen.gpu_binary import GpuBinary
        from fusec.tune.problem import problem_from_bytes
        from fusec.tune.race_variants import STANDS, race_variants

        deadline = time.monotonic() + seconds
        found: dict[str, Chosen] = {}
        try:
            with lent_timer(gpu) as timer:
                device = timer.open()
                for each in compiled:
                    binaries = {int(n): GpuBinary.from_bytes(b) for n, b in each.binaries.items()}
                    left_out = {int(n): why for n, why in each.left_out.items()}
                    problem = problem_from_bytes(each.candidate.problem)
                    stood = each.candidate.standing
                    standing = GpuBinary.from_bytes(stood) if stood else None
                    raced = race_variants(
                        problem, binaries, left_out, timer, device, deadline, standing
                    )
                    if isinstance(raced, str):
                        kept = stood if raced == STANDS else b""
                        found[each.candidate.digest] = Chosen(kept, why=raced)
                    else:
                        record = raced.record.to_bytes()
                        found[each.candidate.digest] = Chosen(raced.binary.to_bytes(), record)
        except ChildLost as error:
            for each in compiled:
                found.setdefault(each.candidate.digest, Chosen(why=error.message))
        return found

    def step(self, history: Sequence[bytes], record: bytes) -> tuple[bytes, int]:
        from fusec.tune.neighbours import next_step
        from fusec.tune.problem import problem_from_bytes, problem_to_bytes
        from fusec.tune.record import Record

        problems = [problem_from_bytes(data) for data in history]
        best = problems[-1].source.variants[Record.from_bytes(record).variant]
        step = next_step(problems, best)
        if step is None:
            return b"", 0
        return problem_to_bytes(step), len(step.source.variants)


def _limits(seconds: float) -> Limits:
    from fusec.verification.verify import Limits

    return Limits(seconds=seconds, threads=max(1, min(4, len(os.sched_getaffinity(0)) // 2)))


@contextmanager
def lent_timer(gpu: int) -> Iterator[Timer]:
    """A timer of this process, kept from one lease of the GPU to the next: to open it takes as long
    as a race. Its child ends by itself when it has rested."""
    from fusec.tune.timing import Timer

    idle = _idle_timers(os.getpid())
    timer = idle.pop(gpu, None) or Timer(gpu)
    done = False
    try:
        yield timer
        timer.rest()
        done = True
    finally:
        if done:
            idle[gpu] = timer
        else:
            timer.close()


@functools.cache
def _idle_timers(process: int) -> dict[int, Timer]:
    """By GPU; a process that was forked from this one has none of them."""
    return {}


def _runs(isa: str, here: str) -> bool:
    """Whether a processor of the level ``here`` runs code of a level: levels of a kind are sorted
    by their names."""
    kind = isa.rpartition("-v")[0]
    return isa == here or (bool(kind) and kind == here.rpartition("-v")[0] and isa <= here)
