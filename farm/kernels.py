"""Kernels of all jobs in flight: each distinct one is built once, and published by itself."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from cache.errors import CacheError
from cache.lru import ByteLRU
from farm.attempts import Attempts
from farm.batch import Batch, batches
from farm.metrics import FarmMetrics, Mean
from farm.poison import Poison
from farm.pool import TaskFailed
from farm.queue import Share
from farm.retry import ErrorKind
from farm.urgency import Urgency
from farm.workers import PlannedKernel, built
from fusec.errors import FusecError
from fusec.options import Target
from fusec.remote.protocol import Priority

log = logging.getLogger("fusec.farm")

RECENT_BYTES: Final = 64 << 20

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
        self._poison = Poison()
        self.seconds = Mean()

    def recent(self, key: str) -> bytes | None:
        """A binary that was built a moment ago."""
        return self._recent.get(key)

    def start(
        self,
        kernels: Sequence[PlannedKernel],
        target: Target,
        share: Share,
        urgency: Urgency,
    ) -> list[Flight]:
        """Join the builds in flight and start the others, as work of `share`; every flight must be
        left again.

        All become as urgent as `urgency` is and will be. A kernel that has failed for good a moment
        ago is a flight that has failed.
        """
        now = self._clock()
        known = {k.key: self._poison.recall(k.key, now) for k in kernels}
        shared = sum(1 for kernel in kernels if kernel.key in self._flights)
        new = [k for k in kernels if k.key not in self._flights and known[k.key] is None]
        for together in batches(new, self._attempts.pool.workers):
            flights = {kernel.key: Flight(kernel.key) for kernel in together}
            self._flights.update(flights)
            batch = Batch(tuple(together), target, share, Urgency(urgency.priority))
            task = asyncio.create_task(self._build(batch))
            peers = tuple(flights.values())
            for flight in peers:
                flight.batch, flight.peers, flight.urgency = task, peers, batch.urgency
            task.add_done_callback(partial(self._ended, peers))
        self._metrics.kernels.labels("built").inc(len(new))
        joined = [self._flights.get(k.key) or _failed(k.key, known[k.key]) for k in kernels]
        self._metrics.kernels.labels("shared").inc(shared)
        for flight in joined:
            flight.wanted += 1
        for shared_by_some in {flight.urgency for flight in joined}:
            urgency.carry(shared_by_some)
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

    async def _build(self, batch: Batch) -> None:
        """Try a batch; then what failed of it again, as often as its kind of failure allows."""
        started = self._clock()
        try:
            results = _results(batch, await self._attempts.once(batch.task(), batch.urgency))
        except TaskFailed as error:
            await self._after(batch, error)
            return
        took = self._clock() - started
        self.seconds.add(took / len(batch.kernels))
        self._metrics.kernel_seconds.labels(batch.target.device).observe(took)
        async with asyncio.TaskGroup() as rest:
            good: dict[str, bytes] = {}
            for kernel in batch.kernels:
                outcome = results[kernel.digest]
                if isinstance(outcome, bytes):
                    good[kernel.key] = outcome
                else:
                    rest.create_task(self._after(batch.of([kernel]), outcome))
            await self._deliver(good)

    async def _after(self, batch: Batch, error: TaskFailed) -> None:
        """What one failure means for all kernels that it concerns: it is theirs, or try again."""
        verdict = await self._attempts.after(error, batch.attempt)
        if verdict is None:
            for kernel in batch.kernels:
                self._poison.remember(kernel.key, error, self._clock())
                self._settle(kernel.key, error)
            return
        again = batch.again(error)
        # One by one, to find the one at fault.
        parts = [again.of([kernel]) for kernel in batch.kernels] if verdict.alone else [again]
        async with asyncio.TaskGroup() as rest:
            for part in parts:
                rest.create_task(self._build(part))

    async def _deliver(self, good: Mapping[str, bytes]) -> None:
        for key, binary in good.items():
            self._recent.put(key, binary)
            self._settle(key, binary)
        for key, binary in good.items():
            await self._publish(key, binary)

    def _settle(self, key: str, outcome: bytes | TaskFailed) -> None:
        flight = self._flights.pop(key, None)
        if flight is not None:
            flight.settle(outcome)

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
        self.urgency = Urgency(Priority.BACKGROUND)
        self.batch: asyncio.Task[None] | None = None
        self.peers: tuple[Flight, ...] = ()
        self._future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    @property
    def over(self) -> bool:
        """Whether the build has ended, in whatever way."""
        return self._future.done()

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


def _failed(key: str, error: TaskFailed | None) -> Flight:
    """A flight that nobody has to wait for."""
    flight = Flight(key)
    flight.settle(error or TaskFailed(ErrorKind.INTERNAL, "a kernel has neither flight nor fault"))
    return flight


def _results(batch: Batch, result: bytes) -> dict[str, bytes | TaskFailed]:
    """Every kernel's outcome; a worker that leaves one out has failed."""
    try:
        results = dict(built(result))
    except (CacheError, FusecError) as error:
        raise TaskFailed(ErrorKind.INTERNAL, f"a worker's result is malformed: {error}") from error
    missing = TaskFailed(ErrorKind.INTERNAL, "the worker gave no result for this kernel")
    return {kernel.digest: results.get(kernel.digest, missing) for kernel in batch.kernels}
