"""A compiler small enough for tests of the farm: every distinct operator is one kernel.

The name of an operator decides what its build does: `t.slow` takes a while, `t.held` until the
test calls `go`, `t.bad` does not compile, `t.die` kills its worker process, `t.hog` runs out of
memory, `t.flaky` dies once. A plan waits at `t.later` until the test calls `go`, and runs out of
memory there the first time if it is `t.tired`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cache import key as keys
from cache.artifacts import Found, lookup_many, publish
from cache.digest import digest
from cache.manifest import Manifest
from cache.protocol import pack, unpack
from cache.store import Store
from farm.quality_tasks import Candidate, Chosen, Compiled
from farm.workers import Planned, PlannedKernel
from fusec.artifact.fingerprint import graph_fingerprint
from fusec.artifact.quality import Outcome, Quality, Tier, Verification, with_quality
from fusec.errors import CompileError, LoweringError
from fusec.ir.expr import integer
from fusec.ir.graph import Graph, Node, Ref, TensorType
from fusec.ir.wire import graph_from_bytes, graph_to_bytes
from fusec.options import Options, Target
from fusec.parts import Parts, finish
from fusec.remote.jobs import GraphJob
from fusec.remote.protocol import FarmJob, Priority
from fusec.trace import Recorder

TARGET = Target("cpu", "x86-64-v3")
TOOLCHAIN = "t" * 64


@dataclass(frozen=True)
class TinyStages:
    """`Stages` without the compiler. Every plan and build leaves a line in `<log>/events`."""

    log: str
    slow_s: float = 0.2
    toolchain: str = TOOLCHAIN
    variants: bool = False  # whether kernels have any, for a GPU to choose from

    def plan(self, graph: bytes, target: Target, options: Options) -> Parts[PlannedKernel, Planned]:
        self.say("plan")
        names = [node.target for node in graph_from_bytes(graph).nodes if node.op == "call"]
        if "t.unlowerable" in names:
            raise LoweringError("no loops for t.unlowerable")
        made: dict[str, str] = {}
        for name in dict.fromkeys(names):
            source = name.encode()
            made[digest(source)] = keys.make("kernel", digest(source + target.isa.encode()))
            if name == "t.later":
                self._wait_for_go()
            if name == "t.tired" and self.count("plan") == 1:
                raise MemoryError
            yield PlannedKernel(digest(source), made[digest(source)], source)
        return Planned(pack(names), made)

    def build(self, source: bytes, target: Target) -> bytes:
        name = source.decode()
        self.say(f"build {name}")
        if name.startswith("t.slow"):
            time.sleep(self.slow_s)
        if name == "t.held":
            self._wait_for_go()
        if name == "t.bad":
            raise CompileError("gcc: no", output="line 1: error")
        if name == "t.hog":
            raise MemoryError
        if name == "t.bug":
            raise ZeroDivisionError
        if name == "t.die" or (name == "t.flaky" and self.count("build t.flaky") == 1):
            os._exit(3)
        return b"binary of " + source + b" for " + target.isa.encode()

    def assemble(
        self, plan: bytes, binaries: Mapping[str, bytes], device: str = "", tuned: int = 0
    ) -> tuple[Manifest, dict[str, bytes]]:
        blobs = {"program": plan, **{f"kernels/{name}": binaries[name] for name in binaries}}
        tier = Tier.TUNED if device else Tier.UNTUNED if self.variants else Tier.SINGLE
        manifest = Manifest.of("graph", blobs, pack({}))
        return with_quality(manifest, Quality(tier, device, tuned)), blobs

    @property
    def quality(self) -> TinyQuality:
        return TinyQuality(self)

    def fingerprint(
        self, graph: bytes, target: Target, options: Options
    ) -> tuple[tuple[str, str], ...]:
        return graph_fingerprint(graph, target, options, self.toolchain).entries

    def warm(self, *, gpu: bool) -> None:
        """There is nothing to load."""

    def compile_local(
        self, graph: Graph, target: Target, options: Options, store: Store, *, recorder: Recorder
    ) -> Found:
        """The same stages in this process, as `fusec.pipeline.compile_local`."""
        self.say("local")
        kernels: list[PlannedKernel] = []
        planned = finish(self.plan(graph_to_bytes(graph), target, options), kernels.append)
        kept = lookup_many(store, [kernel.key for kernel in kernels])
        binaries = {
            kernel.digest: kept[kernel.key].blobs["binary"]
            if kernel.key in kept
            else self.build(kernel.source, target)
            for kernel in kernels
        }
        manifest, blobs = self.assemble(planned.plan, binaries)
        key = graph_fingerprint(graph_to_bytes(graph), target, options, TOOLCHAIN).key("graph")
        publish(store, key, manifest, blobs)
        return Found(manifest, blobs)

    def events(self) -> list[str]:
        """What was done so far, by any process."""
        path = Path(self.log) / "events"
        return path.read_text().splitlines() if path.exists() else []

    def count(self, event: str) -> int:
        return self.events().count(event)

    def until(self, event: str) -> None:
        """Wait until something has begun."""
        deadline = time.monotonic() + 120.0
        while not self.count(event):
            assert time.monotonic() < deadline, event
            time.sleep(0.02)

    def go(self) -> None:
        """Let builds of `t.held` end."""
        (Path(self.log) / "go").touch()

    def _wait_for_go(self) -> None:
        deadline = time.monotonic() + 120.0
        while not (Path(self.log) / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.02)

    def say(self, event: str) -> None:
        with open(Path(self.log) / "events", "a") as file:
            file.write(event + "\n")


@dataclass(frozen=True)
class TinyQuality:
    """`farm.quality_tasks.Quality` of the same: a race is won by the third of three variants, and
    `t.wrong` computes something else in any of them, `t.fast` in the one that wins.

    A descent has two steps: the first finds a better one, the second does not. What was chosen
    before is beaten in a new trial by the second variant of `t.drifts`, and else by none.
    """

    stages: TinyStages

    def verify(
        self,
        graph: bytes,
        target: Target,
        found: Found,
        seconds: float,
        gpu: int,
        recorder: Recorder,
    ) -> Verification:
        names = [node.target for node in graph_from_bytes(graph).nodes if node.op == "call"]
        tuned = any(blob.startswith(b"variant 2") for blob in found.blobs.values())
        if "t.wrong" in names or (tuned and "t.fast" in names):
            return Verification(Outcome.FAILED, "tiny", why="1 of 4 values differ")
        return Verification(Outcome.PASSED, "tiny", compared=4)

    def candidates(self, plan: bytes, device: str, single: bool) -> list[Candidate]:
        names = unpack(plan, max_bytes=1 << 20)
        assert isinstance(names, list)
        distinct = dict.fromkeys(str(name).encode() for name in names)

        def key(name: bytes, descended: bytes) -> str:
            return keys.make("tuning", digest(name + device.encode() + descended))

        return [Candidate(digest(n), key(n, b""), n, 3, key(n, b">")) for n in distinct]

    def variants(
        self, problem: bytes, numbers: Sequence[int]
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        self.stages.say(f"variants {problem.decode()} {numbers[0]}")
        return {str(n): b"variant %d of " % n + problem for n in numbers}, {}

    def race(self, compiled: Sequence[Compiled], seconds: float, gpu: int) -> dict[str, Chosen]:
        for each in compiled:
            self.stages.say(f"race {each.candidate.problem.decode()}")
        time.sleep(self.stages.slow_s)
        return {each.candidate.digest: self._winner(each) for each in compiled}

    def _winner(self, compiled: Compiled) -> Chosen:
        problem, standing = compiled.candidate.problem, compiled.candidate.standing
        if problem == b"t.drifts" and standing:
            return Chosen(compiled.binaries["1"], b"record 1")
        if standing and not problem.endswith(b">1"):
            return Chosen(standing, why="it stands")
        return Chosen(compiled.binaries["2"], b"record 2")

    def step(self, history: Sequence[bytes], record: bytes) -> tuple[bytes, int]:
        assert record == b"record 2"
        return history[0] + b">%d" % len(history), 3

    def warm(self, gpu: int) -> None:
        self.stages.say(f"warm {gpu}")


def tiny_graph(*names: str) -> Graph:
    """A graph that applies the named operators one after another."""
    kind = TensorType("f32", (integer(4),), (integer(1),))
    nodes = [Node("input", "x", type=kind)]
    nodes += [Node("call", name, (Ref(i),), type=kind) for i, name in enumerate(names)]
    return Graph(tuple(nodes), (Ref(len(names)),))


def graph_job(*names: str, options: Options | None = None) -> GraphJob:
    """What the client hands to its resolver."""
    graph = tiny_graph(*names)
    data = graph_to_bytes(graph)
    fingerprint = graph_fingerprint(data, TARGET, options or Options(), TOOLCHAIN)
    return GraphJob(graph, data, fingerprint, TARGET, "test graph")


def farm_job(
    *names: str,
    waiter: str = "w",
    priority: Priority = Priority.WAITING,
    training_job: str = "",
    options: Options | None = None,
) -> FarmJob:
    """What the farm receives of it."""
    options = options or Options()
    job = graph_job(*names, options=options)
    return FarmJob(
        job.fingerprint.hex,
        job.fingerprint.entries,
        job.graph_bytes,
        TARGET,
        options,
        waiter,
        priority,
        training_job,
    )


def operators(found: Found) -> list[str]:
    """The result of a compile: the names of the graph's operators, in order."""
    value = unpack(found.blobs["program"], max_bytes=1 << 20)
    assert isinstance(value, list)
    return [str(name) for name in value]
