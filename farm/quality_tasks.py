"""Tasks that make a compiled graph better known: verifying it, and choosing its kernels' variants.

    verify       an artifact beside eager: on a GPU worker for a GPU, else on a CPU worker
    candidates   the kernels of a plan that there are several ways to build: on a CPU worker
    variants     some variants of one kernel compiled: on a CPU worker, whatever the target
    race         compiled variants timed: on a GPU worker, which compiles nothing
    steps        what a descent tries next of some kernels: on a CPU worker
    warm_gpu     what the first verification would wait for, loaded: on a GPU worker

What runs on a GPU worker keeps child processes of its own; the others run in the worker's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from cache.artifacts import Found
from cache.manifest import Manifest
from cache.protocol import Value, fields, pack, unpack
from farm.pool import Task
from farm.stamp import laps_from_wire, laps_to_wire
from fusec.artifact.quality import Verification
from fusec.errors import WireError
from fusec.options import Target
from fusec.trace import Lap, Recorder

VERIFY: Final = "verify"
CANDIDATES: Final = "candidates"
VARIANTS: Final = "variants"
RACE: Final = "race"
STEPS: Final = "steps"
WARM_GPU: Final = "warm_gpu"
QUALITY: Final = frozenset((VERIFY, CANDIDATES, VARIANTS, RACE, STEPS, WARM_GPU))
SUPERVISED: Final = frozenset((VERIFY, RACE, WARM_GPU))
"""Kinds that start limited children by themselves."""
MAX_TASK: Final = 256 << 20
MOST_VARIANTS: Final = 1024
VARIANTS_A_TASK: Final = 1
"""Each takes a worker for most of a second, and clients who come meanwhile wait for it to end."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel with a choice of variants. key: of its tuning record; descended: of the record that
    a descent leaves; problem: what to time, of so many variants (``count``); standing: a binary
    that is to be beaten, if any."""

    digest: str
    key: str
    problem: bytes
    count: int
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
        self,
        graph: bytes,
        target: Target,
        found: Found,
        seconds: float,
        gpu: int,
        recorder: Recorder,
    ) -> Verification: ...

    def candidates(self, plan: bytes, device: str, single: bool) -> list[Candidate]:
        """The largest first. single: those with one variant too, for a descent."""
        ...

    def variants(
        self, problem: bytes, numbers: Sequence[int]
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """Binaries of these variants by number, and why the others have none."""
        ...

    def race(self, compiled: Sequence[Compiled], seconds: float, gpu: int) -> dict[str, Chosen]: ...

    def step(self, history: Sequence[bytes], record: bytes) -> tuple[bytes, int]:
        """The next problem of a descent and its number of variants, after those that were raced and
        the record of the last of them; empty where there is none."""
        ...

    def warm(self, gpu: int) -> None:
        """Load what a verification on this GPU needs."""
        ...


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


def verification_of(result: bytes) -> tuple[Verification, tuple[Lap, ...]]:
    """The record, and when the worker was at which stage of it. Raises CacheError, WireError."""
    body = fields(unpack(result, max_bytes=MAX_TASK), "a verification", ("record", "laps"))
    record = body["record"]
    laps = laps_from_wire(body["laps"])
    return Verification.from_wire(record if isinstance(record, dict) else {}), laps


def candidates_task(plan: bytes, device: str, single: bool, label: str) -> Task:
    """The task that finds a plan's candidates; `candidates_of` reads its result."""
    return Task(CANDIDATES, pack({"plan": plan, "device": device, "single": single}), label)


def candidates_of(result: bytes) -> list[Candidate]:
    """Raises CacheError, WireError."""
    body = unpack(result, max_bytes=MAX_TASK)
    if not isinstance(body, list):
        raise WireError("candidates are no list")
    return [_candidate(item) for item in body]


def warm_gpu_task(needs: str) -> Task:
    """The task that has a GPU's worker ready, ahead of the first graph."""
    return Task(WARM_GPU, pack({}), "warm up a GPU", needs=needs)


