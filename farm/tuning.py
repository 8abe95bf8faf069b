"""Tuning behind the clients: an artifact is published as the cost model chose; one whose kernels a
GPU has timed takes its place later.

    offered, or in the store's index ──► waits for a GPU ──► race ──► tuned artifact
                                              ▲                 │ mode max-autotune
                                              └──── a step of the descent, and the next

The first race of all graphs comes before a step of any. What no GPU of the cluster serves waits
until one joins. Everything is of the lowest priority, so that clients who wait never wait for this.
Which graphs wait is in the store too (`farm.untuned`): a gateway that dies loses nothing but time,
and of several gateways the one that holds a graph's lease tunes it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from cache.artifacts import Found
from cache.errors import CacheError
from cache.manifest import Manifest
from farm.attempts import Attempts
from farm.descent import Descent
from farm.metrics import FarmMetrics
from farm.pool import TaskFailed
from farm.quality_tasks import Candidate, Chosen, candidates_of, candidates_task
from farm.queue import Share
from farm.races import Races
from farm.restore import CannotTune, Restoring
from farm.retry import ErrorKind
from farm.spaces import Space, Spaces
from farm.untuned import Untuned, UntunedIndex, keep_job
from farm.urgency import Urgency, behind
from farm.verifier import Verifier
from farm.workers import Stages
from fusec.artifact.fingerprint import fingerprint
from fusec.artifact.quality import Tier, quality_of, unfinished
from fusec.errors import FusecError
from fusec.options import Target
from fusec.remote.protocol import Priority

log = logging.getLogger("fusec.farm")

MOST_WAITING: Final = 8192
MOST_BYTES: Final = 512 << 20
"""Of plans and binaries of graphs that wait; beyond it the oldest are planned anew when their turn
comes."""
RECHECK_S: Final = 5.0
RESCAN_S: Final = 900.0
"""Between two reads of a store's index, after the one at the start."""
TRIES: Final = 3
"""Of a graph whose tuning fails by no fault of its own."""
_PASSING: Final = frozenset((ErrorKind.WORKER_LOST, ErrorKind.STORE_UNREACHABLE))


@dataclass(slots=True)
class _Turn:
    """A graph that waits for its turn, or has it. graph: None where it is to be had from the store;
    rounds: how many races its kernels have had; again: it is tuned already, and timed anew."""

    tenant: str
    fingerprint: str
    target: Target
    graph: Untuned | None = None
    again: bool = False
    rounds: int = 0
    descent: Descent | None = None

    @property
    def name(self) -> tuple[str, str]:
        return self.tenant, self.fingerprint

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        held = self.graph if self.descent is None else self.descent.graph
        return 0 if held is None else held.size


