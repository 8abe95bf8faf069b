"""The measured costs as one frozen value, read from `costs.json` beside this package."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

COSTS_FILE: Final = Path(__file__).parents[1] / "costs.json"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel that was compiled: bytes of its source as it travels and of its binary, and the
    processor seconds of its compile."""

    source_bytes: int
    binary_bytes: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """One graph that was planned, for a GPU or a CPU (``kind`` as of `Costs.kernels`): processor
    seconds in all, and until each of its kernels was handed on, without the runner, which is there
    from the start; ``ahead``: how many of them came while regions were still searched."""

    kind: str
    nodes: int
    distinct: int
    graph_bytes: int
    handed_on_cpu_s: tuple[float, ...]
    ahead: int
    cpu_s: float
    assemble_cpu_s: float


@dataclass(frozen=True, slots=True)
class PlanTimes:
    """Seconds of a plan until each of its kernels is handed on, in order, and in all. The first
    ``ahead`` are in no order of size, the others come the largest first."""

    handed_on_s: tuple[float, ...]
    ahead: int
    all_s: float


@dataclass(frozen=True, slots=True)
class Requests:
    """Processor seconds of the servers, a request: of the gateway (``submit`` of a small graph and
    each MB more, ``join``, ``poll``), and of the cache service (``pass_on`` of those, ``lookup`` of
    an entry, each MB of blobs)."""

    submit_s: float
    submit_mb_s: float
    join_s: float
    poll_s: float
    pass_on_s: float
    lookup_s: float
    blob_mb_s: float


@dataclass(frozen=True, slots=True)
class StoreTimes:
    """One request to the store behind the service: seconds until its answer, each MB more, and the
    processor seconds of the one who asks."""

    get_s: float
    put_s: float
    mb_s: float
    client_cpu_s: float


@dataclass(frozen=True, slots=True)
class Tasks:
    """Ray: processor seconds of the gateway for a task, and for a part of its result; seconds from
    its submit to its start and from its end to its result, and until a worker process that was lost
    is replaced."""

    gateway_cpu_s: float
    part_cpu_s: float
    round_trip_s: float
    worker_start_s: float


@dataclass(frozen=True, slots=True)
class Costs:
    """``kernels`` and ``plans`` by kind: ``c`` for CPUs, ``triton`` for GPUs. ``machine`` says in
    words where they were taken."""

    machine: Mapping[str, object]
    plans: tuple[Plan, ...]
    kernels: Mapping[str, tuple[Kernel, ...]]
    requests: Requests
    store: StoreTimes
    tasks: Tasks

    def plan_times(self, kind: str, kernels: int) -> PlanTimes:
        """Processor seconds of planning a graph of so many distinct kernels: as many times those of
        all measured graphs together as it has times their kernels, which are handed on at the same
        shares of them (of few kernels the later one stands for those between)."""
        plans = [plan for plan in self.plans if plan.kind == kind]
        larger = kernels / sum(plan.distinct for plan in plans)

        def handed_on(share: float) -> float:
            return sum(_at(plan.handed_on_cpu_s, share) for plan in plans)

        return PlanTimes(
            tuple(larger * handed_on((i + 1) / kernels) for i in range(kernels)),
            round(larger * sum(plan.ahead for plan in plans)),
            larger * sum(plan.cpu_s for plan in plans),
        )

    def assemble_s(self) -> float:
        """Processor seconds of assembling, for each distinct kernel."""
        total = sum(plan.distinct for plan in self.plans)
        return sum(plan.assemble_cpu_s for plan in self.plans) / total

    def graph_bytes(self, kind: str) -> float:
        """Bytes of a graph on the wire, for each distinct kernel."""
        plans = [plan for plan in self.plans if plan.kind == kind]
        return sum(plan.graph_bytes for plan in plans) / sum(plan.distinct for plan in plans)


def _at(times: tuple[float, ...], share: float) -> float:
    """When so large a share of all has happened, given when each did."""
    return times[math.ceil(share * len(times)) - 1]


def load(path: Path = COSTS_FILE) -> Costs:
    """Read costs. Raises OSError; ValueError, KeyError, TypeError for a file of another form."""
    body = json.loads(path.read_text())
    return Costs(
        body["machine"],
        tuple(
            Plan(**{**plan, "handed_on_cpu_s": tuple(plan["handed_on_cpu_s"])})
            for plan in body["plans"]
        ),
        {kind: tuple(Kernel(*row) for row in rows) for kind, rows in body["kernels"].items()},
        Requests(**body["requests"]),
        StoreTimes(**body["store"]),
        Tasks(**body["tasks"]),
    )


def dump(costs: Costs) -> str:
    """The file's text: one line a plan and a kernel."""
    body = asdict(costs)
    kernels = {
        kind: [[k.source_bytes, k.binary_bytes, round(k.cpu_s, 4)] for k in rows]
        for kind, rows in costs.kernels.items()
    }
    lines = [f'"{name}": {json.dumps(body[name])}' for name in ("machine", "requests", "store")]
    lines.append(f'"tasks": {json.dumps(body["tasks"])}')
    lines.append('"plans": [\n  ' + ",\n  ".join(json.dumps(p) for p in body["plans"]) + "\n ]")
    for_kinds = [
        f'  "{kind}": [\n   ' + ",\n   ".join(json.dumps(row) for row in rows) + "\n  ]"
        for kind, rows in kernels.items()
    ]
    lines.append('"kernels": {\n' + ",\n".join(for_kinds) + "\n }")
    return "{\n " + ",\n ".join(lines) + "\n}\n"
