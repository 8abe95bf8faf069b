"""The book of jobs: single flight by fingerprint, the queue, and what is remembered of ended jobs.

Plain data that is told the time: no thread, no event loop. The gateway and a simulation share it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from farm.job import Job
from farm.queue import JobQueue
from farm.retry import RULES, ErrorKind
from fusec.remote.protocol import WAITING, FarmJob, JobError, JobState


class Admission(StrEnum):
    """What became of a submit; also the label of the metric."""

    QUEUED = "queued"  # a new job
    MERGED = "merged"  # the same graph is in flight
    KNOWN = "known"  # it ended a moment ago: the same answer again


@dataclass(frozen=True, slots=True)
class Limits:
    """``queued`` jobs wait at most. ``keep_s``: how long a finished job answers polls.
    ``abandon_s``: a waiting job that nobody asked for this long is dropped."""

    queued: int = 1024
    keep_s: float = 60.0
    abandon_s: float = 120.0


class JobBook:
    """All jobs by fingerprint. `now` is seconds of any one monotonic clock."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._queue = JobQueue(limits.queued)
        self._jobs: dict[str, Job] = {}

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def running(self) -> int:
        """Jobs that are neither waiting nor over."""
        states = (job.state for job in self._jobs.values())
        return sum(1 for state in states if not state.final and state is not JobState.QUEUED)

    def get(self, fingerprint: str) -> Job | None:
        return self._jobs.get(fingerprint)

    def position(self, fingerprint: str) -> int:
        """How many jobs run before this one."""
        return self._queue.position(fingerprint)

    def submit(self, request: FarmJob, now: float) -> tuple[Job, Admission]:
        """Take a graph in, or join the job that has it already. Raises QueueFull."""
        self.forget(now)
        job = self._jobs.get(request.fingerprint)
        if job is not None and job.ended_at is not None:
            if now - job.ended_at < job.remember_s:
                return job, Admission.KNOWN
            job = None  # what failed for a passing reason starts anew
        if job is not None:
            if request.fingerprint in self._queue:  # else it has been taken out to run
                self._queue.push(request.fingerprint, request.priority)
            return self.put(job.joined(request.waiter, now)), Admission.MERGED
        self._queue.push(request.fingerprint, request.priority)
        return self.put(Job(request, now).heard(request.waiter, now)), Admission.QUEUED

    def next(self, now: float) -> Job | None:
        """Take the next job out of the queue; those that nobody waits for any more fail."""
        while (name := self._queue.pop()) is not None:
            job = self._jobs[name]
            prewarm = job.request.priority < WAITING
            if prewarm or now - job.last_heard <= self._limits.abandon_s:
                return job
            self.fail(job, ErrorKind.ABANDONED, "nobody asked for it any more", now)
        return None

    def put(self, job: Job) -> Job:
        """Write a job's new value."""
        self._jobs[job.fingerprint] = job
        return job

    def heard(self, fingerprint: str, waiter: str, now: float) -> None:
        """A waiter polled."""
        job = self._jobs.get(fingerprint)
        if job is not None and not job.state.final:
            self.put(job.heard(waiter, now))

    def leave(self, fingerprint: str, waiter: str, now: float) -> bool:
        """A waiter cancels; True if it was the last one, and the job has failed by that."""
        job = self._jobs.get(fingerprint)
        if job is None or job.state.final:
            return False
        job = self.put(job.left(waiter))
        if job.waiters:
            return False
        self._queue.remove(fingerprint)
        self.fail(job, ErrorKind.CANCELLED, "its last waiter went away", now)
        return True

    def done(self, job: Job, now: float) -> Job:
        """The artifact is published."""
        return self.put(job.done(now, remember_s=self._limits.keep_s))

    def fail(self, job: Job, kind: ErrorKind, message: str, now: float) -> Job:
        """Give a job up. How long it is remembered follows from the kind."""
        error = JobError(kind.value, message)
        return self.put(job.failed(error, now, remember_s=RULES[kind].remember_s))

    def drop(self, fingerprint: str) -> None:
        """Forget an ended job, so that a submit of it starts anew."""
        job = self._jobs.get(fingerprint)
        if job is not None and job.state.final:
            del self._jobs[fingerprint]

    def forget(self, now: float) -> None:
        """Forget ended jobs whose time is over, and the oldest ones beyond the queue's size."""
        ended = [job for job in self._jobs.values() if job.ended_at is not None]
        excess = len(ended) - max(self._limits.queued, 64)
        for number, job in enumerate(ended):
            over = job.ended_at is not None and now - job.ended_at > self._kept(job)
            if over or number < excess:
                del self._jobs[job.fingerprint]

    def _kept(self, job: Job) -> float:
        # A failure is answered to those who poll, even where a new submit may start anew.
        return max(job.remember_s, min(self._limits.keep_s, 5.0))
