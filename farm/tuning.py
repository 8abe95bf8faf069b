"""Tuning behind the clients: an artifact is published as the cost model chose; one whose kernels a
GPU has timed takes its place later.

A kernel is timed once: its record stands in the store, and graphs in work at the same time share
the race. What no GPU of the cluster serves waits here until one joins. Everything is of the lowest
priority, so that clients who wait never wait for this. A gateway that dies loses nothing but time:
the artifacts stand, and `farm.retune` begins again from what the store has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from cache.artifacts import Found
from cache.errors import CacheError
from cache.lru import ByteLRU
from cache.manifest import Manifest
from cache.protocol import pack
from farm.attempts import Attempts
from farm.metrics import FarmMetrics
from farm.pool import Task, TaskFailed
from farm.quality_tasks import (
    Candidate,
    Chosen,
    Compiled,
    candidates_of,
    candidates_task,
    chosen_of,
    compiled_of,
    race_task,
    variants_task,
)
from farm.queue import Share
from farm.retry import ErrorKind
from farm.shelf import KERNEL_BLOB, Shelf
from farm.urgency import Urgency
from farm.verifier import Verifier
from farm.workers import Stages
from fusec.artifact.fingerprint import fingerprint
from fusec.artifact.quality import Tier, quality_of
from fusec.errors import FusecError
from fusec.remote.protocol import FarmJob, Priority, decode_submit

log = logging.getLogger("fusec.farm")

KERNELS_A_LEASE: Final = 8  # so that a verification gets its turn between two
RACE_S: Final = 120.0  # for those
MOST_WAITING: Final = 256
MOST_BYTES: Final = 512 << 20
AT_ONCE: Final = 2  # graphs
RECENT_BYTES: Final = 64 << 20
RECHECK_S: Final = 5.0
_JOB_BLOB: Final = "job"
_RECORD_BLOB: Final = "record"


@dataclass(frozen=True, slots=True)
class Untuned:
    """A published graph whose kernels are to be timed. binaries: of its kernels, by digest."""

    request: FarmJob
    plan: bytes
    binaries: Mapping[str, bytes]
    shelf: Shelf
    tenant: str

    @property
    def name(self) -> tuple[str, str]:
        return self.tenant, self.request.fingerprint

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        return len(self.request.graph) + len(self.plan) + sum(map(len, self.binaries.values()))


class Tuning:
    """The graphs that wait for a GPU, and those that have one. Lives in one event loop."""

    def __init__(
        self, attempts: Attempts, stages: Stages, verifier: Verifier, metrics: FarmMetrics
    ) -> None:
        self._attempts = attempts
        self._stages = stages
        self._verifier = verifier
        self._metrics = metrics
        self._waiting: dict[tuple[str, str], Untuned] = {}
        self._bytes = 0
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._races: dict[tuple[str, str], asyncio.Future[Chosen]] = {}
        # Between a race's end and the moment another graph's earlier, slower lookup has missed it.
        self._recent: ByteLRU[tuple[str, str]] = ByteLRU(RECENT_BYTES)
        self._looking: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def load(self) -> tuple[int, int]:
        """Graphs that wait, graphs in work."""
        return len(self._waiting), len(self._tasks)

    async def offer(self, graph: Untuned, manifest: Manifest) -> None:
        """Take a graph that was published with this manifest, if tuning can make it better."""
        if quality_of(manifest.meta).tier is not Tier.UNTUNED or self._closed:
            return
        await self._keep_job(graph)
        self.add(graph)

    def add(self, graph: Untuned) -> None:
        """Have a graph tuned when its turn comes; the oldest goes where too many wait."""
        if self._closed or self.holds(graph.name):
            return
        self._waiting[graph.name] = graph
        self._bytes += graph.size
        while len(self._waiting) > MOST_WAITING or self._bytes > MOST_BYTES:
            self._take(next(iter(self._waiting)))
            self._metrics.tuned.labels("dropped").inc()
        self._begin()

    def holds(self, name: tuple[str, str]) -> bool:
        """Whether a graph, by tenant and fingerprint, waits or is in work here."""
        return name in self._waiting or name in self._tasks

    async def stored_job(self, shelf: Shelf, fingerprint: str) -> FarmJob | None:
        """The submit of a graph that was published untuned, for `farm.retune`."""
        kept = await shelf.standing(_job_key(fingerprint))
        if kept is None or _JOB_BLOB not in kept.blobs:
            return None
        job = decode_submit(kept.blobs[_JOB_BLOB])
        return job if isinstance(job, FarmJob) else None

    async def close(self) -> None:
        """Stop. What is half tuned stays untuned."""
        self._closed = True
        tasks = list(self._tasks.values()) + ([self._looking] if self._looking else [])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- whose turn it is -----------------------------------------------------------------------

    def _begin(self) -> None:
        for name, graph in list(self._waiting.items()):
            if len(self._tasks) >= AT_ONCE or self._closed:
                break
            device = self._verifier.device_for(graph.request.target)
            if device is None:
                continue  # until one joins
            self._take(name)
            task = asyncio.create_task(self._run(graph, device), name=f"tune-{name[1][:12]}")
            self._tasks[name] = task
            task.add_done_callback(partial(self._over, name))
        self._metrics.tuning_waiting.set(len(self._waiting))
        if self._waiting and (self._looking is None or self._looking.done()) and not self._closed:
            self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        """While graphs wait: see whether a GPU has joined."""
        while self._waiting:
            await asyncio.sleep(RECHECK_S)
            self._begin()

    def _take(self, name: tuple[str, str]) -> None:
        self._bytes -= self._waiting.pop(name).size

    def _over(self, name: tuple[str, str], _: asyncio.Task[None]) -> None:
        del self._tasks[name]
        self._begin()

    # -- one graph ------------------------------------------------------------------------------

    async def _run(self, graph: Untuned, device: str) -> None:
        outcome = "failed"
        try:
            outcome = "replaced" if await self._tune(graph, device) else "kept"
        except (TaskFailed, CacheError, FusecError) as error:
            wrong = isinstance(error, TaskFailed) and error.kind is ErrorKind.VERIFICATION
            outcome = "wrong" if wrong else "failed"
            log.warning("tuning %s: %s", graph.name[1][:12], error, extra={"action": "tune"})
        finally:
            self._metrics.tuned.labels(outcome).inc()

    async def _tune(self, graph: Untuned, device: str) -> bool:
        """Whether a tuned artifact has taken the place of the untuned one. Raises TaskFailed."""
        request = graph.request
        label = f"candidates {request.fingerprint[:12]}"
        task = behind(candidates_task(graph.plan, device, label), graph.tenant)
        candidates = candidates_of(await self._attempts.run(task))
        chosen = await self._chosen(graph, candidates, device)
        binaries = {**graph.binaries, **chosen}
        manifest, blobs = await asyncio.to_thread(
            self._stages.assemble, graph.plan, binaries, device, len(chosen)
        )
        key = f"graph/{request.fingerprint}"
        standing = await graph.shelf.standing(key)
        if standing is None or standing.manifest.is_final:
            return False  # removed, or tuned by another gateway
        share, urgency = Share(graph.tenant), Urgency(Priority.BACKGROUND)
        found = await self._verifier.verified(
            request.graph, request.target, Found(manifest, blobs), share, urgency
        )
        return await graph.shelf.replace(key, found.manifest, found.blobs, standing.version)

    async def _chosen(
        self, graph: Untuned, candidates: Sequence[Candidate], device: str
    ) -> dict[str, bytes]:
        """The winners' binaries by kernel: from records, from races in flight, from our own."""
        known = await graph.shelf.kernels([c.key for c in candidates])
        chosen: dict[str, bytes] = {}
        # From here to the flights no await: no race ends unseen.
        rest: list[Candidate] = []
        for candidate in candidates:
            binary = known.get(candidate.key) or self._recent.get((graph.tenant, candidate.key))
            if binary is None:
                rest.append(candidate)
            else:
                chosen[candidate.digest] = binary
        shared = {
            c.digest: self._races[graph.tenant, c.key]
            for c in rest
            if (graph.tenant, c.key) in self._races
        }
        own = [c for c in rest if c.digest not in shared]
        self._metrics.tuned_kernels.labels("known").inc(len(chosen))
        self._metrics.tuned_kernels.labels("shared").inc(len(shared))
        loop = asyncio.get_running_loop()
        for candidate in own:
            self._races[graph.tenant, candidate.key] = loop.create_future()
        try:
            at_once = [own[i : i + KERNELS_A_LEASE] for i in range(0, len(own), KERNELS_A_LEASE)]
            await asyncio.gather(*(self._raced(graph, some, device) for some in at_once))
            found = {c.digest: self._races[graph.tenant, c.key].result() for c in own}
        finally:
            for candidate in own:
                flight = self._races.pop((graph.tenant, candidate.key))
                if not flight.done():
                    flight.set_result(Chosen(why="its race was given up"))
        for digest, race in shared.items():
            found[digest] = await asyncio.shield(race)
        chosen.update({digest: c.binary for digest, c in found.items() if c.binary})
        return chosen

    async def _raced(self, graph: Untuned, some: Sequence[Candidate], device: str) -> None:
        """Compile and race a few kernels, keep their records, settle their flights."""
        compiled = [c for c in await asyncio.gather(*(self._compiled(graph, c) for c in some)) if c]
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
            if outcome.binary:
                self._recent.put((graph.tenant, candidate.key), outcome.binary)
                await self._keep_record(graph.shelf, candidate, outcome)
            self._metrics.tuned_kernels.labels("timed" if outcome.binary else "failed").inc()
            self._races[graph.tenant, candidate.key].set_result(outcome)

    async def _compiled(self, graph: Untuned, candidate: Candidate) -> Compiled | None:
        try:
            result = await self._attempts.run(behind(variants_task(candidate), graph.tenant))
            return compiled_of(candidate, result)
        except (TaskFailed, CacheError, FusecError) as error:
            log.warning("variants are lost: %s", error, extra={"action": "tune"})
            return None

    async def _keep_record(self, shelf: Shelf, candidate: Candidate, chosen: Chosen) -> None:
        blobs = {_RECORD_BLOB: chosen.record, KERNEL_BLOB: chosen.binary}
        try:
            await shelf.publish(candidate.key, Manifest.of("tuning", blobs), blobs)
        except TaskFailed:
            return  # counted already; it is timed again one day

    async def _keep_job(self, graph: Untuned) -> None:
        """Keep what `farm.retune` begins with: the submit, which goes once it is answered."""
        blobs = {_JOB_BLOB: pack(graph.request.to_wire())}
        key = _job_key(graph.request.fingerprint)
        try:
            await graph.shelf.publish(key, Manifest.of("tuning", blobs), blobs)
        except TaskFailed:
            return  # counted already; it is tuned now or never


def behind(task: Task, tenant: str) -> Task:
    """A tenant's task that goes behind all that somebody waits for."""
    return replace(task, share=Share(tenant), priority=Priority.BACKGROUND)


def _job_key(graph: str) -> str:
    return fingerprint({"untuned": graph}).key("tuning")
