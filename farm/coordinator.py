"""Takes jobs through their stages: plan, look kernels up, build the missing, assemble, publish.

One for all namespaces. Lives in one event loop; the only writer of the book. Nothing here is the
sole copy of anything: a gateway that dies is replaced by the store and by clients that submit
again. A job that is another gateway's (`farm.ownership`) is followed there, outside of the queue.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from cache.artifacts import Found
from cache.errors import CacheError, Fenced
from farm.arrivals import Arrivals
from farm.attempts import Attempts
from farm.binaries import Binaries
from farm.book import Admission, JobBook
from farm.drain import Drain
from farm.fair_pool import FairPool
from farm.following import End, Following
from farm.job import Job, JobId
from farm.metrics import FarmMetrics
from farm.ownership import Holding
from farm.peers import Peers
from farm.pool import TaskFailed
from farm.quota import Limits
from farm.restore import Restoring
from farm.retry import ErrorKind
from farm.retune import Retuning
from farm.spaces import Space, Spaces
from farm.status import Reporter
from farm.tracing import FarmTracing
from farm.tuning import Tuning
from farm.untuned import Untuned
from farm.updates import Updates
from farm.urgency import Urgency
from farm.verifier import Verifier
from farm.workers import Planned, Stages, kind_of, plan_task
from fusec.artifact.quality import quality_of
from fusec.errors import FusecError
from fusec.options import Target
from fusec.remote.protocol import FarmJob, JobError, JobState, JobStatus, Priority

log = logging.getLogger("fusec.farm")


class Coordinator:
    """The farm without its HTTP. Build and use it inside a running event loop."""

    def __init__(
        self,
        pool: FairPool,
        spaces: Spaces,
        attempts: Attempts,
        stages: Stages,
        metrics: FarmMetrics,
        *,
        limits: Limits,
        verifier: Verifier,
        drain: Drain,
        tuning: Tuning | None = None,
        peers: Peers | None = None,
        tracing: FarmTracing | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pool = pool
        self.spaces = spaces
        self.stages = stages
        self.metrics = metrics
        self._attempts = attempts
        self._verifier = verifier
        self._tuning = tuning
        self._book = JobBook(limits)
        self._running_limit = limits.running
        self.tracing = tracing or FarmTracing()
        self._clock = clock
        self._updates = Updates(self._book, metrics, self.tracing, clock)
        self._tasks: dict[JobId, asyncio.Task[None]] = {}
        self._urgencies: dict[JobId, Urgency] = {}  # of jobs in work
        self.changes = self._updates.changes
        self._following = Following(
            peers, metrics, clock, on_news=self._updates.followed, on_end=self._on_end
        )
        self._closing = False
        self._drain = drain
        self.arrivals = Arrivals(clock)
        self.retuning = Retuning(spaces, Restoring(attempts, stages), verifier, tuning)
        self.reporter = Reporter(
            self._book,
            pool,
            self._updates.estimates,
            self._updates.history,
            metrics,
            slots=limits.running,
            clock=clock,
        )

    async def open(self) -> None:
        """Begin work, unless the farm is being drained."""
        await self._drain.open(self._dispatch)

    # -- for the gateway ------------------------------------------------------------------------

    def now(self) -> float:
        """Seconds of the farm's clock."""
        return self._clock()

    def find(self, name: JobId) -> Job | None:
        """A job in flight or just ended."""
        return self._book.get(name)

    def status(self, job: Job) -> JobStatus:
        """What a waiter is told of a job now."""
        before = self._book.position(job.id)
        left_s = self._updates.estimates.left_s(job, before, self._running_limit, self._clock())
        return job.status(before, left_s)

    def drop(self, name: JobId) -> None:
        """Forget an ended job whose artifact has gone from the store."""
        self._book.drop(name)

    def submit(self, tenant: str, request: FarmJob) -> Job:
        """Take a graph in or join its job. Raises QueueFull, UnknownNamespace."""
        self.spaces.of(tenant)
        job, admission = self._book.submit(request, self._clock(), tenant)
        if admission is Admission.QUEUED:
            self.tracing.submitted(job.id)
        self.arrivals.came(job.id)
        self._admitted(job, admission, request.priority)
        self._dispatch()
        return self._book.get(job.id) or job

    def join(self, name: JobId, waiter: str, priority: Priority) -> Job | None:
        """Join the job of a graph that somebody else has sent; None where nobody has. Raises
        QueueFull where there is no room for it either."""
        known = self._book.join(name, waiter, priority, self._clock())
        if known is None:
            self._book.check_room(name.tenant)
            return None
        self._admitted(*known, priority)
        return known[0]

    def found(self, tenant: str, request: FarmJob) -> None:
        """The artifact of a graph stands in the store: nobody who waits for the graph to be sent
        need send it."""
        name = JobId(tenant, request.fingerprint)
        if not self._in_flight(name):
            self._book.found(request, self._clock(), tenant)
        self.arrivals.came(name)

    async def elsewhere(
        self, name: JobId, waiter: str, after: int, wait_s: float
    ) -> JobStatus | None:
        """What `changes.watch` would give for a job that is not here but another gateway's."""
        return await self._following.look(name, self.spaces.of(name.tenant), waiter, after, wait_s)

    def leave(self, name: JobId, waiter: str) -> None:
        """A waiter goes; the last one takes the job with it."""
        if self._book.leave(name, waiter, self._clock()):
            self._stop(name)

    def retry_after_s(self) -> float:
        """When a client that met a full queue may ask again: about when a slot comes free."""
        slot_s = self._updates.estimates.slot_s(self._running_limit)
        return min(30.0, max(1.0, 1.0 if slot_s is None else slot_s))

    # -- for operators --------------------------------------------------------------------------

    @property
    def draining(self) -> bool:
        """Whether nothing new is begun; what is in work goes on to its end."""
        return self._drain.on

    def refuses(self, name: JobId) -> bool:
        """Whether a job is not begun because of that, and is not followed at another gateway."""
        return self.draining and (self._book.get(name) is None or self._book.waits(name))

    async def drain(self, *, on: bool) -> None:
        """Have all gateways of the farm begin nothing new from now on, or go on. Raises TaskFailed
        while the store takes no word."""
        await self._drain.tell(on=on)

    def cancel(self, name: JobId) -> None:
        """Give up a job that is not over, whoever waits for it."""
        job = self._updates.current(name)
        self._book.fail(job, ErrorKind.CANCELLED, "an operator has cancelled it", self._clock())
        self._stop(name)

    def in_flight(self, tenant: str, prefix: str) -> list[JobId]:
        """The jobs of a tenant that are not over, by the first digits of their fingerprints."""
        return self._book.in_flight(tenant, prefix)

    async def close(self) -> None:
        """Stop everything. Clients that poll will submit again elsewhere."""
        self._closing = True
        await self._drain.close()
        await self._following.close()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._tuning is not None:
            await self._tuning.close()
        for space in self.spaces:
            await space.builds.close()
            await space.claims.close()
            space.shelf.close()
        self.tracing.close()

    # -- running --------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        if self._closing or self.draining:
            return
        while (job := self._book.next(self._clock())) is not None:
            waited = self._clock() - job.submitted_at
            self._observe("queue", job.request.target, waited)
            self._start(job)

    def _stop(self, name: JobId) -> None:
        """A job was given up."""
        # Out of the list at once: the same graph may be submitted again before it unwinds.
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
        self._following.stop(name)
        self._updates.ended(name)

    def _start(self, job: Job) -> None:
        task = asyncio.create_task(self._run(job), name=f"job-{job.fingerprint[:12]}")
        self._tasks[job.id] = task
        task.add_done_callback(partial(self._over, job.id))

    async def _run(self, job: Job) -> None:
        urgency = self._urgencies[job.id] = Urgency(self._updates.current(job.id).request.priority)
        try:
            with self.tracing.job(job.id):
                await self._own(job, urgency)
        except Fenced as error:
            self.metrics.fenced.inc()
            log.warning("%s", error, extra={"action": "fenced"})
            self._follow(job.id)
        except TaskFailed as error:
            self._updates.fail(job.id, error.kind, error.message)
        except (FusecError, CacheError) as error:
            self._updates.fail(job.id, kind_of(error), str(error))
        finally:
            if self._urgencies.get(job.id) is urgency:  # else the graph is in work again
                del self._urgencies[job.id]

    async def _own(self, job: Job, urgency: Urgency) -> None:
        """Do a job if it is this gateway's, else follow it. Raises Fenced when it is taken over."""
        space = self.spaces.of(job.tenant)
        holding = await space.ownership.acquire(job.fingerprint)
        if holding is None:
            self._follow(job.id)
            return
        async with holding:
            if holding.contested and await space.shelf.has(f"graph/{job.fingerprint}"):
                self._updates.done(job.id)
            else:
                await self._compile(job, space, holding, urgency)

    async def _compile(self, job: Job, space: Space, holding: Holding, urgency: Urgency) -> None:
        request = job.request
        self._updates.move(job.id, JobState.LOWERING)
        timed = partial(self._timed, target=request.target)
        kernels = Binaries(space, request.target, job.share, urgency, self.metrics, timed)
        async with kernels:
            async with timed("plan"):
                task = replace(plan_task(request), share=job.share)
                result = await self._attempts.run(task, urgency, kernels.heard)
                planned = Planned.decode(result)
            self.tracing.laps(planned.laps)
            for lap in planned.laps:
                self._observe(lap.stage, request.target, lap.seconds)
            self._updates.planned(job.id, len(planned.keys), kernels)
            async with timed("build"):
                told = partial(self._updates.progress, job.id, kernels)
                binaries = await kernels.all(planned.keys, self._clock, told)
            self._updates.progress(job.id, kernels)
        self._updates.move(job.id, JobState.PUBLISHING)
        async with timed("assemble"):
            manifest, blobs = await asyncio.to_thread(self.stages.assemble, planned.plan, binaries)
        async with timed("verify"):
            found = await self._verifier.verified(
                request.graph,
                request.target,
                Found(manifest, blobs),
                job.share,
                urgency,
            )
        async with timed("publish"):
            claim = await holding.claim()
            key = f"graph/{job.fingerprint}"
            await space.shelf.publish(key, found.manifest, found.blobs, claim)
        self.metrics.published.labels(quality_of(found.manifest.meta).tier).inc()
        current = self._updates.published(job.id)
        seconds = self._clock() - current.submitted_at
        log.info(
            "job %s done in %.2f s: %d kernels, %d more waited",
            job.fingerprint[:12],
            seconds,
            current.kernels_total,
            current.merged,
            extra={"action": "done"},
        )
        self._observe("total", request.target, seconds)
        self.metrics.seconds_saved.inc(seconds * current.merged)
        if self._tuning is not None:
            graph = Untuned(request, planned.plan, binaries, space.shelf, job.tenant)
            await self._tuning.offer(graph, found.manifest)

    # -- jobs of other gateways -----------------------------------------------------------------

    def _follow(self, name: JobId) -> None:
        """A job is another gateway's: its slot here is free for the next one."""
        self._tasks.pop(name, None)
        job = self._updates.aside(name)
        self._following.start(job, self.spaces.of(job.tenant))

    def _on_end(self, name: JobId, end: End) -> None:
        if isinstance(end, JobError):
            self._updates.fail(name, ErrorKind.named(end.kind), end.message)
        elif end is JobState.DONE:
            self._updates.done(name)
        elif self.draining:
            self._book.again(self._updates.current(name), self._clock())
        else:
            # At once, whatever is in work: it has waited for its turn, and then for its owner.
            self._start(self._book.resume(self._updates.current(name), self._clock()))

    def _over(self, name: JobId, task: asyncio.Task[None]) -> None:
        """A job's task has ended, in whatever way: the next one may run."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a job was lost", exc_info=error, extra={"action": "lost"})
        if self._tasks.get(name) is task:
            del self._tasks[name]
            self._updates.fail(
                name,
                ErrorKind.CANCELLED if task.cancelled() else ErrorKind.INTERNAL,
                f"{type(error).__name__}: {error}" if error else "the job was stopped",
            )
        self._dispatch()

    def _in_flight(self, name: JobId) -> bool:
        job = self._book.get(name)
        return job is not None and not job.state.final

    def _admitted(self, job: Job, admission: Admission, priority: Priority) -> None:
        if admission is Admission.MERGED:
            self.metrics.merges.inc()
            if job.id in self._urgencies:
                self._urgencies[job.id].rise(priority)
        self.metrics.submits.labels(admission.value).inc()
        log.info("submit %s: %s", job.fingerprint[:12], admission, extra={"action": "submit"})

    @asynccontextmanager
    async def _timed(self, stage: str, target: Target) -> AsyncIterator[None]:
        started = self._clock()
        try:
            with self.tracing.gateway.span(stage):
                yield
        finally:
            self._observe(stage, target, self._clock() - started)

    def _observe(self, stage: str, target: Target, seconds: float) -> None:
        self.metrics.stage_seconds.labels(stage, target.device).observe(seconds)
