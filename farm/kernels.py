"""Kernels of all jobs in flight: each distinct one is built once, and published by itself."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from cache.errors import CacheError
from cache.lru import ByteLRU
from farm.attempts import Attempts
from farm.metrics import FarmMetrics, Mean
from farm.pool import TaskFailed
from farm.queue import Share
from farm.retry import ErrorKind
from farm.workers import PlannedKernel, build_task, built
from fusec.errors import FusecError
from fusec.options import Target
from fusec.remote.protocol import Priority

log = logging.getLogger("fusec.farm")

RECENT_BYTES: Final = 64 << 20
SMALL_SOURCE: Final = 2048  # bytes of source below which a kernel shares a task with others
MOST_IN_BATCH: Final = 8
BATCHES_PER_WORKER: Final = 4

Publish = Callable[[str, bytes], Awaitable[None]]
"""Keeps a binary under its key; must not raise."""


class KernelBuilds:
    """Builds on demand, single flight by key. Lives in one event loop."""

    def __init__(
        self,
        attempts: Attempts,
        publish: Publish,
        metrics: FarmMetrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._attempts = attempts
        self._publish = publish
        self._metrics = metrics
        self._flights: dict[str, Flight] = {}
        # Between a build's end and the moment a job's earlier, slower lookup has missed it.
        self._recent: ByteLRU[str] = ByteLRU(RECENT_BYTES)
        self.seconds = Mean()

    def recent(self, key: str) -> bytes | None:
        """A binary that was built a moment ago."""
        return self._recent.get(key)

    def start(
        self,
        kernels: Sequence[PlannedKernel],
        target: Target,
        share: Share,
        priority: Priority,
    ) -> list[Flight]:
        """Join the builds in flight and start the others, as work of `share`; every flight must be
        left again."""
        new = [kernel for kernel in kernels if kernel.key not in self._flights]
        for batch in batches(new, self._attempts.pool.workers):
            flights = {kernel.key: Flight(kernel.key) for kernel in batch}
            self._flights.update(flights)
            task = asyncio.create_task(self._build(batch, target, share, priority))
            peers = tuple(flights.values())
            for flight in peers:
                flight.batch, flight.peers = task, peers
            task.add_done_callback(partial(self._ended, peers))
        self._metrics.kernels.labels("built").inc(len(new))
        self._metrics.kernels.labels("shared").inc(len(kernels) - len(new))
        joined = [self._flights[kernel.key] for kernel in kernels]
        for flight in joined:
            flight.wanted += 1
        return joined

    def leave(self, flights: Sequence[Flight]) -> None:
        """A job is through with these; a batch that no job wants any more is stopped."""
        for flight in flights:
            flight.wanted -= 1
        for flight in flights:
            task, peers = flight.batch, flight.peers
            if task is None or task.done() or any(peer.wanted for peer in peers):
                continue
            building = [peer for peer in peers if self._flights.get(peer.key) is peer]
            if not building:
                continue  # all built: let it publish them
            for peer in building:
                del self._flights[peer.key]
            task.cancel()

    async def close(self) -> None:
        """Stop every build."""
        tasks = {flight.batch for flight in self._flights.values() if flight.batch is not None}
        self._flights.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _build(
        self,
        batch: Sequence[PlannedKernel],
        target: Target,
        share: Share,
        priority: Priority,
    ) -> None:
        started = self._clock()
        label = f"{len(batch)} kernels" if len(batch) > 1 else f"kernel {batch[0].digest[:12]}"
        attempt, left = 1, list(batch)
        while left:
            try:
                task = replace(build_task(left, target, label), share=share, priority=priority)
                results = _results(left, await self._attempts.once(task))
            except TaskFailed as error:
                verdict = await self._attempts.after(error, attempt)
                if verdict is None:
                    results = dict.fromkeys((kernel.digest for kernel in left), error)
                elif verdict.alone and len(left) > 1:
                    alone = (self._build([kernel], target, share, priority) for kernel in left)
                    await asyncio.gather(*alone)
                    return
                else:
                    attempt += 1
                    continue
            else:
                for outcome in results.values():
                    if isinstance(outcome, TaskFailed):
                        self._metrics.errors.labels(outcome.kind.value).inc()
            self.seconds.add((self._clock() - started) / len(left))
            self._metrics.kernel_seconds.labels(target.device).observe(self._clock() - started)
            await self._deliver(left, results)
            return

    async def _deliver(
        self, batch: Sequence[PlannedKernel], results: dict[str, bytes | TaskFailed]
    ) -> None:
        good: list[tuple[str, bytes]] = []
        for kernel in batch:
            outcome = results[kernel.digest]
            if isinstance(outcome, bytes):
                self._recent.put(kernel.key, outcome)
                good.append((kernel.key, outcome))
            flight = self._flights.get(kernel.key)
            if flight is not None:
                flight.settle(outcome)
                del self._flights[kernel.key]
        for key, binary in good:
            await self._publish(key, binary)

    def _ended(self, flights: Sequence[Flight], task: asyncio.Task[None]) -> None:
        """However a batch has ended, nobody waits for it for ever."""
        for flight in flights:
            if self._flights.get(flight.key) is flight:
                del self._flights[flight.key]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a batch of kernels was lost", exc_info=error, extra={"action": "build"})
        kind = ErrorKind.CANCELLED if task.cancelled() else ErrorKind.INTERNAL
        for flight in flights:
            flight.settle(TaskFailed(kind, f"the build ended without a result: {error}"))


class Flight:
    """One kernel being built, and how many jobs want it."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.wanted = 0
        self.batch: asyncio.Task[None] | None = None
        self.peers: tuple[Flight, ...] = ()
        self._future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def binary(self) -> bytes:
        """Wait for the binary. Raises TaskFailed."""
        return await asyncio.shield(self._future)

    def settle(self, outcome: bytes | TaskFailed) -> None:
        """The build is over."""
        if self._future.done():
            return
        if isinstance(outcome, TaskFailed):
            self._future.set_exception(outcome)
            self._future.exception()  # a job that was cancelled does not come to take it
        else:
            self._future.set_result(outcome)


def _results(batch: Sequence[PlannedKernel], result: bytes) -> dict[str, bytes | TaskFailed]:
    """Every kernel's outcome; a worker that leaves one out has failed."""
    try:
        results = dict(built(result))
    except (CacheError, FusecError) as error:
        raise TaskFailed(ErrorKind.INTERNAL, f"a worker's result is malformed: {error}") from error
    missing = TaskFailed(ErrorKind.INTERNAL, "the worker gave no result for this kernel")
    return {kernel.digest: results.get(kernel.digest, missing) for kernel in batch}


def batches(kernels: Sequence[PlannedKernel], workers: int) -> list[list[PlannedKernel]]:
    """Group small kernels, so that scheduling costs less, without starving a worker.

    A kernel of much source is alone. Small ones share a task of at most MOST_IN_BATCH, while there
    are still BATCHES_PER_WORKER tasks for each worker.
    """
    small = [kernel for kernel in kernels if len(kernel.source) < SMALL_SOURCE]
    made = [[kernel] for kernel in kernels if len(kernel.source) >= SMALL_SOURCE]
    size = len(small) // max(1, workers * BATCHES_PER_WORKER)
    size = min(MOST_IN_BATCH, max(1, size))
    made.extend(list(small[at : at + size]) for at in range(0, len(small), size))
    return made
