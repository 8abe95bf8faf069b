"""From a configuration to a farm: the pool, and the application over it."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry

from cache.asgi import App
from cache.errors import ConfigError
from cache.store import Store
from farm.attempts import Attempts
from farm.config import FarmConfig
from farm.coordinator import Coordinator
from farm.gateway import create_app
from farm.memory_pool import MemoryPool
from farm.metrics import FarmMetrics
from farm.pool import Pool, Runner
from farm.shelf import Shelf
from farm.workers import FusecStages, Stages, run, warm_task

WARMED: Final = 64


def open_pool(config: FarmConfig, runner: Runner = run) -> Pool:
    """The pool that a configuration names. Raises ConfigError when Ray is not installed."""
    if config.pool == "memory":
        return MemoryPool(runner, config.worker_count())
    try:
        # Ray comes with an extra and takes seconds to import: only those who use it pay.
        from farm.ray_pool import RayPool
    except ModuleNotFoundError as error:
        raise ConfigError("the ray pool needs Ray", hint="pip install 'fusec[farm]'") from error
    pool = RayPool(runner, address=config.ray_address, workers=config.worker_count())
    for _ in range(min(pool.workers, WARMED)):
        pool.submit(warm_task())  # nobody waits: whoever comes first finds workers that are ready
    return pool


def open_app(
    config: FarmConfig,
    pool: Pool,
    store: Store,
    *,
    stages: Stages | None = None,
    registry: CollectorRegistry | None = None,
) -> App:
    """The gateway's application over a pool and the store that artifacts are published to.

    stages: what assembles artifacts and computes fingerprints here; the pool's runner has its own.
    """
    metrics = FarmMetrics(registry or CollectorRegistry())

    def open_coordinator() -> Coordinator:
        attempts = Attempts(pool, metrics, config.task_s)
        return Coordinator(
            pool,
            Shelf(store, attempts),
            attempts,
            stages or FusecStages(),
            metrics,
            limits=config.limits(),
            running=config.running_limit,
        )

    return create_app(config, open_coordinator)