class Tuning:
    """The graphs that wait for a GPU, and those that have one. Build it inside the event loop that
    it lives in."""

    def __init__(
        self,
        spaces: Spaces,
        attempts: Attempts,
        stages: Stages,
        verifier: Verifier,
        metrics: FarmMetrics,
    ) -> None:
        self._spaces = spaces
        self._attempts = attempts
        self._stages = stages
        self._verifier = verifier
        self._metrics = metrics
        self._races = Races(attempts, metrics)
        self._restoring = Restoring(attempts, stages)
        self._waiting: dict[tuple[str, str], _Turn] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._busy: Counter[str] = Counter()  # graphs in work, by class of GPU
        self._failures: Counter[tuple[str, str]] = Counter()
        self._indexes: dict[str, UntunedIndex] = {}
        self._listed: dict[str, set[str]] = {}  # what an index held when it was read last
        self._read_at: dict[str, float] = {}  # when it is read next
        self._closed = False
        self._looking = asyncio.create_task(self._look())

    async def offer(self, graph: Untuned, manifest: Manifest) -> None:
        """Take a graph that was published with this manifest, if tuning can make it better."""
        if quality_of(manifest.meta).tier is not Tier.UNTUNED or self._closed:
            return
        request = graph.request
        try:
            await keep_job(graph.shelf, request)
            if not await self._index(graph.tenant).add(request.fingerprint, request.target):
                text = "%s is tuned by this gateway or never: the index of untuned graphs is full"
                log.warning(text, request.fingerprint[:12], extra={"action": "tune"})
        except TaskFailed:
            pass  # counted already; it is tuned now or never
        self._add(_Turn(graph.tenant, request.fingerprint, request.target, graph))
        self._begin()

    def add(self, tenant: str, graph: str, target: Target, *, again: bool = False) -> None:
        """Have a graph of the store tuned when its turn comes. again: though it is."""
        self._add(_Turn(tenant, graph, target, again=again))
        self._begin()

    def holds(self, name: tuple[str, str]) -> bool:
        """Whether a graph, by tenant and fingerprint, waits or is in work here."""
        return name in self._waiting or name in self._tasks

    async def close(self) -> None:
        """Stop. What is half tuned stays untuned."""
        self._closed = True
        tasks = [*self._tasks.values(), self._looking]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- whose turn it is -----------------------------------------------------------------------

    def _add(self, turn: _Turn) -> None:
        if self._closed or self.holds(turn.name) or len(self._waiting) >= MOST_WAITING:
            return
        self._wait(turn)

    def _wait(self, turn: _Turn) -> None:
        self._waiting[turn.name] = turn
        if not turn.size:
            return  # as all that an index lists
        held = sum(each.size for each in self._waiting.values())
        for each in self._waiting.values():
            if held <= MOST_BYTES:
                break
            held -= each.size
            each.graph = each.descent = None

    def _begin(self) -> None:
        for turn in sorted(self._waiting.values(), key=lambda turn: turn.rounds):
            if turn.name in self._tasks or self._closed:
                continue
            device = self._verifier.device_for(turn.target)
            # One more than there are GPUs: it is prepared while they time the others.
            if device is None or self._busy[device] > self._attempts.pool.workers_of(device):
                continue
            del self._waiting[turn.name]
            self._busy[device] += 1
            task = asyncio.create_task(self._run(turn, device), name=f"tune-{turn.name[1][:12]}")
            self._tasks[turn.name] = task
            task.add_done_callback(partial(self._over, turn.name, device))
        self._metrics.tuning_waiting.set(len(self._waiting))

    async def _look(self) -> None:
        """See what the stores have, and whether a GPU has joined."""
        while True:
            for tenant, _ in self._spaces.items():
                await self._read(tenant)
            self._begin()
            await asyncio.sleep(RECHECK_S)

    async def _read(self, tenant: str) -> None:
        """Take in what waits by a store's index: at first all of it, later what was there the last
        time too. What came since is another gateway's, which works on it."""
        now = asyncio.get_running_loop().time()
        if now < self._read_at.get(tenant, now):
            return
        self._read_at[tenant] = now + RESCAN_S * random.uniform(0.75, 1.25)
        try:
            rows = await self._index(tenant).read()
        except TaskFailed:
            return  # counted already
        before = self._listed.get(tenant, set(rows))
        self._listed[tenant] = set(rows)
        for graph in rows.keys() & before:
            self._add(_Turn(tenant, graph, rows[graph]))  # `_look` begins, once for all

    def _over(self, name: tuple[str, str], device: str, task: asyncio.Task[None]) -> None:
        del self._tasks[name]
        self._busy[device] -= 1
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a tuning was lost", exc_info=error, extra={"action": "tune"})
        self._begin()

    def _index(self, tenant: str) -> UntunedIndex:
        if tenant not in self._indexes:
            self._indexes[tenant] = UntunedIndex(self._spaces.of(tenant).shelf)
        return self._indexes[tenant]

    # -- one graph ------------------------------------------------------------------------------

    async def _run(self, turn: _Turn, device: str) -> None:
        """One round of a graph; then it waits for the next, or is done with."""
        space = self._spaces.of(turn.tenant)
        try:
            holding = await space.ownership.acquire(fingerprint({"tuning": turn.fingerprint}).hex)
            if holding is None:
                return  # another gateway tunes it
            async with holding:
                more = await self._round(turn, space, device)
            if more:
                turn.rounds += 1
                self._wait(turn)
                return
            await self._done(turn)
        except (TaskFailed, CacheError, FusecError, CannotTune) as error:
            await self._failed(turn, error)

    async def _failed(self, turn: _Turn, error: Exception) -> None:
        kind = error.kind if isinstance(error, TaskFailed) else None
        wrong = kind is ErrorKind.VERIFICATION
        self._metrics.tuned.labels("wrong" if wrong else "failed").inc()
        log.warning("tuning %s: %s", turn.fingerprint[:12], error, extra={"action": "tune"})
        self._failures[turn.name] += 1
        if kind not in _PASSING or self._failures[turn.name] >= TRIES:
            await self._done(turn)  # else the index has it, for a later read

    async def _done(self, turn: _Turn) -> None:
        """A graph is tuned, or given up."""
        self._failures.pop(turn.name, None)
        if turn.again:
            return  # it was in no index
        try:
            await self._index(turn.tenant).remove(turn.fingerprint)
        except TaskFailed:
            return  # counted already; whoever reads the index finds what stands

    async def _round(self, turn: _Turn, space: Space, device: str) -> bool:
        """Whether another follows. Raises TaskFailed, CannotTune, CacheError, FusecError."""
        standing = await space.shelf.standing(f"graph/{turn.fingerprint}")
        if standing is None or (standing.manifest.is_final and not turn.again):
            self._metrics.tuned.labels("kept").inc()  # removed, or tuned by another gateway
            return False
        if turn.descent is not None:
            if await turn.descent.step(device):
                return True
            await self._replace(turn.descent.graph, turn.descent.best, device)
            return False
        graph = turn.graph or await self._restoring.untuned(
            space.shelf, turn.tenant, turn.fingerprint
        )
        descends = graph.request.options.mode == "max-autotune"
        label = f"candidates {turn.fingerprint[:12]}"
        task = behind(candidates_task(graph.plan, device, descends, label), turn.tenant)
        candidates = candidates_of(await self._attempts.run(task))
        if turn.again:
            await self._anew(graph, candidates, device, space)
            return False
        best = await self._races.chosen(graph, candidates, device)
        if not any(chosen.binary for chosen in best.values()):
            why = next((chosen.why for chosen in best.values()), "it has nothing to tune")
            raise TaskFailed(ErrorKind.WORKER_LOST, f"no kernel of it was timed: {why}")
        # Where a tuned one stands, a descent goes on that was begun before.
        if quality_of(standing.manifest.meta).tier is Tier.UNTUNED:
            descends = await self._replace(graph, best, device, more=descends) and descends
        if descends:
            turn.descent = Descent(graph, candidates, best, self._races, self._attempts)
        return descends

    async def _anew(
        self, graph: Untuned, candidates: list[Candidate], device: str, space: Space
    ) -> None:
        """Time the kernels of a tuned graph anew, against what was chosen for it; only what is
        faster by more than a tie in the same race takes its place, and so does the artifact."""
        keys = [key for c in candidates for key in (c.descended, c.key)]
        known = await self._races.known(graph, keys)
        at = {c.digest: c.descended if c.descended in known else c.key for c in candidates}
        stand = {digest: known[key] for digest, key in at.items() if key in known}
        trials = [replace(c, standing=stand.get(c.digest, Chosen()).binary) for c in candidates]
        raced = await self._races.race(graph, trials, device, keep=False)
        better = {digest: chosen for digest, chosen in raced.items() if chosen.record}
        if not better or {*stand, *better} != at.keys():
            self._metrics.tuned.labels("kept").inc()
            return
        if await self._replace(graph, {**stand, **better}, device, space=space):
            for digest, chosen in better.items():
                await self._races.keep_over(graph.shelf, space.claims, at[digest], chosen)

    async def _replace(
        self,
        graph: Untuned,
        best: Mapping[str, Chosen],
        device: str,
        *,
        more: bool = False,
        space: Space | None = None,
    ) -> bool:
        """Put the artifact with the winners in the place of what stands; False where somebody else
        did. more: a better one follows. space: whose claim lets it replace one as good."""
        request, key = graph.request, f"graph/{graph.request.fingerprint}"
        winners = {digest: chosen.binary for digest, chosen in best.items() if chosen.binary}
        manifest, blobs = await asyncio.to_thread(
            self._stages.assemble, graph.plan, {**graph.binaries, **winners}, device, len(winners)
        )
        made = Found(unfinished(manifest) if more else manifest, blobs)
        urgency = Urgency(Priority.BACKGROUND)
        found = await self._verifier.verified(
            request.graph, request.target, made, Share(graph.tenant), urgency
        )
        standing = await graph.shelf.standing(key)
        done = False
        if standing is not None and space is not None:
            done = await self._claimed(graph, found, standing, space)
        elif standing is not None and standing.manifest.tier < found.manifest.tier:
            done = await graph.shelf.replace(key, found.manifest, found.blobs, standing.version)
        self._metrics.tuned.labels("replaced" if done else "kept").inc()
        return done

    async def _claimed(self, graph: Untuned, found: Found, standing: Found, space: Space) -> bool:
        holding = await space.claims.acquire(graph.request.fingerprint)
        if holding is None:
            return False
        async with holding:
            key, claim = f"graph/{graph.request.fingerprint}", await holding.claim()
            return await graph.shelf.replace(
                key, found.manifest, found.blobs, standing.version, claim
            )
