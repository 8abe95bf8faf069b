"""Jobs owned by lease, among gateways that share a store (`farm.lease` says when).

A holder renews in the background. When its lease turns out to be another's, the work under it is
stopped, and `Fenced` is raised in its place. Which kernels are built is not leased: a job looks in
the store before it builds any, and two gateways that build one at the same time publish the same
bytes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

from cache import key as keys
from cache.digest import digest
from cache.errors import CacheError, Fenced
from cache.lease import Claim, Lease
from cache.store import SwapStore
from farm.attempts import Attempts
from farm.lease import Held, Member, Sighting
from farm.metrics import FarmMetrics
from farm.ownership import Holding, Ownership
from farm.pool import TaskFailed
from farm.retry import ErrorKind
from farm.store_calls import StoreCalls

log = logging.getLogger("fusec.farm")

THREADS: Final = 4
TAKE_ATTEMPTS: Final = 3
CLOSE_S: Final = 5.0
MOST_SEEN: Final = 1 << 16
"""Leases of others that are remembered. One that is forgotten is taken over a term later."""


class Leases(Ownership):
    """The leases of one gateway in one store. Lives in one event loop.

    clock: seconds of a monotonic clock. wall: seconds since 1970.
    """

    def __init__(
        self,
        store: SwapStore,
        member: Member,
        attempts: Attempts,
        metrics: FarmMetrics,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.member = member
        self.metrics = metrics
        self.clock = clock
        self.look_s = member.look_s
        self._wall = wall
        self._store = store
        # Threads of their own: a renewal must not wait behind uploads.
        self._calls = StoreCalls(attempts, THREADS, "farm-lease")
        self._sightings: dict[str, Sighting] = {}
        self._releases: set[asyncio.Task[None]] = set()

    async def acquire(self, fingerprint: str) -> Holding | None:
        """See `Ownership`."""
        seen = self._sightings.get(fingerprint)
        if seen is None:
            seen = Sighting(None, self.clock())  # nobody's, as a rule: no request to find that out
        else:
            seen = await self._look(fingerprint, again=True)
        for _ in range(TAKE_ATTEMPTS):
            if not seen.may_take(self.member, self.clock()):
                return None
            held = seen.take(self.member, self.clock(), self._wall())
            if await self._calls.call(self._swap(fingerprint, seen.lease, held.lease)):
                self._sightings.pop(fingerprint, None)
                self._count_taken(fingerprint, seen.lease)
                return LeaseHolding(self, fingerprint, held, contested=seen.lease is not None)
            seen = await self._look(fingerprint, again=True)
        raise TaskFailed(ErrorKind.STORE_UNREACHABLE, "the lease of the job changes all the time")

    async def owner(self, fingerprint: str) -> Lease | None:
        """See `Ownership`."""
        seen = await self._look(fingerprint)
        return None if seen.may_take(self.member, self.clock()) else seen.lease

    async def swap(self, fingerprint: str, standing: Lease, data: Lease) -> bool:
        """Change a lease that this gateway wrote. Raises what the store raises."""
        return await self._calls.once(self._swap(fingerprint, standing, data))

    def release(self, fingerprint: str, held: Held) -> None:
        """Give a lease up, beside the caller."""
        task = asyncio.create_task(self._release(fingerprint, held))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def close(self) -> None:
        """See `Ownership`. What is not released in CLOSE_S seconds expires."""
        if self._releases:
            await asyncio.wait(self._releases, timeout=CLOSE_S)
        self._calls.close()

    async def _look(self, fingerprint: str, *, again: bool = False) -> Sighting:
        """Read a lease. again: while that helps, as of `StoreCalls.call`."""
        name = f"{keys.LEASE}/{fingerprint}"
        call = self._calls.call if again else self._calls.once
        data = await call(lambda: self._store.get_record(name))
        now = self.clock()
        lease = None if data is None else Lease.decode(data)
        before = self._sightings.get(fingerprint)
        seen = Sighting(lease, now) if before is None else before.then(lease, now)
        self._sightings.pop(fingerprint, None)
        self._sightings[fingerprint] = seen  # the last one
        if len(self._sightings) > MOST_SEEN:
            del self._sightings[next(iter(self._sightings))]
        return seen

    def _swap(self, fingerprint: str, standing: Lease | None, new: Lease) -> Callable[[], bool]:
        expected = None if standing is None else digest(standing.encode())
        name, data = f"{keys.LEASE}/{fingerprint}", new.encode()
        return lambda: self._store.swap_record(name, expected, data)

    async def _release(self, fingerprint: str, held: Held) -> None:
        try:
            await self.swap(fingerprint, held.lease, held.release)
        except CacheError as error:
            text = "a lease is not released and expires: %s"
            log.warning(text, error, extra={"action": "release"})

    def _count_taken(self, fingerprint: str, before: Lease | None) -> None:
        if before is None or before.released or before.owner == self.member.owner:
            return
        self.metrics.takeovers.inc()
        text = "job %s taken over from %s, which is silent"
        log.warning(text, fingerprint[:12], before.address, extra={"action": "takeover"})


class LeaseHolding(Holding):
    """One lease that is held, and renewed within `async with`."""

    def __init__(self, leases: Leases, fingerprint: str, held: Held, *, contested: bool) -> None:
        self.contested = contested
        self._leases = leases
        self._fingerprint = fingerprint
        self._held = held
        self._lost = False
        self._cancelled = False
        self._writing = asyncio.Lock()
        self._holder: asyncio.Task[object] | None = None
        self._renewing: asyncio.Task[None] | None = None

    async def claim(self) -> Claim | None:
        """See `Holding`. A lease that could not be renewed in time is looked after first."""
        for _ in range(2):  # a renewal whose answer was lost gives no time: the next one does
            if not self._lost and not self._believes():
                await self._renew()
        if self._lost or not self._believes():
            raise self._fenced()
        return self._held.lease.claim

    async def __aenter__(self) -> Holding:
        self._leases.metrics.leases.inc()
        self._holder = asyncio.current_task()
        self._renewing = asyncio.create_task(self._keep())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._renewing is not None
        assert self._holder is not None
        self._leases.metrics.leases.dec()
        self._renewing.cancel()
        if not self._lost:
            self._leases.release(self._fingerprint, self._held)
            return
        if self._cancelled:
            if kind is None:
                await _take_cancel()
            self._holder.uncancel()
            if kind is asyncio.CancelledError:
                raise self._fenced() from error

    def _believes(self) -> bool:
        return self._held.believes(self._leases.clock())

    def _fenced(self) -> Fenced:
        epoch = self._held.lease.epoch
        return Fenced(f"job {self._fingerprint[:12]} is no longer this gateway's: epoch {epoch}")

    async def _keep(self) -> None:
        while not self._lost:
            await asyncio.sleep(self._leases.member.renew_s)
            await self._renew()
        if self._holder is not None:
            self._cancelled = True
            self._holder.cancel()

    async def _renew(self) -> None:
        async with self._writing:
            if self._lost:
                return
            self._held = held = self._held.trying(self._leases.clock())
            try:
                done = await self._leases.swap(self._fingerprint, held.lease, held.renewal)
            except CacheError as error:
                text = "lease of job %s is not renewed: %s"
                log.warning(text, self._fingerprint[:12], error, extra={"action": "renew"})
                return
            if done:
                self._held = held.renewed()
            else:
                self._lost = True


async def _take_cancel() -> None:
    """Take a cancel that has not come yet: the work under the lease was over before it could."""
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        return
