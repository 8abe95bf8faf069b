"""The compiler on one page: Graph → LoopProgram → Groups → Kernels → Artifact.

    plan       lower, dissolve, schedule, generate code: pure, no I/O
    build      one kernel's source to a binary, by the target's compiler in a child process
    assemble   plan and binaries to an artifact: a manifest and its blobs

`compile_local` does all of it in this process, with the kernels built in parallel.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import msgpack

from cache.artifacts import Found, lookup, publish
from cache.errors import CacheError
from cache.manifest import Manifest
from cache.store import Store
from fusec.artifact.fingerprint import graph_fingerprint, kernel_key, toolchain
from fusec.artifact.quality import Quality, Tier, with_quality
from fusec.codegen.gpu_source import GpuSource
from fusec.codegen.host import EmitOnce, HostPlan, build_host_plan
from fusec.codegen.kernel_source import KernelSource
from fusec.codegen.targets import Source, code_generator, source_from_bytes, source_to_bytes
from fusec.errors import WireError
from fusec.faults import contained
from fusec.inspect.report import report
from fusec.ir.graph import Graph
from fusec.ir.program_wire import program_from_bytes, program_to_bytes
from fusec.ir.wire import graph_to_bytes
from fusec.lower.lowering import lower
from fusec.options import Options, Target
from fusec.parts import Parts, distinct, finish, spread
from fusec.runtime.format import ARTIFACT_FORMAT, KERNEL_BLOB, PROGRAM_BLOB, RUNNER_BLOB
from fusec.schedule.dissolve import dissolve
from fusec.schedule.groups import Schedule
from fusec.schedule.one_hot import pick_one_hot
from fusec.schedule.search import schedule_in_parts
from fusec.schedule.settled import Settled
from fusec.schedule.single import drop_single_folds
from fusec.schedule.split_folds import split_folds
from fusec.schedule.verify import verify_schedule
from fusec.trace import Recorder
from fusec.tune.device import current_gpu, device_class, visible_gpus
from fusec.tune.partitions import Timed, fastest
from fusec.tune.problem import problems, starts
from fusec.tune.tuner import Tuned, tune

__all__ = [
    "KernelSource",
    "Plan",
    "Source",
    "assemble",
    "build_kernel",
    "choices",
    "compile_local",
    "kernel_store_key",
    "plan",
    "plan_in_parts",
    "source_from_bytes",
    "source_to_bytes",
    "stages",
]

MAX_PLAN_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """A compiled graph before its kernels are built. ``kernels`` are distinct and include the
    runner, the last; ``report`` is plain numbers by name; ``near``: of each distinct region of the
    graph, how many partitions cost about the same (`fusec.schedule.groups.Schedule`)."""

    program: bytes
    kernels: tuple[Source, ...]
    report: dict[str, int]
    near: tuple[int, ...] = ()

    def to_bytes(self) -> bytes:
        body = {
            "v": ARTIFACT_FORMAT,
            "program": self.program,
            "kernels": [source_to_bytes(k) for k in self.kernels],
            "report": sorted(self.report.items()),
            "near": self.near,
        }
        return bytes(msgpack.packb(body, use_bin_type=True))

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """Raises WireError for anything that `to_bytes` of this version does not write."""
        if len(data) > MAX_PLAN_BYTES:
            raise WireError(f"a plan of {len(data)} bytes is over {MAX_PLAN_BYTES}")
        try:
            body = msgpack.unpackb(data, raw=False)
            if body["v"] != ARTIFACT_FORMAT or not isinstance(body["program"], bytes):
                raise WireError("a plan of another version of fusec")
            kernels = tuple(source_from_bytes(k) for k in body["kernels"])
            numbers = {str(k): int(v) for k, v in body["report"]}
            near = tuple(int(n) for n in body["near"])
        except (ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
            raise WireError(f"a plan does not decode: {error}") from error
        return cls(body["program"], kernels, numbers, near)


def plan(
    graph: Graph,
    target: Target,
    options: Options,
    *,
    recorder: Recorder,
    picks: tuple[int, ...] = (),
) -> Plan:
    """Compile a graph up to source. Deterministic: equal arguments give equal bytes.

    picks: of each distinct region the number of its partition, of those that `Plan.near` counts;
    the cheapest by the cost model where it is not said.
    Raises CompilerError for a graph or a target that cannot be compiled.
    """
    return finish(plan_in_parts(graph, target, options, recorder=recorder, picks=picks))


def plan_in_parts(
    graph: Graph,
    target: Target,
    options: Options,
    *,
    recorder: Recorder,
    picks: tuple[int, ...] = (),
) -> Parts[Source, Plan]:
    """As `plan`; its parts are the kernels, each once and as soon as there is code for it."""
    with _collector_paused():
        runner = code_generator(target).runner
        yield runner
        work = _stages(graph, target, options, recorder, picks)
        grouped, host = yield from distinct(work, lambda kernel: kernel.digest)
        with recorder.span("codegen"):
            encoded = program_to_bytes(host.program)
        return Plan(encoded, (*host.kernels, runner), report(grouped, host), grouped.near)


def stages(
    graph: Graph,
    target: Target,
    options: Options,
    *,
    recorder: Recorder,
    picks: tuple[int, ...] = (),
) -> tuple[Schedule, HostPlan]:
    """What a plan is made of: the groups, and their kernels and program. Arguments and faults as of
    `plan`."""
    with _collector_paused():
        return finish(_stages(graph, target, options, recorder, picks))


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Without the cyclic garbage collector: a plan makes many objects and hardly a cycle, and each
    collection would walk the whole heap of the process, torch included. What is made inside is
    best gone at the end, or the collector walks it then."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _stages(
    graph: Graph, target: Target, options: Options, recorder: Recorder, picks: tuple[int, ...]
) -> Parts[Source, tuple[Schedule, HostPlan]]:
    with contained("the compiler"):  # a mistake in a pass, or a graph that lies
        return (yield from _passes(graph, target, options, recorder, picks))


def _passes(
    graph: Graph, target: Target, options: Options, recorder: Recorder, picks: tuple[int, ...]
) -> Parts[Source, tuple[Schedule, HostPlan]]:
    generator = code_generator(target)
    with recorder.span("lower"):
        program = lower(graph, strict_rounding=options.strict_rounding)
        recorder.count("lowerings")
    with recorder.span("schedule"):
        loops = split_folds(pick_one_hot(dissolve(drop_single_folds(program))), generator.machine)
        machine = generator.machine
        once = EmitOnce(generator.emit)

        def ahead(settled: Settled) -> Sequence[Source]:
            with recorder.span("codegen"):
                return once.ahead(settled)

        work = schedule_in_parts(loops, fusion=options.fusion, machine=machine, picks=picks)
        grouped = yield from spread(work, ahead)
        verify_schedule(grouped)
    with recorder.span("codegen"):
        host = yield from build_host_plan(
            grouped,
            once,
            target.device,
            machine.alignment,
            generator.batching,
            machine.own_bytes,
        )
    return grouped, host


def kernel_store_key(kernel: Source, target: Target) -> str:
    """The store's key of a kernel built by this machine's compiler."""
    return kernel_key(kernel, target, code_generator(target).compiler(kernel))


def build_kernel(kernel: Source, target: Target) -> bytes:
    """One kernel's binary: a shared library, or a `GpuBinary`. Raises CompileError."""
    return code_generator(target).build(kernel)


