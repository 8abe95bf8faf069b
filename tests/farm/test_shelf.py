"""The store as the farm uses it: what stands is replaced in the open, by what is better."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from prometheus_client import CollectorRegistry

from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.config import ServiceConfig
from cache.embedded import serve_in_thread
from cache.manifest import Manifest
from cache.memory import MemoryStore
from cache.seal import Signer
from cache.signing import SigningKey
from cache.store import SwapStore
from cache.trust import signed_by
from farm.attempts import Attempts
from farm.memory_pool import MemoryPool
from farm.metrics import FarmMetrics
from farm.pool import Task, TaskFailed
from farm.shelf import Shelf

KEY = f"graph/{7:064x}"
QUICK = {"program": b"quick"}
TUNED = {"program": b"tuned"}


@pytest.fixture(params=["its own store", "a cache service"])
def shelf(request: pytest.FixtureRequest) -> Iterator[Shelf]:
    def run(task: Task) -> bytes:
        return task.payload

    store: SwapStore = MemoryStore()
    with ExitStack() as stack:
        if request.param == "a cache service":
            running = stack.enter_context(serve_in_thread(ServiceConfig(port=0), store=store))
            store = stack.enter_context(CacheClient(running.url, budget=DelayBudget(30.0)))
        pool = MemoryPool(run, 1)
        stack.callback(pool.close)
        key = SigningKey.generate("test")
        attempts = Attempts(pool, FarmMetrics(CollectorRegistry()), 10.0)
        made = Shelf(store, attempts, signer=Signer(key, "test-1"), trust=signed_by([key.public]))
        stack.callback(made.close)
        yield made


def test_a_tuned_artifact_takes_the_place_of_the_quick_one(shelf: Shelf) -> None:
    async def story() -> None:
        assert await shelf.standing(KEY) is None
        await shelf.publish(KEY, Manifest.of("graph", QUICK, tier=0), QUICK)
        seen = await shelf.standing(KEY)
        assert seen is not None
        tuned = Manifest.of("graph", TUNED)
        assert await shelf.replace(KEY, tuned, TUNED, seen.version)
        late = Manifest.of("graph", QUICK, b"late", tier=5)
        assert not await shelf.replace(KEY, late, QUICK, seen.version), "somebody was faster"
        now = await shelf.standing(KEY)
        assert now is not None
        assert (now.manifest, now.blobs) == (tuned, TUNED)
        assert now.seal is not None, "what replaces is signed as well"
        with pytest.raises(TaskFailed, match="tier 5 does not replace tier 9"):
            await shelf.replace(KEY, late, QUICK, now.version)
        # Who publishes the quick one again, after a restart, keeps what is better.
        await shelf.publish(KEY, Manifest.of("graph", QUICK, tier=0), QUICK)
        assert await shelf.standing(KEY) == now

    asyncio.run(story())
