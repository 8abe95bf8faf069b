"""The binaries of one job's kernels: found in the store, or built, as its plan hands them on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final

from cache.errors import CacheError
from farm.kernels import Flight
from farm.metrics import FarmMetrics
from farm.pool import TaskFailed
from farm.queue import Share
from farm.retry import ErrorKind
from farm.spaces import Space
from farm.urgency import Urgency
from farm.workers import PlannedKernel, planned_kernels
from fusec.errors import FusecError
from fusec.options import Target

log = logging.getLogger("fusec.farm")

PROGRESS_S: Final = 0.1


class Binaries:
    """Used by one job, in its event loop, as a context: what it leaves is not built for it any
    more, unless another job wants it.

    timed: measures a stage of the job.
    """

    def __init__(
        self,
        space: Space,
        target: Target,
        share: Share,
        urgency: Urgency,
        metrics: FarmMetrics,
        timed: Callable[[str], AbstractAsyncContextManager[None]],
    ) -> None:
        self._space = space
        self._target = target
        self._share = share
        self._urgency = urgency
        self._metrics = metrics
        self._timed = timed
        self._searches: list[asyncio.Task[dict[str, bytes | Flight]]] = []
        self._waits: dict[str, asyncio.Task[bytes]] = {}  # by key
        self._flights: list[Flight] = []
        self._left = False
        self.stored = 0  # that nobody had to build

    async def __aenter__(self) -> Binaries:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._left = True
        open_tasks = [*self._waits.values(), *self._searches]
        for task in open_tasks:
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)
        self._space.builds.leave(self._flights)

    def heard(self, part: bytes) -> None:
        """A plan hands kernels on. One that is tried again does so again: each counts once."""
        if self._left:
            return
        try:
            kernels = planned_kernels(part)
        except (CacheError, FusecError) as error:
            log.error("a plan hands on no kernels: %s", error, extra={"action": "plan"})
            return  # `all` misses them
        new = {k.key: k for k in kernels if k.key not in self._waits}
        if not new:
            return
        search = asyncio.create_task(self._search([*new.values()]))
        self._searches.append(search)
        self._waits.update((key, asyncio.create_task(_binary(key, search))) for key in new)

    @property
    def done(self) -> int:
        """How many there are by now."""
        return sum(1 for wait in self._waits.values() if wait.done())

    async def all(
        self, keys: Mapping[str, str], clock: Callable[[], float], told: Callable[[], None]
    ) -> dict[str, bytes]:
        """Those of a plan's kernels, whose keys are given by digest, by digest. Raises TaskFailed
        for the first that has failed.

        told: is called now and then, by the clock, when there are more.
        """
        missing = [digest for digest, key in keys.items() if key not in self._waits]
        if missing:
            text = f"a plan has kernels that it did not hand on: {len(missing)} of {len(keys)}"
            raise TaskFailed(ErrorKind.INTERNAL, text)
        last = clock()
        for wait in asyncio.as_completed([self._waits[key] for key in keys.values()]):
            await wait
            if clock() - last >= PROGRESS_S:
                last = clock()
                told()
        return {digest: self._waits[key].result() for digest, key in keys.items()}

    async def _search(self, kernels: list[PlannedKernel]) -> dict[str, bytes | Flight]:
        """Each kernel's binary, by key, or the build that makes it, shared with other jobs."""
        builds = self._space.builds
        async with self._timed("lookup"):
            stored = await self._space.shelf.kernels([kernel.key for kernel in kernels])
        found: dict[str, bytes | Flight] = {}
        missing: list[PlannedKernel] = []
        for kernel in kernels:
            binary = stored.get(kernel.key) or builds.recent(kernel.key)
            if binary is None:
                missing.append(kernel)
            else:
                found[kernel.key] = binary
        self.stored += len(found)
        self._metrics.kernels.labels("stored").inc(len(found))
        self._metrics.seconds_saved.inc(len(found) * builds.seconds.value)
        # No await between the look at `recent` and the start: no build can end unseen.
        flights = builds.start(missing, self._target, self._share, self._urgency)
        self._flights += flights
        found.update((flight.key, flight) for flight in flights)
        return found


async def _binary(key: str, search: asyncio.Task[dict[str, bytes | Flight]]) -> bytes:
    found = (await asyncio.shield(search))[key]
    return found if isinstance(found, bytes) else await found.binary()
