"""Graphs that are in flight together, and the kernels that they share."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from prometheus_client import CollectorRegistry

from cache.digest import digest
from farm.attempts import Attempts
from farm.batch import SMALL_SOURCE
from farm.config import FarmConfig
from farm.embedded import embedded_farm
from farm.fair_pool import FairPool
from farm.kernels import KernelBuilds
from farm.metrics import FarmMetrics
from farm.queue import NOBODY
from farm.urgency import Urgency
from farm.workers import PlannedKernel
from fusec.remote.farm import FarmClient
from fusec.remote.protocol import FarmJob, JobState, Priority
from loadtest.chaos.clients import graphs
from loadtest.chaos.ledger import Ledger
from loadtest.servers import read_metrics
from tests.farm.clients import NewClient
from tests.farm.test_fair_pool import ManualPool
from tests.farm.tiny_stages import TARGET, TinyStages, farm_job


def _nothing(*arguments: object, **named: object) -> None:
    raise AssertionError("the farm compiles them")


def test_a_kernel_of_graphs_in_flight_together_is_built_once(client: NewClient) -> None:
    """Six graphs, each with one kernel of the one before it, and all with the same runner: by the
    real compiler."""
    ledger, jobs = Ledger(), list(graphs(6, 7000))
    with embedded_farm(store=ledger, workers=2) as farm:
        here = client(farm.url, _nothing)  # type: ignore[arg-type]
        assert here.remote is not None
        asker = FarmClient(here.remote)

        def ask(job: FarmJob) -> JobState:
            return asker.wait(job, timeout_s=150.0).state

        with ThreadPoolExecutor(len(jobs)) as threads:
            assert list(threads.map(ask, jobs)) == [JobState.DONE] * len(jobs)
        counts = read_metrics(f"{farm.gateway_url}/metrics")
    built = counts["fusec_farm_kernels_total{source=built}"]
    others = sum(counts.get(f"fusec_farm_kernels_total{{source={s}}}", 0) for s in _OTHERS)
    assert built == len(jobs) + 1 + 1, "the distinct ones"
    assert built + others == 3 * len(jobs), "two kernels and the runner, of each graph"
    assert counts["fusec_farm_kernels_total{source=shared}"] > 0
    assert set(ledger.created.values()) == {1}
    assert not ledger.replaced


_OTHERS = ("shared", "stored")


def _kernel(number: int) -> PlannedKernel:
    """A kernel with a task of its own, by the length of its source."""
    source = str(number).encode().ljust(SMALL_SOURCE)
    return PlannedKernel(digest(source), f"kernel/{digest(source)}", source)


async def _nobody(key: str, binary: bytes) -> None:
    """Keeps nothing."""


def test_a_kernel_of_a_prewarm_becomes_urgent_when_a_client_waits_for_it() -> None:
    kernels = [_kernel(number) for number in range(8)]
    labels = [f"kernel {kernel.digest[:12]}" for kernel in kernels]
    behind, metrics = ManualPool(cpu=1), FarmMetrics(CollectorRegistry())
    builds = KernelBuilds(Attempts(FairPool(behind), metrics, 60.0), _nobody, metrics)

    async def order() -> None:
        def start(some: list[PlannedKernel], urgency: Urgency) -> None:
            builds.start(some, TARGET, NOBODY, urgency)

        start(kernels, Urgency(Priority.PREWARM))
        await _turns()
        assert behind.seen == labels[:2], "one for the worker, one that is ready"
        start([kernels[6]], Urgency(Priority.WAITING))
        another = Urgency(Priority.PREWARM)
        start([kernels[7]], another)
        another.rise(Priority.WAITING)  # a client joins the graph that it is of
        for label in (*labels[:2], *labels[6:]):
            behind.end(label)
            await _turns()
        assert behind.seen == [*labels[:2], *labels[6:], *labels[2:4]]
        await builds.close()

    asyncio.run(order())


async def _turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_graph_of_a_prewarm_becomes_urgent_when_a_client_joins_it(
    client: NewClient, tmp_path: Path
) -> None:
    """A prewarm of many kernels has the only worker, and another waits to be planned."""
    stages = TinyStages(str(tmp_path))
    names = [f"t.w{number:02}" for number in range(79)]
    many = farm_job("t.held", *names, priority=Priority.PREWARM)
    late = farm_job("t.late", priority=Priority.PREWARM)
    with embedded_farm(stages=stages, workers=1, farm=FarmConfig(verify_s=0.0)) as farm:
        here = client(farm.url, _nothing, budget_s=60.0)  # type: ignore[arg-type]
        assert here.remote is not None
        asker = FarmClient(here.remote, outage_s=60.0)
        asker.submit(many)
        stages.until("build t.held")
        asker.submit(late)
        asker.submit(replace(late, waiter="w2", priority=Priority.WAITING))
        stages.go()
        assert asker.wait(many, timeout_s=150.0).state is JobState.DONE
    events = stages.events()
    planned = [at for at, event in enumerate(events) if event == "plan"]
    assert len(planned) == 2
    assert planned[1] < events.index("build t.w40")
