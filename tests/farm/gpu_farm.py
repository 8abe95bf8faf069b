"""A farm whose workers have a GPU, as tests of tuning and verification need one: a memory pool
whose GPU is a name, over the tiny stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import httpx

from cache.artifacts import Found, lookup
from cache.config import ServiceConfig
from cache.embedded import serve_app_in_thread, serve_in_thread
from cache.memory import MemoryStore
from farm.config import FarmConfig
from farm.memory_pool import MemoryPool
from farm.open_farm import open_app
from farm.workers import run
from fusec.artifact.quality import Tier, quality_of
from fusec.remote.farm import FarmClient
from fusec.remote.protocol import FarmJob, JobState
from tests.farm.clients import NewClient
from tests.farm.tiny_stages import TinyStages

GPU = "gpu:x86-64-v3:paper-tiger"  # serves the tiny stages' target, which is a CPU's


@dataclass(frozen=True)
class Farm:
    """A farm that runs: its service, its gateway's numbers, its store."""

    url: str
    gateway: str
    store: MemoryStore
    pool: MemoryPool

    def metric(self, line: str) -> float:
        for text in httpx.get(self.gateway + "/metrics", timeout=60).text.splitlines():
            if text.startswith(line + " "):
                return float(text.rsplit(" ", 1)[1])
        return 0.0

    def graph(self, job: FarmJob) -> Found | None:
        return lookup(self.store, f"graph/{job.fingerprint}")


@contextmanager
def running(
    stages: object,
    *,
    gpu: bool,
    config: FarmConfig | None = None,
    store: MemoryStore | None = None,
) -> Iterator[Farm]:
    store = store or MemoryStore()
    pool = MemoryPool(partial(run, stages=stages), 2, gpus={GPU: (0,)} if gpu else {})  # type: ignore[arg-type]
    app = open_app(config or FarmConfig(pool="memory"), pool, store, stages=stages)  # type: ignore[arg-type]
    try:
        with (
            serve_app_in_thread(app) as gateway,
            serve_in_thread(ServiceConfig(port=0, farm_url=gateway.url), store=store) as service,
        ):
            yield Farm(service.url, gateway.url, store, pool)
    finally:
        pool.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def submit(client: NewClient, farm: Farm, job: FarmJob) -> JobState:
    here = client(farm.url, TinyStages("unused").compile_local, budget_s=60.0)
    assert here.remote is not None
    return FarmClient(here.remote, outage_s=60.0).wait(job, timeout_s=170.0).state


def tier(farm: Farm, job: FarmJob) -> Tier:
    found = farm.graph(job)
    assert found is not None
    return quality_of(found.manifest.meta).tier


def join(pool: MemoryPool) -> None:
    """A GPU joins: what a memory pool never sees, as it has those of its machine."""
    other = MemoryPool(pool._run, 1, gpus={GPU: (0,)})
    pool._gpus.update(other._gpus)
    pool._count.update(other._count)
    pool._threads.update({GPU: other._threads[GPU]})
