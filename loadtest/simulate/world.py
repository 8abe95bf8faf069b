"""Puts a simulated farm together: gateways with the real application, workers, store, service."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry

from cache.asgi import App
from farm.config import FarmConfig
from farm.open_farm import open_app
from farm.workers import run
from loadtest.costs.model import Costs
from loadtest.simulate.cluster import Cluster, Nodes, SimulatedPool
from loadtest.simulate.front import FIRST_PORT, Front, Gateway, ToPeers
from loadtest.simulate.host import Host
from loadtest.simulate.rank import Rank, run_rank
from loadtest.simulate.stages import SimulatedStages
from loadtest.simulate.store import SimulatedStore, Stores, Weather
from loadtest.simulate.tally import Tally
from loadtest.simulate.virtual import VirtualLoop
from loadtest.simulate.workload import Catalogue


@dataclass(frozen=True, slots=True)
class Setup:
    """``service_cores``: of all replicas of the cache service together. ``gbit_s``: what their
    network lines carry together. ``config``: of the gateways. ``tune``: whether kernels have
    variants, and the farm has GPUs time them."""

    nodes: Nodes
    gateways: int = 1
    service_cores: int = 16
    gbit_s: float = 100.0
    config: FarmConfig = field(default_factory=FarmConfig)
    tune: bool = False


class World:
    """One farm and whoever uses it. Made by `opened`."""

    def __init__(self, loop: VirtualLoop, setup: Setup, costs: Costs, seed: int) -> None:
        self.loop = loop
        self.setup = setup
        self.rng = random.Random(seed)
        # The client's pauses are drawn from the module's own generator.
        random.seed(seed)
        self.catalogue = Catalogue(costs, random.Random(seed + 1))
        self.tally = Tally(loop)
        self.weather = Weather()
        self.stores = Stores()
        self.registries: list[CollectorRegistry] = []
        self.costs = costs
        worker = SimulatedStages(loop, self.catalogue, self.tally)
        runner = partial(run, stages=worker)
        self.cluster = Cluster(loop, setup.nodes, runner, costs.tasks, self.tally)
        self.front = Front(
            loop,
            costs,
            self.stores,
            self.weather,
            count=setup.gateways,
            cores=setup.service_cores,
            gbit_s=setup.gbit_s,
        )
        self.played: list[Rank] = []
        self._running: list[asyncio.Task[None]] = []

    async def ranks(self, starts: list[tuple[float, Rank]]) -> None:
        """Run ranks from their starts (seconds from now) until each is ready."""
        self.played += [rank for _, rank in starts]
        await asyncio.gather(*(self._rank(at, rank) for at, rank in starts))

    def beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Let something happen beside the ranks, until the end of the run."""
        self._running.append(asyncio.ensure_future(work))

    def kill(self, number: int) -> None:
        """A gateway dies."""
        gateway = self.front.gateways[number]
        self.front.kill(gateway)
        self.cluster.host_died(gateway.host)

    def counted(self, series: str) -> float:
        """The sum of a counter over its labels and all gateways, those that died included."""
        return sum(
            sample.value
            for registry in self.registries
            for family in registry.collect()
            for sample in family.samples
            if sample.name == series
        )

    async def _rank(self, at: float, rank: Rank) -> None:
        await asyncio.sleep(at)
        await run_rank(self.loop, rank, self.front, self.tally)

    def _gateway(self, number: int) -> Gateway:
        host = Host(self.loop, f"gateway-{number}")
        registry = CollectorRegistry()
        self.registries.append(registry)

        def open_store(namespace: str) -> SimulatedStore:
            kept = self.stores.of(namespace)
            return SimulatedStore(self.loop, kept, host, self.costs.store, self.weather, self.rng)

        setup = self.setup
        app = open_app(
            replace(setup.config, port=FIRST_PORT + number, verify_s=0.0, tune=setup.tune),
            SimulatedPool(self.loop, self.cluster, host, self.costs.tasks),
            open_store(""),
            stages=SimulatedStages(
                self.loop, self.catalogue, self.tally, host, variants=setup.tune
            ),
            registry=registry,
            open_namespace=open_store,
            clock=self.loop.time,
            to_peers=ToPeers(self.front),
        )
        return Gateway(host, app)

    async def _close(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


@asynccontextmanager
async def opened(loop: VirtualLoop, setup: Setup, costs: Costs, seed: int) -> AsyncIterator[World]:
    """A world whose gateways have started; those that live still are shut down at the end."""
    world = World(loop, setup, costs, seed)
    lives = []
    for number in range(setup.gateways):
        gateway = world._gateway(number)
        world.front.gateways.append(gateway)
        lives.append((gateway, await _start(gateway.app)))
    try:
        yield world
    finally:
        await world._close()
        for gateway, stop in lives:
            if gateway.host.lives():
                await stop()


async def _start(app: App) -> Any:
    """Start an application's lifespan; what is returned ends it."""
    said: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
    heard: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
    task = asyncio.ensure_future(app({"type": "lifespan"}, said.get, heard.put))
    await said.put({"type": "lifespan.startup"})
    await heard.get()

    async def stop() -> None:
        await said.put({"type": "lifespan.shutdown"})
        await task

    return stop
