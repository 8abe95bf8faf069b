"""What happened in a run: told by the simulated parts, so that it does not depend on the farm's."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

from farm.devices import CPU
from farm.pool import Task
from loadtest.simulate.virtual import VirtualLoop
from loadtest.simulate.workload import SimGraph, SimKernel

Series = list[tuple[float, int]]
"""(second, value from then on), in order."""


@dataclass
class Tally:
    """Counts and series of one run. Times are simulated seconds."""

    loop: VirtualLoop
    busy: dict[str, Series] = field(default_factory=dict)  # workers in work, by class
    queued: dict[str, Series] = field(default_factory=dict)  # graphs that wait, by tenant
    ready: dict[str, Series] = field(default_factory=dict)  # ranks that may run, by tenant
    built: Counter[bytes] = field(default_factory=Counter)  # builds, by kernel
    planned: Counter[bytes] = field(default_factory=Counter)  # plans, by graph
    waited: dict[str, list[float]] = field(default_factory=dict)  # s in the queue, by tenant
    outcomes: Counter[str] = field(default_factory=Counter)  # graphs of ranks, by source
    work_s: float = 0.0  # of plans and kernels, each done for the first time
    lost: int = 0  # tasks whose worker died under them
    first_built: float | None = None  # when the first kernel was begun
    tuned: list[float] = field(default_factory=list)  # when a tuned artifact was put together
    gpu_leases: int = 0
    _asked: dict[bytes, tuple[str, float]] = field(default_factory=dict)

    def asks(self, tenant: str, graph: SimGraph) -> None:
        """A rank of a tenant hands a graph to the farm."""
        if graph.data not in self._asked:
            self._asked[graph.data] = (tenant, self.loop.time())
            self._step(self.queued, tenant, 1)

    def plans(self, graph: SimGraph) -> None:
        """A worker starts on a graph; the first time, its wait is over."""
        self.planned[graph.data] += 1
        if self.planned[graph.data] == 1:
            self.work_s += graph.plan.all_s
            tenant, asked = self._asked.get(graph.data, ("", self.loop.time()))
            self.waited.setdefault(tenant, []).append(self.loop.time() - asked)
            self._step(self.queued, tenant, -1)

    def builds(self, kernel: SimKernel) -> None:
        """A worker starts on a kernel."""
        self.built[kernel.source] += 1
        if self.first_built is None:
            self.first_built = self.loop.time()
        if self.built[kernel.source] == 1:
            self.work_s += kernel.cpu_s

    def started(self, task: Task) -> None:
        """A worker has work."""
        self.gpu_leases += task.needs != CPU
        self._step(self.busy, task.needs, 1)

    def ended(self, task: Task) -> None:
        """A worker is through with it."""
        self._step(self.busy, task.needs, -1)

    @property
    def first_asked(self) -> float:
        """When the first graph was handed to the farm."""
        return min((at for _, at in self._asked.values()), default=0.0)

    def is_ready(self, tenant: str) -> None:
        """A rank has all its graphs."""
        self._step(self.ready, tenant, 1)

    def got(self, source: str) -> None:
        """A rank has a graph, from the farm, the store, or its own compiler."""
        self.outcomes[source] += 1

    def busy_s(self, needs: str = CPU) -> float:
        """Seconds that workers of a class were in work, added up."""
        return area(self.busy.get(needs, []))

    def _step(self, series: dict[str, Series], name: str, change: int) -> None:
        steps = series.setdefault(name, [])
        now, value = self.loop.time(), (steps[-1][1] if steps else 0) + change
        if steps and steps[-1][0] == now:
            steps[-1] = (now, value)
        else:
            steps.append((now, value))


def area(steps: Series) -> float:
    """The sum over time of a series that ends at 0."""
    return sum(value * (end - at) for (at, value), (end, _) in pairwise(steps))


def quantile(samples: list[float], part: float) -> float:
    """The sample below which `part` of them lie; 0 without any."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0
