"""Kernels' variants timed on GPUs, a lease of a few kernels at a time.

A kernel is timed once: its record stands in the store, and graphs in work at the same time share
the race. Lives in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from cache.errors import CacheError
from cache.lru import ByteLRU
from cache.manifest import Manifest
from cache.protocol import pack, unpack
from farm.attempts import Attempts
from farm.metrics import FarmMetrics
from farm.ownership import Ownership
from farm.pool import TaskFailed
from farm.quality_tasks import (
    Candidate,
    Chosen,
    Compiled,
    chosen_of,
    compiled_of,
    race_task,
    variants_tasks,
)
from farm.shelf import Shelf
from farm.untuned import Untuned
from farm.urgency import behind
from fusec.errors import FusecError
from fusec.runtime.format import KERNEL_BLOB, RECORD_BLOB

log = logging.getLogger("fusec.farm")

KERNELS_A_LEASE: Final = 2  # so that a verification gets its turn between two
RACE_S: Final = 60.0  # for those
RECENT_BYTES: Final = 64 << 20


class Races:
    """Winners by kernel digest. What cannot be timed has none, and why."""

    def __init__(self, attempts: Attempts, metrics: FarmMetrics) -> None:
        self._attempts = attempts
        self._metrics = metrics
        self._flights: dict[tuple[str, str, bytes], asyncio.Future[Chosen]] = {}
        # Between a race's end and the moment another graph's earlier, slower lookup has missed it.
        self._recent: ByteLRU[tuple[str, str]] = ByteLRU(RECENT_BYTES)

    async def known(self, graph: Untuned, keys: Sequence[str]) -> dict[str, Chosen]:
        """The winners of which a record stands, by the record's key."""
        found = await graph.shelf.found(keys)
        return {
            key: Chosen(item.blobs[KERNEL_BLOB], item.blobs[RECORD_BLOB])
            for key, item in found.items()
            if item.blobs.keys() >= {KERNEL_BLOB, RECORD_BLOB}
        }

    async def chosen(
        self, graph: Untuned, candidates: Sequence[Candidate], device: str
    ) -> dict[str, Chosen]:
        """The winners: from records, from races in flight, from our own, whose records are kept."""
        known = await self.known(graph, [c.key for c in candidates])
        # From here to the flights no await: no race ends unseen.
        found: dict[str, Chosen] = {}
        for candidate in candidates:
            one = known.get(candidate.key) or self._just_raced(graph.tenant, candidate.key)
            if one is not None:
                found[candidate.digest] = one
        self._metrics.tuned_kernels.labels("known").inc(len(found))
        rest = [c for c in candidates if c.digest not in found]
        return {**found, **await self.race(graph, rest, device, keep=True)}

    async def race(
        self, graph: Untuned, candidates: Sequence[Candidate], device: str, *, keep: bool
    ) -> dict[str, Chosen]:
        """The winners of races now. keep: their records, as soon as each lease of a GPU is over."""
        flights = {c: self._flights.get(_flight(graph, c)) for c in candidates}
        own = [c for c, flight in flights.items() if flight is None]
        self._metrics.tuned_kernels.labels("shared").inc(len(candidates) - len(own))
        loop = asyncio.get_running_loop()
        ours = {c: loop.create_future() for c in own}
        self._flights.update({_flight(graph, c): future for c, future in ours.items()})
        try:
            parts = [own[at : at + KERNELS_A_LEASE] for at in range(0, len(own), KERNELS_A_LEASE)]
            await asyncio.gather(*(self._lease(graph, some, device, ours, keep) for some in parts))
        finally:
            for candidate, future in ours.items():
                del self._flights[_flight(graph, candidate)]
                if not future.done():
                    future.set_result(Chosen(why="its race was given up"))
        waits = {c: ours.get(c) or flight for c, flight in flights.items()}
        return {c.digest: await asyncio.shield(w) for c, w in waits.items() if w is not None}

    async def keep(self, shelf: Shelf, key: str, chosen: Chosen) -> None:
        """Keep a record; the first one stands."""
        blobs = _blobs(chosen)
        try:
            await shelf.publish(key, Manifest.of("tuning", blobs), blobs)
        except TaskFailed:
            return  # counted already; it is timed again one day

    async def keep_over(self, shelf: Shelf, claims: Ownership, key: str, chosen: Chosen) -> None:
        """Keep a record in the place of the one that stands."""
        standing = await shelf.standing(key)
        if standing is None:
            await self.keep(shelf, key, chosen)
            return
        holding = await claims.acquire(key.partition("/")[2])
        if holding is None:
            return  # another gateway does the same
        async with holding:
            blobs = _blobs(chosen)
            manifest = Manifest.of("tuning", blobs)
            await shelf.replace(key, manifest, blobs, standing.version, await holding.claim())

    async def _lease(
        self,
        graph: Untuned,
        some: Sequence[Candidate],
        device: str,
        flights: Mapping[Candidate, asyncio.Future[Chosen]],
        keep: bool,
    ) -> None:
        """Compile and race a few kernels, keep their records, settle their flights."""
        built = await asyncio.gather(*(self._compiled(graph, c) for c in some))
        compiled = [each for each in built if each is not None]
        for each in compiled:
            self._metrics.variants.labels("compiled").inc(len(each.binaries))
            self._metrics.variants.labels("left_out").inc(len(each.left_out))
        outcomes: dict[str, Chosen] = {}
        if compiled:
            task = behind(race_task(compiled, RACE_S, device), graph.tenant)
            try:
                outcomes, seconds = chosen_of(await self._attempts.run(task))
            except (TaskFailed, CacheError, FusecError) as error:
                log.warning("a race is lost: %s", error, extra={"action": "tune"})
            else:
                gpu = graph.request.target.isa
                self._metrics.gpu_seconds.labels(gpu).inc(seconds)
                self._metrics.gpu_leases.labels(gpu).inc()
        for candidate in some:
            outcome = outcomes.get(candidate.digest, Chosen(why="it was not raced"))
            if outcome.record and keep:
                packed = pack([outcome.binary, outcome.record])
                self._recent.put((graph.tenant, candidate.key), packed)
                await self.keep(graph.shelf, candidate.key, outcome)
            self._metrics.tuned_kernels.labels("timed" if outcome.binary else "failed").inc()
            flights[candidate].set_result(outcome)

    async def _compiled(self, graph: Untuned, candidate: Candidate) -> Compiled | None:
        try:
            tasks = [behind(task, graph.tenant) for task in variants_tasks(candidate)]
            return compiled_of(candidate, await asyncio.gather(*map(self._attempts.run, tasks)))
        except (TaskFailed, CacheError, FusecError) as error:
            log.warning("variants are lost: %s", error, extra={"action": "tune"})
            return None

    def _just_raced(self, tenant: str, key: str) -> Chosen | None:
        packed = self._recent.get((tenant, key))
        if packed is None:
            return None
        pair = unpack(packed, max_bytes=len(packed))
        assert isinstance(pair, list)
        binary, record = pair
        assert isinstance(binary, bytes)
        assert isinstance(record, bytes)
        return Chosen(binary, record)


def _flight(graph: Untuned, candidate: Candidate) -> tuple[str, str, bytes]:
    """What makes two races the same: of a descent and of a new trial also what is raced."""
    step = candidate.key == candidate.descended
    return graph.tenant, candidate.key, candidate.problem if step else candidate.standing


def _blobs(chosen: Chosen) -> dict[str, bytes]:
    return {RECORD_BLOB: chosen.record, KERNEL_BLOB: chosen.binary}
