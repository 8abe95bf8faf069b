"""Tasks that make a compiled graph better known: verifying it, and choosing its kernels' variants.

    verify       an artifact beside eager: on a GPU worker for a GPU, else on a CPU worker
    candidates   the kernels of a plan that there are several ways to build: on a CPU worker
    variants     all variants of one kernel compiled: on a CPU worker, whatever the target
    race         compiled variants timed: on a GPU worker, which compiles nothing
    steps        what a descent tries next of some kernels: on a CPU worker

Verifying and racing keep child processes of their own; the others run in the worker's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from cache.artifacts import Found
from cache.manifest import Manifest
from cache.protocol import Value, fields, pack, unpack
from farm.devices import CPU
from farm.pool import Task
from fusec.artifact.quality import Outcome, Verification
from fusec.errors import ChildLost, CompileError, WireError
from fusec.options import Target

VERIFY: Final = "verify"
CANDIDATES: Final = "candidates"
VARIANTS: Final = "variants"
RACE: Final = "race"
STEPS: Final = "steps"
QUALITY: Final = frozenset((VERIFY, CANDIDATES, VARIANTS, RACE, STEPS))
SUPERVISED: Final = frozenset((VERIFY, RACE))
"""Kinds that start limited children by themselves."""
MAX_TASK: Final = 256 << 20
_COMPILE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel with a choice of variants. key: of its tuning record; descended: of the record that
    a descent leaves; problem: what to time; standing: a binary that is to be beaten, if any."""

    digest: str
    key: str
    problem: bytes
    descended: str
    standing: bytes = b""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A candidate with its variants built: binaries by number, and why others were not."""

    candidate: Candidate
    binaries: Mapping[str, bytes]
    left_out: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The outcome for one kernel: its winner and the record of the race, or ``why`` there is
    neither. A winner without a record is the candidate's standing binary, which was not beaten."""

    binary: bytes = b""
    record: bytes = b""
    why: str = ""


class Quality(Protocol):
    """What follows a compile, as the farm uses it: in workers. Raises FusecError."""

    def verify(
        self, graph: bytes, target: Target, found: Found, seconds: float, gpu: int
    ) -> Verification: ...

    def candidates(self, plan: bytes, device: str, single: bool) -> list[Candidate]:
        """single: those with one variant too, for a descent."""
        ...

    def variants(self, problem: bytes) -> tuple[dict[str, bytes], dict[str, str]]: ...

    def race(self, compiled: Sequence[Compiled], seconds: float, gpu: int) -> dict[str, Chosen]: ...

    def step(self, history: Sequence[bytes], record: bytes) -> bytes:
        """The next problem of a descent, after those that were raced and the record of the last of
        them; empty where there is none."""
        ...


