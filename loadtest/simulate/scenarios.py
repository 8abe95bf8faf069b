"""The scenarios: who asks for what, what goes wrong, and what must hold in the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from farm.config import FarmConfig
from loadtest.costs.model import Costs
from loadtest.simulate.cluster import Nodes
from loadtest.simulate.rank import Rank
from loadtest.simulate.virtual import VirtualLoop
from loadtest.simulate.workload import Model
from loadtest.simulate.world import Setup, World, opened

ARRIVE_S: Final = 20.0  # within which the ranks of a job come to their first compile
LATE_S: Final = 60.0  # when a second job comes, where there is one


@dataclass(frozen=True, slots=True)
class Size:
    """How large a run is; each scenario uses what it needs."""

    ranks: int = 10_000
    workers: int = 1_000
    kernels: int = 500
    graphs: int = 2
    jobs: int = 10_000
    kind: str = "triton"
    gateways: int = 1
    gpus: int = 1


Story = Callable[[World, Size], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """``story`` plays it in a world of ``setup``."""

    about: str
    setup: Callable[[Size], Setup]
    story: Story


async def play(scenario: Scenario, size: Size, costs: Costs, seed: int, loop: VirtualLoop) -> World:
    """Run a scenario to its end; what is in the world then is its result."""
    async with opened(loop, scenario.setup(size), costs, seed) as world:
        await scenario.story(world, size)
    return world


def _usual(size: Size) -> Setup:
    return Setup(Nodes(size.workers), gateways=size.gateways)


def _job(
    world: World,
    tenant: str,
    model: Model,
    ranks: int,
    *,
    at: float = 0.0,
    within: float = ARRIVE_S,
) -> list[tuple[float, Rank]]:
    """The ranks of one training job, each at its own moment."""
    moments = [at + world.rng.uniform(0.0, within) for _ in range(ranks)]
    return [
        (moment, Rank(tenant, f"{model.name}-{number}", model))
        for number, moment in enumerate(moments)
    ]


async def _cold(world: World, size: Size) -> None:
    model = world.catalogue.model("cold", size.kernels, graphs=size.graphs, kind=size.kind)
    await world.ranks(_job(world, "", model, size.ranks))


def _prewarms(world: World, tenant: str, count: int, kernels: int) -> list[tuple[float, Rank]]:
    """Many small jobs of one tenant at once, of a rank each."""
    return [
        (number * 1e-3, Rank(tenant, f"{tenant}-{number}", made))
        for number, made in enumerate(
            world.catalogue.model(f"{tenant}-{number}", kernels, graphs=1)
            for number in range(count)
        )
    ]


async def _alone(world: World, size: Size) -> None:
    await world.ranks(_job(world, "small", _first_job(world), 1, at=30.0, within=0.0))


async def _mixed(world: World, size: Size) -> None:
    """One tenant has thousands of jobs in; then another comes with its first."""
    first = _job(world, "small", _first_job(world), 1, at=30.0, within=0.0)
    await world.ranks([*_prewarms(world, "large", size.jobs, 12), *first])


def _first_job(world: World) -> Model:
    return world.catalogue.model("first", 40)


async def _node_losses(world: World, size: Size) -> None:
    world.beside(_lose(world, every_s=2.0, what=world.cluster.lose_worker))
    world.beside(_lose(world, every_s=10.0, what=world.cluster.lose_node))
    starts = []
    for number in range(8):
        model = world.catalogue.model(f"m{number}", size.kernels, graphs=size.graphs)
        starts += _job(world, "", model, max(1, size.ranks // 8), at=number * 5.0)
    await world.ranks(starts)


async def _lose(world: World, every_s: float, what: Callable[[random.Random], None]) -> None:
    while True:
        await asyncio.sleep(world.rng.expovariate(1 / every_s))
        what(world.rng)


async def _poisoned(world: World, size: Size) -> None:
    """A tenth of the ranks runs a model with a kernel that takes its worker along."""
    bad = world.catalogue.model("bad", max(2, size.kernels // 10), fault="dies")
    good = world.catalogue.model("good", size.kernels, graphs=size.graphs)
    few = max(1, size.ranks // 10)
    await world.ranks([*_job(world, "bad", bad, few), *_job(world, "good", good, size.ranks - few)])


async def _slow_store(world: World, size: Size) -> None:
    """S3 takes fifty times as long and leaves one request of fifty unanswered."""
    world.weather.slow, world.weather.failing = 50.0, 0.02
    await _cold(world, size)


async def _gateway_dies(world: World, size: Size) -> None:
    """The gateway that has work dies with it."""
    world.beside(_kill_owner(world))
    await _cold(world, size)


async def _kill_owner(world: World) -> None:
    gateways = world.front.gateways
    while not any(world.tally.built):
        await asyncio.sleep(0.1)
    work = [world.cluster.tasks_of(gateway.host) for gateway in gateways]
    world.kill(work.index(max(work)))


async def _tuned(world: World, size: Size) -> None:
    """A model's graphs are tuned behind its ranks; another one comes while the GPUs have work."""
    graphs = max(4, size.graphs)
    first = world.catalogue.model("first", size.kernels, graphs=graphs)
    late = world.catalogue.model("late", size.kernels, graphs=graphs)
    ranks = max(1, size.ranks // 2)
    starts = [*_job(world, "first", first, ranks), *_job(world, "late", late, ranks, at=LATE_S)]
    await world.ranks(starts)
    while world.counted("fusec_farm_tuned_total") < len(first.graphs) + len(late.graphs):
        await asyncio.sleep(5.0)


def _gpus(size: Size) -> Setup:
    nodes = Nodes(size.workers, gpus={"gpu:sm_90:simulated": size.gpus})
    return replace(_usual(size), nodes=nodes, tune=True)


def _long_queue(size: Size) -> Setup:
    return replace(_usual(size), config=FarmConfig(queue_limit=20_000, tenant_queued=20_000))


def _two_gateways(size: Size) -> Setup:
    return replace(_usual(size), gateways=max(2, size.gateways))


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "cold": Scenario("cold start of a new model on all ranks", _usual, _cold),
    "mixed": Scenario("a tenant's first job behind another's thousands", _long_queue, _mixed),
    "mixed-alone": Scenario("the same first job on an idle farm, to compare with", _usual, _alone),
    "node-losses": Scenario(
        "workers and nodes die while eight models are compiled", _usual, _node_losses
    ),
    "poisoned": Scenario(
        "a model whose kernel kills workers, beside a good one", _usual, _poisoned
    ),
    "slow-store": Scenario("a cold start with a slow and faulty S3", _usual, _slow_store),
    "gateway-dies": Scenario(
        "one of two gateways dies while it compiles", _two_gateways, _gateway_dies
    ),
    "tuned": Scenario("graphs are tuned on GPUs behind their clients", _gpus, _tuned),
}
