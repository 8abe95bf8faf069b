"""What runs in a worker: plain functions over bytes, and the stages they call.

`run` is the one entrance for every pool. Expected failures leave it as TaskFailed with the kind
that decides on a retry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from cache.errors import CacheError
from cache.manifest import Manifest
from cache.protocol import MAX_SUBMIT, Value, fields, pack, unpack
from farm.pool import Task, TaskFailed
from farm.quality import FusecQuality
from farm.quality_tasks import QUALITY, Quality, run_quality
from farm.retry import ErrorKind
from farm.stamp import laps_from_wire, laps_to_wire
from fusec.artifact.fingerprint import Fingerprint, graph_fingerprint, toolchain
from fusec.errors import (
    ArtifactError,
    ChildLost,
    CompilerError,
    CompilerLost,
    FusecError,
    Loss,
    OptionsError,
    WireError,
)
from fusec.options import Options, Target
from fusec.parts import Parts, each, gathered
from fusec.remote.protocol import FarmJob, options_from_wire, options_to_wire
from fusec.trace import Lap, Recorder

MAX_RESULT: Final = 256 << 20
PART_KERNELS: Final = 8
"""Kernels that a plan hands on together: each part costs the gateway about what a task does."""
PLAN: Final = "plan"
BUILD: Final = "build"


@dataclass(frozen=True, slots=True)
class PlannedKernel:
    """A distinct kernel of a plan: identity, key in the stores, and `source_to_bytes(kernel)`."""

    digest: str
    key: str
    source: bytes


@dataclass(frozen=True, slots=True)
class Planned:
    """A graph after lowering, scheduling and code generation: `Plan.to_bytes()`.

    ``keys``: its kernels, by digest, as they are kept in the stores. ``laps``: when the worker was
    at which stage.
    """

    plan: bytes
    keys: Mapping[str, str]
    laps: tuple[Lap, ...] = ()

    def encode(self) -> bytes:
        laps = laps_to_wire(self.laps)
        return pack({"plan": self.plan, "keys": dict(self.keys), "laps": laps})

    @classmethod
    def decode(cls, data: bytes) -> Planned:
        """Raises CacheError, WireError for anything that `encode` does not write."""
        names = ("plan", "keys", "laps")
        body = fields(unpack(data, max_bytes=MAX_RESULT), "planned graph", names)
        plan, keys = body["plan"], body["keys"]
        if not isinstance(plan, bytes) or not isinstance(keys, dict):
            raise WireError("a planned graph is malformed")
        by_digest = {digest: key for digest, key in keys.items() if isinstance(key, str)}
        if len(by_digest) < len(keys):
            raise WireError("the kernels of a planned graph are malformed")
        return cls(plan, by_digest, laps_from_wire(body["laps"]))


class Stages(Protocol):
    """The compiler as the farm uses it. Raises CompilerError, WireError."""

    def plan(self, graph: bytes, target: Target, options: Options) -> Parts[PlannedKernel, Planned]:
        """Lower, schedule and generate code: in a worker, no I/O. Its parts are the distinct
        kernels, each as soon as there is code for it."""
        ...

    def build(self, source: bytes, target: Target) -> bytes:
        """One kernel's source to its binary: in a worker, by a child process."""
        ...

    def assemble(
        self, plan: bytes, binaries: Mapping[str, bytes], device: str = "", tuned: int = 0
    ) -> tuple[Manifest, dict[str, bytes]]:
        """Plan and binaries by kernel digest to the artifact: at the gateway. device: the class of
        GPU that has chosen the variants of so many (``tuned``) kernels, empty for none."""
        ...

    @property
    def quality(self) -> Quality:
        """What follows a compile."""
        ...

    def fingerprint(
        self, graph: bytes, target: Target, options: Options
    ) -> tuple[tuple[str, str], ...]:
        """The entries of the graph's fingerprint: at the gateway and again in the worker."""
        ...

    def warm(self, *, gpu: bool) -> None:
        """Load what `plan` and `build` need: in a worker. gpu: for kernels for GPUs too."""
        ...


