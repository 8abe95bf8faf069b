"""Measures the compiler's stages on a corpus of models: plans by graph, builds by kernel."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from cache.artifacts import Found
from cache.memory import MemoryStore
from cache.store import Store
from fusec.codegen.isa import host_target
from fusec.demo import models
from fusec.ir.graph import Graph
from fusec.ir.wire import graph_to_bytes
from fusec.options import Options, Target
from fusec.parts import finish
from fusec.pipeline import Source, assemble, build_kernel, plan_in_parts, source_to_bytes
from fusec.prewarm import Example, prewarm
from fusec.remote.resolve import Resolver
from fusec.trace import Recorder
from loadtest.costs.model import Kernel, Plan
from loadtest.costs.processor import spending


@dataclass
class Measured:
    """Every graph that was planned, and every distinct kernel that was built, by kind."""

    plans: list[Plan] = field(default_factory=list)
    kernels: dict[str, list[Kernel]] = field(default_factory=dict)
    _built: dict[str, bytes] = field(default_factory=dict)

    def by_kind(self) -> dict[str, tuple[Kernel, ...]]:
        return {kind: tuple(rows) for kind, rows in self.kernels.items()}

    def compile_local(
        self, graph: Graph, target: Target, options: Options, store: Store, *, recorder: Recorder
    ) -> Found:
        """`fusec.pipeline.compile_local`, its plan and each kernel timed."""
        stages = Recorder()
        kind = "c" if target.device == "cpu" else "triton"
        handed_on: list[float] = []
        ahead: list[bool] = []

        def heard(_: Source) -> None:
            handed_on.append(time.process_time() - begin)
            ahead.append("schedule" not in stages.stages)

        with spending() as planning:
            begin = time.process_time()
            made = finish(plan_in_parts(graph, target, options, recorder=stages), heard)
        _, *times = handed_on  # the runner's is there from the start
        for kernel in made.kernels:
            if kernel.digest in self._built:
                continue
            with spending() as building:
                binary = build_kernel(kernel, target)
            self._built[kernel.digest] = binary
            source = len(source_to_bytes(kernel))
            row = Kernel(source, len(binary), round(building.cpu_s, 4))
            self.kernels.setdefault(kind, []).append(row)
        with spending() as assembling:
            manifest, blobs = assemble(made, self._built)
        self.plans.append(
            Plan(
                kind,
                len(graph.nodes),
                len(made.kernels),
                len(graph_to_bytes(graph)),
                tuple(round(seconds, 4) for seconds in times),
                sum(ahead) - 1,
                round(planning.cpu_s, 4),
                round(assembling.cpu_s, 5),
            )
        )
        return Found(manifest, blobs)


def measure(corpus: Mapping[str, int], say: Callable[[str], None]) -> Measured:
    """Compile each model (name to layers) for this CPU and for sm_90."""
    found = Measured()
    for target in (host_target(), Target("cuda", "sm_90")):
        # What the first compile loads and starts is paid once a worker, not once a graph.
        _one(Measured(), "mlp", 1, target)
        for name, layers in corpus.items():
            say(f"{name}, {layers} layers, for {target.isa}")
            _one(found, name, layers, target)
    return found


def _one(found: Measured, name: str, layers: int, target: Target) -> None:
    def make() -> Example:
        example = models.build(name, layers=layers)
        return (lambda *inputs: example.model(*inputs)[0]), example.inputs, {}

    torch._dynamo.reset()  # else it gives up compiling what it has compiled for other models
    options, recorder = Options(), Recorder()
    resolver = Resolver(MemoryStore(), None, options, recorder, compile_local=found.compile_local)
    prewarm(make, target, options, resolver, recorder=recorder)