def choices(plan: Plan) -> tuple[GpuSource, ...]:
    """The kernels of a plan that there are several ways to build."""
    return tuple(k for k in plan.kernels if isinstance(k, GpuSource) and len(k.variants) > 1)


def assemble(
    plan: Plan, binaries: Mapping[str, bytes], *, device: str = "", tuned: int = 0
) -> tuple[Manifest, dict[str, bytes]]:
    """The artifact of a plan, given each kernel's binary by digest. Deterministic.

    device: the class of GPU that took part in choosing variants, and of how many kernels it decided
    (``tuned``); empty: the cost model did.
    """
    blobs = {PROGRAM_BLOB: plan.program}
    for kernel in plan.kernels[:-1]:
        blobs[f"kernel/{kernel.digest}"] = binaries[kernel.digest]
    blobs[RUNNER_BLOB] = binaries[plan.kernels[-1].digest]
    meta = msgpack.packb(
        {"v": ARTIFACT_FORMAT, "report": sorted(plan.report.items())}, use_bin_type=True
    )
    open_choices = len(choices(plan))
    if device:
        quality = Quality(Tier.TUNED, device, tuned, max(0, open_choices - tuned))
    else:
        tier = Tier.UNTUNED if open_choices else Tier.SINGLE
        quality = Quality(tier, untuned=open_choices)
    return with_quality(Manifest.of("graph", blobs, meta), quality), blobs


