"""What a run came to, as plain numbers by name."""

from __future__ import annotations

from dataclasses import dataclass

from farm.devices import CPU
from loadtest.simulate.tally import Tally, area, quantile
from loadtest.simulate.world import World


@dataclass(frozen=True, slots=True)
class Tenant:
    """``ready_*``: seconds from the run's start until a rank had all its graphs. ``queue_*``:
    seconds from a graph's first submit until a worker planned it."""

    ranks: int
    graphs: int
    ready_first_s: float
    ready_p50_s: float
    ready_last_s: float
    queue_p50_s: float
    queue_p99_s: float


@dataclass(frozen=True, slots=True)
class Tuning:
    """Graphs tuned behind their clients. ``leased_s``: of all GPUs together, in ``leases``;
    ``span_s``: from the first lease to the end of the last; ``use``: of what they could have been
    leased in that time. ``first_s``, ``last_s``: from the first submit until a graph was tuned."""

    gpus: int
    graphs: int
    leases: int
    leased_s: float
    span_s: float
    use: float
    first_s: float
    last_s: float


@dataclass(frozen=True, slots=True)
class Figures:
    """One run.

    efficiency: work that had to be done (every plan and distinct kernel once) over what the workers
    could have done from the first submit to the end of the last task. build_efficiency: the same
    for kernels alone, from when the first of them was begun. tuning: None where nothing is tuned.
    """

    ranks: int
    workers: int
    first_ready_s: float
    last_ready_s: float
    farm_s: float
    work_s: float
    efficiency: float
    busy: float
    build_efficiency: float
    kernels: int
    compiles_per_kernel: float
    most_compiles: int
    plans_per_graph: float
    retries: int
    tasks_lost: int
    gateway_busy: float
    service_busy: float
    sources: dict[str, int]
    tenants: dict[str, Tenant]
    tuning: Tuning | None


def figures(world: World) -> Figures:
    """Read a run that is over."""
    tally = world.tally
    steps = tally.busy.get(CPU, [])
    begin = tally.first_asked
    end = steps[-1][0] if steps else begin
    built_from = begin if tally.first_built is None else tally.first_built
    workers = world.setup.nodes.cpu
    built = sum(tally.built.values())
    last = max((series[-1][0] for series in tally.ready.values()), default=0.0)
    span = max(end - begin, 1e-9)
    kernel_s = sum(world.catalogue.kernels[source].cpu_s for source in tally.built)
    return Figures(
        ranks=sum(series[-1][1] for series in tally.ready.values()),
        workers=workers,
        first_ready_s=min((series[0][0] for series in tally.ready.values()), default=0.0),
        last_ready_s=last,
        farm_s=span,
        work_s=tally.work_s,
        efficiency=tally.work_s / (workers * span),
        busy=tally.busy_s() / (workers * span),
        build_efficiency=kernel_s / (workers * max(end - built_from, 1e-9)),
        kernels=len(tally.built),
        compiles_per_kernel=built / max(1, len(tally.built)),
        most_compiles=max(tally.built.values(), default=0),
        plans_per_graph=sum(tally.planned.values()) / max(1, len(tally.planned)),
        retries=int(world.counted("fusec_farm_retries_total")),
        tasks_lost=tally.lost,
        gateway_busy=max(g.host.core.busy_s for g in world.front.gateways) / max(last, 1e-9),
        service_busy=world.front.cores.busy_s / (world.setup.service_cores * max(last, 1e-9)),
        sources=dict(sorted(tally.outcomes.items())),
        tenants={name: _tenant(tally, name) for name in sorted(tally.ready)},
        tuning=_tuning(world) if tally.tuned else None,
    )


def _tuning(world: World) -> Tuning:
    tally = world.tally
    gpus = sum(world.setup.nodes.gpus.values())
    series = [steps for needs, steps in tally.busy.items() if needs != CPU]
    span = max(steps[-1][0] for steps in series) - min(steps[0][0] for steps in series)
    leased = sum(map(area, series))
    begin = tally.first_asked
    return Tuning(
        gpus=gpus,
        graphs=len(tally.tuned),
        leases=tally.gpu_leases,
        leased_s=leased,
        span_s=span,
        use=leased / (gpus * span),
        first_s=min(tally.tuned) - begin,
        last_s=max(tally.tuned) - begin,
    )


def _tenant(tally: Tally, name: str) -> Tenant:
    series = tally.ready[name]
    times: list[float] = []
    before = 0
    for at, count in series:
        times += [at] * (count - before)
        before = count
    waited = tally.waited.get(name, [])
    return Tenant(
        ranks=len(times),
        graphs=len(waited),
        ready_first_s=times[0],
        ready_p50_s=quantile(times, 0.5),
        ready_last_s=times[-1],
        queue_p50_s=quantile(waited, 0.5),
        queue_p99_s=quantile(waited, 0.99),
    )