@dataclass(frozen=True, slots=True)
class FusecStages:
    """The real compiler. It is loaded where it runs, on its first use."""

    def plan(self, graph: bytes, target: Target, options: Options) -> Parts[PlannedKernel, Planned]:
        from fusec.ir.wire import graph_from_bytes
        from fusec.pipeline import Source, kernel_store_key, plan_in_parts, source_to_bytes

        keys: dict[str, str] = {}

        def planned(kernel: Source) -> PlannedKernel:
            digest = kernel.digest
            keys[digest] = kernel_store_key(kernel, target)
            return PlannedKernel(digest, keys[digest], source_to_bytes(kernel))

        laps: list[Lap] = []
        recorder = Recorder(laps=laps)
        work = plan_in_parts(graph_from_bytes(graph), target, options, recorder=recorder)
        made = yield from each(work, planned)
        return Planned(made.to_bytes(), keys, tuple(laps))

    def build(self, source: bytes, target: Target) -> bytes:
        from fusec.pipeline import build_kernel, source_from_bytes

        return build_kernel(source_from_bytes(source), target)

    def assemble(
        self, plan: bytes, binaries: Mapping[str, bytes], device: str = "", tuned: int = 0
    ) -> tuple[Manifest, dict[str, bytes]]:
        from fusec.pipeline import Plan, assemble

        return assemble(Plan.from_bytes(plan), binaries, device=device, tuned=tuned)

    @property
    def quality(self) -> Quality:
        return FusecQuality()

    def fingerprint(
        self, graph: bytes, target: Target, options: Options
    ) -> tuple[tuple[str, str], ...]:
        return graph_fingerprint(graph, target, options, toolchain()).entries

    def warm(self, *, gpu: bool) -> None:
        from fusec.codegen.triton_toolchain import warm
        from fusec.pipeline import compile_local

        toolchain()
        assert callable(compile_local)
        if gpu:
            warm()


LOSSES: Final[Mapping[Loss, ErrorKind]] = {
    Loss.START: ErrorKind.WORKER_LOST,  # this node's fault, not the task's
    Loss.CRASH: ErrorKind.CRASHED,
    Loss.TIME: ErrorKind.TIMEOUT,
    Loss.MEMORY: ErrorKind.OUT_OF_MEMORY,
    Loss.STOPPED: ErrorKind.CANCELLED,
}

Built = Mapping[str, bytes | TaskFailed]
"""What became of each kernel of a batch, by digest."""


def plan_task(job: FarmJob) -> Task:
    """The task that plans a graph; its parts are read by `planned_kernels`, its result is
    `Planned.encode()`."""
    body = {
        "fingerprint": job.fingerprint,
        "graph": job.graph,
        "target": job.target.to_wire(),
        "options": options_to_wire(job.options),
    }
    return Task(PLAN, pack(body), f"plan {job.fingerprint[:12]}")


def planned_kernels(part: bytes) -> list[PlannedKernel]:
    """Kernels that a plan has handed on. Raises CacheError, WireError for what is no such part."""
    value = unpack(part, max_bytes=MAX_RESULT)
    if not isinstance(value, list):
        raise WireError("a part of a plan is malformed")
    return [_planned_kernel(item) for item in value]


def warm_task(*, gpu: bool = False) -> Task:
    """The task that loads the compiler in a worker, ahead of the first graph. gpu: that of kernels
    for GPUs too."""
    return Task("warm", pack({"gpu": gpu}), "warm up")


def build_task(kernels: Sequence[PlannedKernel], target: Target, label: str) -> Task:
    """The task that builds a batch of kernels; `built` reads its result."""
    return Task(BUILD, pack({"target": target.to_wire(), "kernels": _rows(kernels)}), label)


def single_builds(task: Task) -> dict[str, Task]:
    """A build task's kernels as a task each, by digest. Raises CacheError, FusecError."""
    target, kernels = _kernels(task.payload)
    return {k.digest: build_task([k], target, f"kernel {k.digest[:12]}") for k in kernels}


def built_singly(results: Mapping[str, bytes | TaskFailed], node: str = "") -> bytes:
    """The result of a build task on a node, from those of its `single_builds` by digest."""
    together: dict[str, Value] = {}
    for digest, result in results.items():
        if isinstance(result, TaskFailed):
            together[digest] = _failure(result.kind, result.message, node)
        else:
            body = unpack(result, max_bytes=MAX_RESULT)
            together[digest] = body.get(digest) if isinstance(body, dict) else None
    return pack(together)


def built(result: bytes) -> Built:
    """The result of a build task. Raises CacheError, WireError when it is malformed."""
    value = unpack(result, max_bytes=MAX_RESULT)
    if not isinstance(value, dict):
        raise WireError("the result of a build is malformed")
    return {name: _outcome(item) for name, item in value.items()}


