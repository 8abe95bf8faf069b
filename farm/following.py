"""Jobs that wait here and are done by another gateway: followed until they end or become ours."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from cache.errors import CacheError
from cache.lease import Lease
from farm.job import Job, JobId
from farm.metrics import FarmMetrics
from farm.peers import Peers
from farm.pool import TaskFailed
from farm.retry import ErrorKind
from farm.spaces import Space
from fusec.remote.protocol import JobError, JobState, JobStatus

log = logging.getLogger("fusec.farm")

NEWS_S: Final = 0.1
"""Between two questions to an owner: thousands may wait here for the same job."""
AGAIN_S: Final = 1.0
"""Between two looks at the lease of an owner that has gone."""
_PASSING: Final = frozenset({ErrorKind.CANCELLED.value, ErrorKind.ABANDONED.value})
"""Failures that are about the owner's waiters and not about the graph."""

End = JobState | JobError
"""DONE: published. A JobError: failed at its owner. QUEUED: this gateway may do it."""


class Following:
    """Follows jobs, each in a task. Lives in one event loop.

    on_news: called with what the owner says of a job. on_end: called once, unless it was stopped.
    """

    def __init__(
        self,
        peers: Peers | None,
        metrics: FarmMetrics,
        clock: Callable[[], float],
        *,
        on_news: Callable[[JobId, JobStatus], None],
        on_end: Callable[[JobId, End], None],
    ) -> None:
        self._peers = peers
        self._metrics = metrics
        self._clock = clock
        self._on_news = on_news
        self._on_end = on_end
        self._tasks: dict[JobId, asyncio.Task[End]] = {}

    def start(self, job: Job, space: Space) -> None:
        """Follow a job."""
        task = asyncio.create_task(self._follow(job, space), name=f"follow-{job.fingerprint[:12]}")
        self._tasks[job.id] = task
        self._metrics.following.inc()
        task.add_done_callback(partial(self._over, job.id))

    def stop(self, name: JobId) -> None:
        """Nobody here waits for it any more."""
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()

    async def look(
        self, name: JobId, space: Space, waiter: str, after: int, wait_s: float
    ) -> JobStatus | None:
        """How a job stands that is not here, with its owner; None where nobody has it. A waiter
        need not hand its graph to each of several gateways that it happens to ask."""
        try:
            lease = await space.ownership.owner(name.fingerprint)
        except CacheError as error:
            log.warning("a lease cannot be read: %s", error, extra={"action": "follow"})
            return None
        if lease is None or self._peers is None:
            return None
        return await self._peers.ask(lease, name, after, wait_s, waiter)

    async def close(self) -> None:
        """Stop all."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._peers is not None:
            await self._peers.close()

    async def _follow(self, job: Job, space: Space) -> End:
        look_s, heard, lease = space.ownership.look_s, 0, None
        look_at = self._clock()
        try:
            while True:
                if self._clock() >= look_at:
                    lease = await self._owner(job, space, lease)
                    look_at = self._clock() + look_s
                    if lease is None:
                        return JobState.QUEUED
                assert lease is not None
                left = max(NEWS_S, look_at - self._clock())
                status = await self._ask(lease, job, heard, left)
                if status is None:
                    look_at = await self._soon(look_at)
                    continue
                heard = status.seq
                end = await self._end(job, space, status)
                if end is not None:
                    return end
                if status.state.final:
                    look_at = await self._soon(look_at)
                else:
                    await asyncio.sleep(NEWS_S)
        except asyncio.CancelledError:
            if lease is not None and self._peers is not None:
                await self._peers.leave(lease, job.id)
            raise

    async def _soon(self, look_at: float) -> float:
        """Wait for when to look at the lease of an owner that has no more to say: it has gone, and
        has let go of the job or is just about to."""
        look_at = min(look_at, self._clock() + AGAIN_S)
        await asyncio.sleep(look_at - self._clock())
        return look_at

    async def _owner(self, job: Job, space: Space, known: Lease | None) -> Lease | None:
        """Whose the job is; while the store does not answer, what was known before."""
        try:
            return await space.ownership.owner(job.fingerprint)
        except CacheError as error:
            log.warning("a lease cannot be read: %s", error, extra={"action": "follow"})
            return known

    async def _ask(self, lease: Lease, job: Job, heard: int, wait_s: float) -> JobStatus | None:
        if self._peers is None:
            return None
        return await self._peers.ask(lease, job.id, heard, wait_s)

    async def _end(self, job: Job, space: Space, status: JobStatus) -> End | None:
        """How the job has ended by what its owner says; None if it has not."""
        if not status.state.final:
            self._on_news(job.id, status)
            return None
        if status.state is JobState.DONE:
            # The owner's word is not enough: what counts is in the store.
            try:
                return status.state if await space.shelf.has(f"graph/{job.fingerprint}") else None
            except TaskFailed:
                return None
        if status.error is None or status.error.kind in _PASSING:
            return None  # its lease will be released
        return status.error

    def _over(self, name: JobId, task: asyncio.Task[End]) -> None:
        self._metrics.following.dec()
        if self._tasks.get(name) is not task:
            return  # stopped
        del self._tasks[name]
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            log.error("following a job broke off", exc_info=error, extra={"action": "follow"})
        # A fault of ours: whoever holds the lease decides, when this gateway tries to get it.
        self._on_end(name, JobState.QUEUED if error is not None else task.result())
