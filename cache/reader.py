"""Reads of the service: from memory, else from the store; concurrent reads of one thing are one.

Lives in one event loop; store calls run in threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from cache import digest as digests
from cache import frames
from cache import key as keys
from cache.lru import ByteLRU
from cache.metrics import ServiceMetrics
from cache.store import Store
from cache.tracing import OFF, Tracing

T = TypeVar("T")

_FRESH = "fresh:"
"""Before the name of a read that must not be answered by one that is under way."""


class Reader:
    """Entries and compressed blobs of `store`, kept in `memory`.

    Readers of several namespaces share one memory; `prefix` keeps their names apart in it. A blob
    never changes, so it stays until it is pushed out. An entry may be replaced through another
    service, so it is believed for `entry_ttl_s` seconds.
    """

    def __init__(
        self,
        store: Store,
        executor: Executor,
        metrics: ServiceMetrics,
        *,
        memory: ByteLRU[str],
        prefix: str = "",
        entry_ttl_s: float,
        tracing: Tracing = OFF,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self._executor = executor
        self._metrics = metrics
        self._memory = memory
        self._prefix = prefix
        self._entry_ttl_s = entry_ttl_s
        self._tracing = tracing
        self._clock = clock
        self._fresh_until: dict[str, float] = {}
        self._flights: dict[str, asyncio.Task[bytes | None]] = {}

    @property
    def memory_used(self) -> int:
        """Bytes kept, those of the readers beside this one too."""
        return self._memory.bytes

    async def call(self, function: Callable[..., T], *args: object) -> T:
        """Run a store call in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *args)

    async def entry(self, key: str, *, fresh: bool = False) -> bytes | None:
        """An entry's manifest bytes, or None. Raises what the store raises.

        fresh: not what memory holds; somebody knows that it was replaced.
        """
        kind = keys.kind_of(key)
        if fresh:
            self._flights.pop(key, None)
            self._drop(key)
            # Merged with other reads of its sort, which began after the same news.
            return await self._merged(_FRESH + key, kind, lambda: self.store.get_entry(key))
        kept = self._memory.get(self._prefix + key)
        if kept is not None and self._clock() < self._fresh_until.get(key, 0.0):
            self._metrics.hits.labels("memory", kind).inc()
            return kept
        return await self._merged(key, kind, lambda: self.store.get_entry(key))

    async def frame(self, digest: str) -> bytes | None:
        """A blob as a zstd frame, or None. Raises what the store raises."""
        kept = self._memory.get(self._prefix + digests.require(digest))
        if kept is not None:
            self._metrics.hits.labels("memory", "blob").inc()
            return kept
        return await self._merged(digest, "blob", lambda: frames.get_frame(self.store, digest))

    def holds(self, digest: str) -> bool:
        """Whether a blob is in memory."""
        return self._prefix + digest in self._memory

    def remember_entry(self, key: str, data: bytes) -> None:
        """An entry was written through this service."""
        self._part_with_flights(key)
        self._keep(key, data)

    def remember_frame(self, digest: str, frame: bytes) -> None:
        """A blob was written through this service."""
        self._keep(digest, frame)

    def forget(self, key: str) -> None:
        """An entry was removed, or what is known of it is in doubt."""
        self._part_with_flights(key)
        self._drop(key)

    def _drop(self, key: str) -> None:
        self._memory.pop(self._prefix + key)
        self._fresh_until.pop(key, None)
        self._metrics.memory_bytes.set(self._memory.bytes)

    def _part_with_flights(self, key: str) -> None:
        """A read under way may hold the old value: it must not put it into memory any more."""
        self._flights.pop(key, None)
        self._flights.pop(_FRESH + key, None)

    async def _merged(self, name: str, kind: str, read: Callable[[], bytes | None]) -> bytes | None:
        flight = self._flights.get(name)
        if flight is None:
            flight = asyncio.ensure_future(self._fly(name, kind, read))
            self._flights[name] = flight
        else:
            self._metrics.merges.inc()
        # Shielded: a caller that goes away must not end the read that others wait for.
        return await asyncio.shield(flight)

    async def _fly(self, name: str, kind: str, read: Callable[[], bytes | None]) -> bytes | None:
        mine = asyncio.current_task()
        try:
            with (
                self._metrics.store_seconds.labels(kind).time(),
                self._tracing.span(f"read {kind}"),
            ):
                data = await self.call(read)
            if data is None:
                self._metrics.misses.labels(kind, "absent").inc()
            else:
                self._metrics.hits.labels("store", kind).inc()
                if self._flights.get(name) is mine:
                    self._keep(name.removeprefix(_FRESH), data)
            return data
        finally:
            if self._flights.get(name) is mine:
                del self._flights[name]

    def _keep(self, name: str, data: bytes) -> None:
        if self._memory.put(self._prefix + name, data) and "/" in name:
            self._fresh_until[name] = self._clock() + self._entry_ttl_s
            if len(self._fresh_until) > 2 * len(self._memory) + 64:
                self._fresh_until = {
                    key: at
                    for key, at in self._fresh_until.items()
                    if self._prefix + key in self._memory
                }
        self._metrics.memory_bytes.set(self._memory.bytes)
