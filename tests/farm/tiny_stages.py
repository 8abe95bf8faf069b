"""A compiler small enough for tests of the farm: every distinct operator is one kernel.

The name of an operator decides what its build does: `t.slow` takes a while, `t.bad` does not
compile, `t.die` kills its worker process, `t.hog` runs out of memory, `t.flaky` dies once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cache import key as keys
from cache.artifacts import Found, lookup_many, publish
from cache.digest import digest
from cache.manifest import Manifest
from cache.protocol import pack, unpack
from cache.store import Store
from farm.workers import Planned, PlannedKernel
from fusec.artifact.fingerprint import graph_fingerprint
from fusec.errors import CompileError, LoweringError
from fusec.ir.expr import integer
from fusec.ir.graph import Graph, Node, Ref, TensorType
from fusec.ir.wire import graph_from_bytes, graph_to_bytes
from fusec.options import Options, Target
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

    def plan(self, graph: bytes, target: Target, options: Options) -> Planned:
        self._say("plan")
        names = [node.target for node in graph_from_bytes(graph).nodes if node.op == "call"]
        if "t.unlowerable" in names:
            raise LoweringError("no loops for t.unlowerable")
        kernels = {}
        for name in names:
            source = name.encode()
            key = keys.make("kernel", digest(source + target.isa.encode()))
            kernels[key] = PlannedKernel(digest(source), key, source)
        return Planned(pack(names), tuple(kernels.values()))

    def build(self, source: bytes, target: Target) -> bytes:
        name = source.decode()
        self._say(f"build {name}")
        if name.startswith("t.slow"):
            time.sleep(self.slow_s)
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
        self, plan: bytes, binaries: Mapping[str, bytes]
    ) -> tuple[Manifest, dict[str, bytes]]:
        blobs = {"program": plan, **{f"kernels/{name}": binaries[name] for name in binaries}}
        return Manifest.of("graph", blobs, b"tiny"), blobs

    def fingerprint(
        self, graph: bytes, target: Target, options: Options
    ) -> tuple[tuple[str, str], ...]:
        return graph_fingerprint(graph, target, options, self.toolchain).entries

    def warm(self) -> None:
        """There is nothing to load."""

    def compile_local(
        self, graph: Graph, target: Target, options: Options, store: Store, *, recorder: Recorder
    ) -> Found:
        """The same stages in this process, as `fusec.pipeline.compile_local`."""
        self._say("local")
        planned = self.plan(graph_to_bytes(graph), target, options)
        kept = lookup_many(store, [kernel.key for kernel in planned.kernels])
        binaries = {
            kernel.digest: kept[kernel.key].blobs["binary"]
            if kernel.key in kept
            else self.build(kernel.source, target)
            for kernel in planned.kernels
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

    def _say(self, event: str) -> None:
        with open(Path(self.log) / "events", "a") as file:
            file.write(event + "\n")


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
) -> FarmJob:
    """What the farm receives of it."""
    job = graph_job(*names)
    return FarmJob(
        job.fingerprint.hex,
        job.fingerprint.entries,
        job.graph_bytes,
        TARGET,
        Options(),
        waiter,
        priority,
        training_job,
    )


def operators(found: Found) -> list[str]:
    """The result of a compile: the names of the graph's operators, in order."""
    value = unpack(found.blobs["program"], max_bytes=1 << 20)
    assert isinstance(value, list)
    return [str(name) for name in value]