def run(task: Task, stages: Stages | None = None) -> Parts[bytes, bytes]:
    """Do a task. Raises TaskFailed for every failure that a stage is known to have."""
    work = _KINDS.get(task.kind)
    stages = stages or FusecStages()
    try:
        if task.kind in QUALITY:
            return run_quality(task, stages.quality)
        if task.kind == PLAN:
            return (yield from _run_plan(task.payload, stages))
        if work is None:
            raise TaskFailed(ErrorKind.INTERNAL, f"unknown kind of task {task.kind!r:.40}")
        return work(task.payload, stages)
    except (FusecError, CacheError) as error:
        raise TaskFailed(kind_of(error), str(error)) from error


def kind_of(error: FusecError | CacheError) -> ErrorKind:
    """The kind of failure that an error of a stage stands for."""
    if isinstance(error, (ChildLost, CompilerLost)):
        return LOSSES[error.loss]
    if isinstance(error, CompilerError):
        return ErrorKind.COMPILE_ERROR
    if isinstance(error, (ArtifactError, OptionsError, CacheError)):
        return ErrorKind.BAD_INPUT
    return ErrorKind.INTERNAL


def _run_plan(payload: bytes, stages: Stages) -> Parts[bytes, bytes]:
    names = ("fingerprint", "graph", "target", "options")
    body = fields(unpack(payload, max_bytes=MAX_SUBMIT), "plan task", names)
    graph, raw = body["graph"], body["options"]
    if not isinstance(graph, bytes) or not isinstance(raw, dict):
        raise WireError("a plan task is malformed")
    target, options = _target(body["target"]), options_from_wire(raw)
    # The toolchain is in the fingerprint: a worker of another release must not answer for it.
    if Fingerprint(stages.fingerprint(graph, target, options)).hex != body["fingerprint"]:
        text = "a worker runs another release of fusec or torch than the gateway: restart the farm"
        raise TaskFailed(ErrorKind.OTHER_RELEASE, text)
    work = gathered(stages.plan(graph, target, options), PART_KERNELS)
    planned = yield from each(work, lambda kernels: pack(_rows(kernels)))
    return planned.encode()


def _run_warm(payload: bytes, stages: Stages) -> bytes:
    stages.warm(gpu=fields(unpack(payload, max_bytes=64), "warm task", ("gpu",))["gpu"] is True)
    return b""


def _run_build(payload: bytes, stages: Stages) -> bytes:
    target, kernels = _kernels(payload)
    results: dict[str, Value] = {}
    for kernel in kernels:
        try:
            results[kernel.digest] = stages.build(kernel.source, target)
        except (FusecError, CacheError) as error:
            # One kernel at fault must not cost the others of its batch their result.
            results[kernel.digest] = _failure(kind_of(error), str(error))
    return pack(results)


def _kernels(payload: bytes) -> tuple[Target, list[PlannedKernel]]:
    body = fields(unpack(payload, max_bytes=MAX_RESULT), "build task", ("target", "kernels"))
    if not isinstance(body["kernels"], list):
        raise WireError("a build task is malformed")
    return _target(body["target"]), [_planned_kernel(item) for item in body["kernels"]]


def _failure(kind: ErrorKind, message: str, node: str = "") -> dict[str, Value]:
    return {"kind": kind.value, "message": message, "node": node}


_KINDS: Final[Mapping[str, Callable[[bytes, Stages], bytes]]] = {
    BUILD: _run_build,
    "warm": _run_warm,
}


def _rows(kernels: Sequence[PlannedKernel]) -> Value:
    return [[k.digest, k.key, k.source] for k in kernels]


def _planned_kernel(item: Value) -> PlannedKernel:
    if isinstance(item, list) and len(item) == 3:
        digest, key, source = item
        if isinstance(digest, str) and isinstance(key, str) and isinstance(source, bytes):
            return PlannedKernel(digest, key, source)
    raise WireError("not a planned kernel")


def _outcome(item: Value) -> bytes | TaskFailed:
    if isinstance(item, bytes):
        return item
    error = fields(item, "a kernel's failure", ("kind", "message", "node"))
    kind = ErrorKind.named(str(error["kind"]))
    return TaskFailed(kind, str(error["message"]), str(error["node"]))


def _target(value: Value) -> Target:
    if not isinstance(value, dict):
        raise WireError("a target is no map")
    return Target.from_wire(value)