def compile_local(
    graph: Graph, target: Target, options: Options, store: Store, *, recorder: Recorder
) -> Found:
    """Compile in this process and keep the artifact and its kernels in ``store``.

    The variants of GPU kernels are raced where this process has the target's GPU, and under
    max-autotune partitions into kernels too. Kernels that the store has are not built again. Raises
    CompilerError; a store that fails to keep something is counted (``store_full``) and otherwise
    ignored.
    """
    made = plan(graph, target, options, recorder=recorder)
    with recorder.span("build"):
        made, device, binaries = _tuned(graph, made, target, options, store, recorder)
        tuned = len(binaries)
        left = [k for k in made.kernels if k.digest not in binaries]
        workers = max(1, min(len(left), len(os.sched_getaffinity(0))))
        with ThreadPoolExecutor(workers, thread_name_prefix="fusec-build") as pool:
            built = pool.map(lambda k: _kernel(k, target, store, recorder), left)
            binaries.update((k.digest, b) for k, b in zip(left, built, strict=True))
    with _collector_paused():
        manifest, blobs = assemble(made, binaries, device=device, tuned=tuned)
        key = graph_fingerprint(graph_to_bytes(graph), target, options, toolchain()).key("graph")
    try:
        publish(store, key, manifest, blobs)
    except CacheError:
        recorder.count("store_full")
    return Found(manifest, blobs)


def _tuned(
    graph: Graph,
    made: Plan,
    target: Target,
    options: Options,
    store: Store,
    recorder: Recorder,
) -> tuple[Plan, str, dict[str, bytes]]:
    """The plan, or under max-autotune another one whose kernels take less time; this process's GPU,
    if it can choose, and the binaries of the kernels whose variant it has chosen, by digest."""
    ordinal = current_gpu() if target.device == "cuda" and options.tune_s > 0 else None
    if ordinal is None:
        return made, "", {}
    descend = options.mode == "max-autotune"
    deadline = time.monotonic() + options.tune_s

    def timed(tried: Plan) -> Timed[tuple[Plan, list[Tuned]]]:
        program = program_from_bytes(tried.program)
        chosen = tune(
            problems(program, tried.kernels),
            budget_s=max(0.0, deadline - time.monotonic()),
            recorder=recorder,
            store=store,
            ordinal=ordinal,
            descend=descend,
        )
        ms = {t.problem.source.digest: t.record.ms for t in chosen if t.record is not None}
        return Timed((tried, chosen), starts(program, [t.problem for t in chosen]), ms)

    def other(picks: tuple[int, ...]) -> Timed[tuple[Plan, list[Tuned]]] | None:
        if time.monotonic() > deadline:
            return None
        return timed(plan(graph, target, options, recorder=recorder, picks=picks))

    made, chosen = fastest(timed(made), made.near if descend else (), other).made
    binaries = {t.problem.source.digest: t.binary.to_bytes() for t in chosen if t.binary}
    name, isa = visible_gpus()[ordinal]
    return made, (device_class(name, isa) if isa == target.isa else ""), binaries


def _kernel(kernel: Source, target: Target, store: Store, recorder: Recorder) -> bytes:
    key = kernel_store_key(kernel, target)
    try:
        found = lookup(store, key)
    except CacheError:
        found = None
    if found is not None and KERNEL_BLOB in found.blobs:
        return found.blobs[KERNEL_BLOB]
    binary = build_kernel(kernel, target)
    recorder.count("kernel_compiles")
    blobs = {KERNEL_BLOB: binary}
    try:
        publish(store, key, Manifest.of("kernel", blobs), blobs)
    except CacheError:
        recorder.count("store_full")
    return binary
