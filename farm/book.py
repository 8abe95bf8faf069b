"""The book of jobs: single flight by graph, the queue, who may run, and what is remembered.

Plain data that is told the time: no thread, no event loop. The gateway and a simulation share it.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from farm.ended import Ended
from farm.job import Job, JobId
from farm.queue import Backlog, FairQueue
from farm.quota import Full, Limits, QueueFull
from farm.retry import RULES, ErrorKind
from farm.waiters import Waiters
from fusec.remote.protocol import FarmJob, JobError, Priority


class Admission(StrEnum):
    """What became of a submit; also the label of the metric."""

    QUEUED = "queued"  # a new job
    MERGED = "merged"  # the same graph is in flight
    KNOWN = "known"  # it ended a moment ago: the same answer again


class JobBook:
    """The jobs of all tenants. `now` is seconds of any one monotonic clock."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._queue: FairQueue[JobId] = FairQueue(weight=lambda tenant: limits.of(tenant).weight)
        self._jobs: dict[JobId, Job] = {}
        self._ended = Ended(max(limits.queued, 64))
        self._waiters = Waiters()
        self._in_work: set[JobId] = set()
        self._working: Counter[str] = Counter()  # jobs in work, by tenant
        self._held: Counter[str] = Counter()  # bytes of graphs that are not over, by tenant

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def running(self) -> int:
        """Jobs that are neither waiting nor over."""
        return len(self._in_work)

    def get(self, job: JobId) -> Job | None:
        return self._jobs.get(job)

    def position(self, job: JobId) -> int:
        """How many jobs run before this one, if no others come."""
        return self._queue.position(job)

    def waits(self, job: JobId) -> bool:
        """Whether a job is in the queue."""
        return job in self._queue

    def in_work(self) -> list[Job]:
        """The jobs in work."""
        return [self._jobs[name] for name in self._in_work]

    def ended(self) -> list[Job]:
        """The jobs that are over and still remembered, in the order of their ends."""
        return [self._jobs[name] for name in self._ended]

    def in_flight(self, tenant: str, prefix: str) -> list[JobId]:
        """The jobs of a tenant that are not over, by the first digits of their fingerprints."""
        return [
            name
            for name, job in self._jobs.items()
            if not job.state.final and name.tenant == tenant and name.fingerprint.startswith(prefix)
        ]

    def backlogs(self) -> list[Backlog]:
        """What waits, by priority and tenant."""
        return self._queue.backlogs()

    def submit(self, request: FarmJob, now: float, tenant: str = "") -> tuple[Job, Admission]:
        """Take a graph in, or join the job that has it already. Raises QueueFull."""
        name = JobId(tenant, request.fingerprint)
        known = self.join(name, request.waiter, request.priority, now)
        if known is not None:
            return known
        self.check_room(tenant, len(request.graph))
        self._ended.remove(name)
        self._held[tenant] += len(request.graph)
        job = self.put(Job(request, now, tenant, since=now))
        self._waiters.heard(name, request.waiter, now)
        self._queue.push(name, job.share, request.priority, now)
        return job, Admission.QUEUED

    def join(
        self, name: JobId, waiter: str, priority: Priority, now: float
    ) -> tuple[Job, Admission] | None:
        """Wait for the job of a graph that is here; one that ended a moment ago for a reason that
        still holds is here. None where there is none."""
        self.forget(now)
        job = self._jobs.get(name)
        if job is None:
            return None
        if job.ended_at is not None:
            # What failed for a passing reason starts anew.
            return (job, Admission.KNOWN) if now - job.ended_at < job.remember_s else None
        if name in self._queue:  # else it has been taken out to run
            self._queue.push(name, job.share, priority, now)
        another = self._waiters.heard(name, waiter, now)
        return self.put(job.joined(another=another, priority=priority)), Admission.MERGED

    def found(self, request: FarmJob, now: float, tenant: str = "") -> Job:
        """The artifact of a graph that is not in flight stands in the store: remembered as if its
        job had just been done."""
        made = Job(request, now, tenant, since=now).done(now, remember_s=self._limits.keep_s)
        self._remember(made)
        return self.put(made)

    def next(self, now: float) -> Job | None:
        """Take out the next job that its tenant may run; those that nobody waits for any more
        fail. It counts as in work until `done` or `fail`."""
        while (taken := self._queue.pop(now, self._may_run)) is not None:
            job = self._jobs[taken.item]
            asked = job.request.priority < Priority.WAITING
            heard = self._waiters.last_heard(job.id)
            since = job.submitted_at if heard is None else heard
            if asked or now - since <= self._limits.abandon_s:
                self._enter_work(job)
                return job
            self.fail(job, ErrorKind.ABANDONED, "nobody asked for it any more", now)
        return None

    def aside(self, job: Job, now: float) -> Job:
        """A job in work is another gateway's: it waits outside the queue."""
        self._leave_work(job)
        return self.put(job.back(now))

    def resume(self, job: Job, now: float) -> Job:
        """A job that was put aside is in work again."""
        self._enter_work(job)
        return self.put(job.back(now))

    def again(self, job: Job, now: float) -> Job:
        """A job that was put aside waits in the queue again."""
        self._queue.push(job.id, job.share, job.request.priority, now)
        return self.put(job.back(now))

    def put(self, job: Job) -> Job:
        """Write a job's new value."""
        self._jobs[job.id] = job
        return job

    def heard(self, name: JobId, waiter: str, now: float) -> None:
        """A waiter polled."""
        job = self._jobs.get(name)
        if job is not None and not job.state.final:
            self._waiters.heard(name, waiter, now)

    def turn(self, name: JobId) -> int:
        """After how many answers a waiter's turn comes, where each of all jobs has as many."""
        return self._waiters.count(name) * self._waiters.jobs()

    def waiters(self, name: JobId) -> int:
        """How many wait for a job."""
        return self._waiters.count(name)

    def leave(self, name: JobId, waiter: str, now: float) -> bool:
        """A waiter cancels; True if it was the last one, and the job has failed by that."""
        job = self._jobs.get(name)
        if job is None or job.state.final:
            return False
        if not self._waiters.left(name, waiter):
            return False
        self.fail(job, ErrorKind.CANCELLED, "its last waiter went away", now)
        return True

    def done(self, job: Job, now: float) -> Job:
        """The artifact is published."""
        return self._over(job, job.done(now, remember_s=self._limits.keep_s))

    def fail(self, job: Job, kind: ErrorKind, message: str, now: float) -> Job:
        """Give a job up. How long it is remembered follows from the kind."""
        error = JobError(kind.value, message)
        return self._over(job, job.failed(error, now, remember_s=RULES[kind].remember_s))

    def drop(self, name: JobId) -> None:
        """Forget an ended job, so that a submit of it starts anew."""
        job = self._jobs.get(name)
        if job is not None and job.state.final:
            del self._jobs[name]
            self._ended.remove(name)

    def forget(self, now: float) -> None:
        """Forget ended jobs whose time is over, and the oldest ones beyond the queue's size."""
        for name in self._ended.due(now):
            self.drop(name)

    def check_room(self, tenant: str, size: int = 0) -> None:
        """Whether a new job with a graph of so many bytes may wait. Raises QueueFull."""
        limits, quota = self._limits, self._limits.of(tenant)
        for limit, most, has in (
            (Full.TENANT, quota.queued, self._queue.length_of(tenant) + 1),
            (Full.FARM, limits.queued, len(self._queue) + 1),
            (Full.TENANT_BYTES, limits.held_bytes // 2, self._held[tenant] + size),
            (Full.FARM_BYTES, limits.held_bytes, self._held.total() + size),
        ):
            if has > most:
                raise QueueFull(limit, tenant, most)

    def _may_run(self, tenant: str, priority: Priority) -> bool:
        if self._working[tenant] >= self._limits.of(tenant).running:
            return False
        # Whoever has nothing in work need not wait for others' long jobs to end: all share the
        # workers anyway, and this is one job more a tenant.
        newcomer = priority is Priority.WAITING and not self._working[tenant]
        return newcomer or len(self._in_work) < self._limits.running

    def _over(self, job: Job, ended: Job) -> Job:
        self._queue.remove(job.id)
        self._leave_work(job)
        self._held[job.tenant] -= len(job.request.graph)
        self._waiters.forget(job.id)
        self._remember(ended)
        return self.put(ended)

    def _enter_work(self, job: Job) -> None:
        self._in_work.add(job.id)
        self._working[job.tenant] += 1

    def _leave_work(self, job: Job) -> None:
        if job.id in self._in_work:
            self._in_work.remove(job.id)
            self._working[job.tenant] -= 1

    def _remember(self, ended: Job) -> None:
        # A failure is answered to those who poll, even where a new submit may start anew.
        keep_s = max(ended.remember_s, min(self._limits.keep_s, 5.0))
        self._ended.add(ended.id, ended.since, keep_s)