@dataclass(frozen=True, slots=True)
class FusecQuality:
    """The real one."""

    def verify(
        self, graph: bytes, target: Target, found: Found, seconds: float, gpu: int
    ) -> Verification:
        from fusec.codegen.isa import host_target
        from fusec.tune.device import only_gpu
        from fusec.verification.verify import Limits, verify

        shown = None
        if target.device == "cuda":
            shown = only_gpu(gpu, os.environ)
        elif not _runs(target.isa, host_target().isa):
            why = f"the worker's processor is {host_target().isa}, the target {target.isa}"
            return Verification(Outcome.SKIPPED, why=why)
        threads = max(1, min(4, len(os.sched_getaffinity(0)) // 2))
        return verify(graph, found, limits=Limits(seconds=seconds, threads=threads), gpu=shown)

    def candidates(self, plan: bytes, device: str, single: bool) -> list[Candidate]:
        from fusec.codegen.triton_toolchain import compiler_version
        from fusec.ir.program_wire import program_from_bytes
        from fusec.pipeline import Plan
        from fusec.tune.problem import problem_to_bytes, problems
        from fusec.tune.record import record_key

        made = Plan.from_bytes(plan)
        compiler = compiler_version()
        return [
            Candidate(
                problem.source.digest,
                record_key(problem.source, device, compiler, False),
                problem_to_bytes(problem),
                record_key(problem.source, device, compiler, True),
            )
            for problem in problems(program_from_bytes(made.program), made.kernels)
            if single or len(problem.source.variants) > 1
        ]

    def variants(self, problem: bytes) -> tuple[dict[str, bytes], dict[str, str]]:
        from fusec.codegen.triton_toolchain import compile_variants
        from fusec.tune.problem import problem_from_bytes

        source = problem_from_bytes(problem).source
        binaries: dict[str, bytes] = {}
        left_out: dict[str, str] = {}
        jobs = [(source, number) for number in range(len(source.variants))]
        for number, built in compile_variants(jobs, _COMPILE_S):
            if isinstance(built, CompileError):
                left_out[str(number)] = built.message
            else:
                binaries[str(number)] = built.to_bytes()
        return binaries, left_out

    def race(self, compiled: Sequence[Compiled], seconds: float, gpu: int) -> dict[str, Chosen]:
        from fusec.codegen.gpu_binary import GpuBinary
        from fusec.tune.problem import problem_from_bytes
        from fusec.tune.race_variants import STANDS, race_variants
        from fusec.tune.timing import Timer

        deadline = time.monotonic() + seconds
        found: dict[str, Chosen] = {}
        timer = Timer(gpu)
        try:
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
        finally:
            timer.close()
        return found

    def step(self, history: Sequence[bytes], record: bytes) -> bytes:
        from fusec.tune.neighbours import next_step
        from fusec.tune.problem import problem_from_bytes, problem_to_bytes
        from fusec.tune.record import Record

        problems = [problem_from_bytes(data) for data in history]
        best = problems[-1].source.variants[Record.from_bytes(record).variant]
        step = next_step(problems, best)
        return b"" if step is None else problem_to_bytes(step)


def _runs(isa: str, here: str) -> bool:
    """Whether a processor of the level ``here`` runs code of a level: levels of a kind are sorted
    by their names."""
    kind = isa.rpartition("-v")[0]
    return isa == here or (bool(kind) and kind == here.rpartition("-v")[0] and isa <= here)


# -- tasks and their results --------------------------------------------------------------------


def verify_task(
    graph: bytes, target: Target, found: Found, seconds: float, needs: str, label: str
) -> Task:
    """The task that verifies an artifact; `verification_of` reads its result."""
    body: dict[str, Value] = {
        "graph": graph,
        "target": {**target.to_wire()},
        "manifest": found.manifest.encode(),
        "blobs": dict(found.blobs),
        "seconds": seconds,
    }
    return Task(VERIFY, pack(body), label, needs=needs)


def verification_of(result: bytes) -> Verification:
    """Raises CacheError, WireError."""
    body = unpack(result, max_bytes=MAX_TASK)
    return Verification.from_wire(body if isinstance(body, dict) else {})


def candidates_task(plan: bytes, device: str, single: bool, label: str) -> Task:
    """The task that finds a plan's candidates; `candidates_of` reads its result."""
    return Task(CANDIDATES, pack({"plan": plan, "device": device, "single": single}), label)


def candidates_of(result: bytes) -> list[Candidate]:
    """Raises CacheError, WireError."""
    body = unpack(result, max_bytes=MAX_TASK)
    if not isinstance(body, list):
        raise WireError("candidates are no list")
    return [_candidate(item) for item in body]


def variants_task(candidate: Candidate) -> Task:
    """The task that compiles a candidate's variants; `compiled_of` reads its result."""
    return Task(VARIANTS, candidate.problem, f"variants of {candidate.digest[:12]}", needs=CPU)


def compiled_of(candidate: Candidate, result: bytes) -> Compiled:
    """Raises CacheError, WireError."""
    body = fields(unpack(result, max_bytes=MAX_TASK), "variants", ("binaries", "left_out"))
    return Compiled(candidate, _bytes_map(body["binaries"]), _text_map(body["left_out"]))


def race_task(compiled: Sequence[Compiled], seconds: float, needs: str) -> Task:
    """The task that times some kernels' variants; `chosen_of` reads its result."""
    kernels: list[Value] = [
        [_wire(each.candidate), dict(each.binaries), dict(each.left_out)] for each in compiled
    ]
    label = f"race of {len(kernels)} kernels"
    return Task(RACE, pack({"kernels": kernels, "seconds": seconds}), label, needs=needs)


def chosen_of(result: bytes) -> tuple[dict[str, Chosen], float]:
    """The outcomes by digest, and seconds that the GPU was held. Raises CacheError, WireError."""
    body = fields(unpack(result, max_bytes=MAX_TASK), "a race", ("chosen", "seconds"))
    raw, seconds = body["chosen"], body["seconds"]
    if not isinstance(raw, dict) or not isinstance(seconds, float):
        raise WireError("the result of a race is malformed")
    found: dict[str, Chosen] = {}
    for digest, item in raw.items():
        one = fields(item, "a race's outcome", ("binary", "record", "why"))
        binary, record = one["binary"], one["record"]
        if not isinstance(binary, bytes) or not isinstance(record, bytes):
            raise WireError("the result of a race is malformed")
        found[digest] = Chosen(binary, record, str(one["why"]))
    return found, seconds


def steps_task(kernels: Mapping[str, tuple[Sequence[bytes], bytes]], label: str) -> Task:
    """The task that finds the next steps of descents, given the history and last record of each
    kernel; `steps_of` reads its result."""
    body: dict[str, Value] = {
        digest: {"history": [*history], "record": record}
        for digest, (history, record) in kernels.items()
    }
    return Task(STEPS, pack(body), label)


def steps_of(result: bytes) -> dict[str, bytes]:
    """The next problems, by kernel; empty where there is none. Raises CacheError, WireError."""
    return _bytes_map(unpack(result, max_bytes=MAX_TASK))


def run_quality(task: Task, quality: Quality) -> bytes:
    """Do one of these tasks. Raises FusecError, CacheError."""
    if task.kind == VARIANTS:
        binaries, left_out = quality.variants(task.payload)
        return pack({"binaries": {**binaries}, "left_out": {**left_out}})
    body = unpack(task.payload, max_bytes=MAX_TASK)
    if task.kind == CANDIDATES:
        body = fields(body, "candidates task", ("plan", "device", "single"))
        plan, single = _bytes(body["plan"]), body["single"] is True
        return pack([_wire(c) for c in quality.candidates(plan, str(body["device"]), single)])
    if task.kind == STEPS:
        if not isinstance(body, dict):
            raise WireError("a steps task is malformed")
        return pack({digest: _step(item, quality) for digest, item in body.items()})
    if task.kind == VERIFY:
        names = ("graph", "target", "manifest", "blobs", "seconds")
        body = fields(body, "verify task", names)
        artifact = Found(Manifest.decode(_bytes(body["manifest"])), _bytes_map(body["blobs"]))
        raw = body["target"]
        target = Target.from_wire(raw if isinstance(raw, dict) else {})
        seconds = _seconds(body["seconds"])
        verdict = quality.verify(_bytes(body["graph"]), target, artifact, seconds, task.gpu)
        return pack(verdict.to_wire())
    body = fields(body, "race task", ("kernels", "seconds"))
    kernels = body["kernels"]
    if not isinstance(kernels, list):
        raise WireError("a race task is malformed")
    started = time.monotonic()
    chosen = quality.race([_compiled(k) for k in kernels], _seconds(body["seconds"]), task.gpu)
    outcomes: dict[str, Value] = {
        digest: {"binary": c.binary, "record": c.record, "why": c.why}
        for digest, c in chosen.items()
    }
    return pack({"chosen": outcomes, "seconds": time.monotonic() - started})


def _step(item: Value, quality: Quality) -> bytes:
    body = fields(item, "a step", ("history", "record"))
    history = body["history"]
    if not isinstance(history, list) or not history:
        raise WireError("a step without a race before it")
    return quality.step([_bytes(problem) for problem in history], _bytes(body["record"]))


def _compiled(item: Value) -> Compiled:
    if not isinstance(item, list) or len(item) != 3:
        raise WireError("not a compiled candidate")
    return Compiled(_candidate(item[0]), _bytes_map(item[1]), _text_map(item[2]))


def _wire(candidate: Candidate) -> list[Value]:
    return [getattr(candidate, name) for name in _CANDIDATE]


def _candidate(item: Value) -> Candidate:
    if isinstance(item, list) and len(item) == len(_CANDIDATE):
        digest, key, problem, descended, standing = item
        if isinstance(digest, str) and isinstance(key, str) and isinstance(descended, str):
            return Candidate(digest, key, _bytes(problem), descended, _bytes(standing))
    raise WireError("not a candidate")


_CANDIDATE: Final = ("digest", "key", "problem", "descended", "standing")


def _bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise WireError("bytes expected")
    return value


def _seconds(value: Value) -> float:
    if not isinstance(value, (int, float)) or not 0 < value < 86400:
        raise WireError("seconds expected")
    return float(value)


def _bytes_map(value: Value) -> dict[str, bytes]:
    if not isinstance(value, dict):
        raise WireError("a map expected")
    return {name: _bytes(item) for name, item in value.items()}


def _text_map(value: Value) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(x, str) for x in value.values()):
        raise WireError("a map of texts expected")
    return {name: str(item) for name, item in value.items()}
