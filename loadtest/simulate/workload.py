"""Models to compile: graphs and kernels with sizes and seconds drawn from what was measured."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cache.digest import digest
from cache.protocol import pack
from fusec.artifact.fingerprint import Fingerprint, graph_fingerprint
from fusec.options import Options, Target
from loadtest.costs.model import Costs, PlanTimes

TOOLCHAIN: Final = "5" * 64
OPTIONS: Final = Options()
TARGETS: Final = {"triton": Target("cuda", "sm_90"), "c": Target("cpu", "x86-64-v3")}


@dataclass(frozen=True, slots=True)
class SimKernel:
    """A kernel that does not exist: ``source`` is as long as a real one and names it.

    fault: "" for none, ``fails`` where the compiler says no, ``dies`` where it takes its worker
    along.
    """

    source: bytes
    cpu_s: float
    binary_bytes: int
    fault: str = ""


@dataclass(frozen=True, slots=True)
class SimGraph:
    """A graph that does not exist: ``data`` names it, ``size`` is what a real one would have.

    plan, assemble_s: processor seconds.
    """

    data: bytes
    size: int
    kernels: tuple[SimKernel, ...]
    plan: PlanTimes
    assemble_s: float
    target: Target

    @property
    def artifact_bytes(self) -> int:
        return sum(kernel.binary_bytes for kernel in self.kernels)

    def entries(self) -> tuple[tuple[str, str], ...]:
        """Of its fingerprint."""
        return graph_fingerprint(self.data, self.target, OPTIONS, TOOLCHAIN).entries

    @property
    def fingerprint(self) -> str:
        return Fingerprint(self.entries()).hex


@dataclass(frozen=True, slots=True)
class Model:
    """What a training job compiles: its graphs are asked for at the same time."""

    name: str
    graphs: tuple[SimGraph, ...]

    @property
    def work_s(self) -> float:
        """Processor seconds of all plans and of each distinct kernel once."""
        kernels = {kernel.source: kernel.cpu_s for graph in self.graphs for kernel in graph.kernels}
        return sum(kernels.values()) + sum(graph.plan.all_s for graph in self.graphs)


@dataclass
class Catalogue:
    """All that is compiled in a run, to be found again from its bytes."""

    costs: Costs
    rng: random.Random
    graphs: dict[bytes, SimGraph] = field(default_factory=dict)
    kernels: dict[bytes, SimKernel] = field(default_factory=dict)

    def model(
        self,
        name: str,
        kernels: int,
        *,
        graphs: int = 2,
        kind: str = "triton",
        shared: Sequence[SimKernel] = (),
        fault: str = "",
    ) -> Model:
        """A model of so many distinct kernels in so many graphs.

        shared: further kernels, of another model. fault: of the last kernel, see `SimKernel`.
        """
        made = [self._kernel(f"{name}/{number}", kind) for number in range(kernels)]
        if fault:
            last = made[-1]
            made[-1] = SimKernel(last.source, last.cpu_s, last.binary_bytes, fault)
        self.kernels.update((kernel.source, kernel) for kernel in made)
        parts = [[*made[at::graphs], *shared[at::graphs]] for at in range(graphs)]
        return Model(name, tuple(self._graph(f"{name}#{i}", p, kind) for i, p in enumerate(parts)))

    def _kernel(self, name: str, kind: str) -> SimKernel:
        like = self.rng.choice(self.costs.kernels[kind])
        source = name.encode().ljust(like.source_bytes, b" ")
        return SimKernel(source, like.cpu_s, like.binary_bytes)

    def _graph(self, name: str, kernels: Sequence[SimKernel], kind: str) -> SimGraph:
        count = len(kernels)
        graph = SimGraph(
            pack({"graph": name}),
            int(count * self.costs.graph_bytes(kind)),
            tuple(kernels),
            self.costs.plan_times(kind, count),
            count * self.costs.assemble_s(),
            TARGETS[kind],
        )
        self.graphs[graph.data] = graph
        return graph


def identity(kernel: SimKernel) -> tuple[str, str]:
    """(digest, key in the stores) of a kernel."""
    name = digest(kernel.source)
    return name, f"kernel/{name}"