def variants_tasks(candidate: Candidate) -> list[Task]:
    """The tasks that compile a candidate's variants; `compiled_of` reads their results."""
    label = f"variants of {candidate.digest[:12]}"
    numbers = list[Value](range(candidate.count))
    parts = [numbers[n : n + VARIANTS_A_TASK] for n in range(0, len(numbers), VARIANTS_A_TASK)]
    problem = candidate.problem
    return [Task(VARIANTS, pack({"problem": problem, "numbers": p}), label) for p in parts]


def compiled_of(candidate: Candidate, results: Sequence[bytes]) -> Compiled:
    """Raises CacheError, WireError."""
    binaries: dict[str, bytes] = {}
    left_out: dict[str, str] = {}
    for result in results:
        body = fields(unpack(result, max_bytes=MAX_TASK), "variants", ("binaries", "left_out"))
        binaries.update(_bytes_map(body["binaries"]))
        left_out.update(_text_map(body["left_out"]))
    return Compiled(candidate, binaries, left_out)


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


def steps_of(result: bytes) -> dict[str, tuple[bytes, int]]:
    """The next problems and their numbers of variants, by kernel; empty where there is none. Raises
    CacheError, WireError."""
    body = unpack(result, max_bytes=MAX_TASK)
    if not isinstance(body, dict):
        raise WireError("the result of a steps task is malformed")
    found: dict[str, tuple[bytes, int]] = {}
    for digest, item in body.items():
        step = fields(item, "a step", ("problem", "count"))
        found[digest] = _bytes(step["problem"]), _count(step["count"])
    return found


def run_quality(task: Task, quality: Quality) -> bytes:
    """Do one of these tasks. Raises FusecError, CacheError."""
    body = unpack(task.payload, max_bytes=MAX_TASK)
    if task.kind == WARM_GPU:
        quality.warm(task.gpu)
        return b""
    if task.kind == VARIANTS:
        body = fields(body, "variants task", ("problem", "numbers"))
        binaries, left_out = quality.variants(_bytes(body["problem"]), _numbers(body["numbers"]))
        return pack({"binaries": {**binaries}, "left_out": {**left_out}})
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
        graph, laps = _bytes(body["graph"]), list[Lap]()
        recorder = Recorder(laps=laps)
        verdict = quality.verify(graph, target, artifact, seconds, task.gpu, recorder)
        return pack({"record": verdict.to_wire(), "laps": laps_to_wire(laps)})
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


def _step(item: Value, quality: Quality) -> Value:
    body = fields(item, "a step", ("history", "record"))
    history = body["history"]
    if not isinstance(history, list) or not history:
        raise WireError("a step without a race before it")
    problem, count = quality.step([_bytes(p) for p in history], _bytes(body["record"]))
    return {"problem": problem, "count": count}


def _compiled(item: Value) -> Compiled:
    if not isinstance(item, list) or len(item) != 3:
        raise WireError("not a compiled candidate")
    return Compiled(_candidate(item[0]), _bytes_map(item[1]), _text_map(item[2]))


def _wire(candidate: Candidate) -> list[Value]:
    return [getattr(candidate, name) for name in _CANDIDATE]


def _candidate(item: Value) -> Candidate:
    if isinstance(item, list) and len(item) == len(_CANDIDATE):
        digest, key, problem, count, descended, standing = item
        if isinstance(digest, str) and isinstance(key, str) and isinstance(descended, str):
            rest = descended, _bytes(standing)
            return Candidate(digest, key, _bytes(problem), _count(count), *rest)
    raise WireError("not a candidate")


_CANDIDATE: Final = ("digest", "key", "problem", "count", "descended", "standing")


def _count(value: Value) -> int:
    if not isinstance(value, int) or not 0 <= value <= MOST_VARIANTS:
        raise WireError("a number of variants expected")
    return value


def _numbers(value: Value) -> list[int]:
    if not isinstance(value, list):
        raise WireError("numbers of variants expected")
    numbers = [number for number in value if isinstance(number, int)]
    if len(numbers) < len(value):
        raise WireError("numbers of variants expected")
    return numbers


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
