"""A job: one graph on its way through the farm, as a frozen value with legal transitions.

    queued ─► lowering ─► compiling ─► publishing ─► done
       └─────────┴────────────┴────────────┴───────► failed
    queued ─► done                        the artifact turned out to exist
    lowering, compiling, publishing ─► queued     another gateway has taken the job over

Retries are inside a state (`farm.retry` decides on tasks): a job goes back for nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from farm.queue import Share
from fusec.remote.protocol import FarmJob, JobError, JobState, JobStatus, Priority

_NEXT: Final[Mapping[JobState, frozenset[JobState]]] = {
    JobState.QUEUED: frozenset({JobState.LOWERING, JobState.DONE, JobState.FAILED}),
    JobState.LOWERING: frozenset({JobState.COMPILING, JobState.FAILED}),
    JobState.COMPILING: frozenset({JobState.PUBLISHING, JobState.FAILED}),
    JobState.PUBLISHING: frozenset({JobState.DONE, JobState.FAILED}),
    JobState.DONE: frozenset(),
    JobState.FAILED: frozenset(),
}


class IllegalTransition(Exception):
    """A bug in the farm: a job was to go where no job may go."""


class JobId(NamedTuple):
    """What a job is known by: tenants share nothing, so one graph of two tenants is two jobs."""

    tenant: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Job:
    """One graph of a tenant at the farm. Times are seconds of the farm's clock.

    ``merged`` counts submits of others (`farm.waiters`) that joined this job instead of compiling.
    ``seq`` grows with every change that a waiter can see. ``since``: when it entered its state;
    ``started_at``: when it was taken out of the queue. ``kernels_stored``: those that nobody had to
    build; ``kernels_early``: those that were there when its plan was. ``elsewhere``: how it stands
    at another gateway, whose job it is. Once final, a job holds the request without the graph.
    """

    request: FarmJob
    submitted_at: float
    tenant: str = ""
    state: JobState = JobState.QUEUED
    since: float = 0.0
    started_at: float = 0.0
    seq: int = 1
    kernels_done: int = 0
    kernels_total: int = 0
    kernels_stored: int = 0
    kernels_early: int = 0
    merged: int = 0
    elsewhere: JobStatus | None = None
    error: JobError | None = None
    ended_at: float | None = None
    remember_s: float = 0.0

    @property
    def fingerprint(self) -> str:
        return self.request.fingerprint

    @property
    def id(self) -> JobId:
        return JobId(self.tenant, self.request.fingerprint)

    @property
    def share(self) -> Share:
        """Whose share of the farm it takes: that of the training job which asked first."""
        return Share(self.tenant, self.request.training_job)

    def to(self, state: JobState, now: float) -> Job:
        """The job in its next state; `done` and `failed` are for the last. May raise
        IllegalTransition."""
        if state.final:
            raise IllegalTransition(f"{state} is entered by done() or failed()")
        return replace(
            self._checked(state),
            state=state,
            since=now,
            started_at=now if self.state is JobState.QUEUED else self.started_at,
            seq=self.seq + 1,
        )

    def planned(self, now: float, total: int, *, early: int = 0) -> Job:
        """The job with its plan: it has `total` kernels, so many of them `early`. May raise
        IllegalTransition."""
        compiling = self.to(JobState.COMPILING, now)
        return replace(compiling, kernels_total=total, kernels_done=early, kernels_early=early)

    def kernels(self, done: int, *, stored: int = 0) -> Job:
        """The job with this many of its kernels there, of which so many were stored before."""
        return replace(
            self,
            kernels_done=min(done, self.kernels_total),
            kernels_stored=stored,
            seq=self.seq + 1,
        )

    def followed(self, status: JobStatus) -> Job:
        """The job with what its owner says of it."""
        return replace(self, elsewhere=status, seq=self.seq + 1)

    def back(self, now: float) -> Job:
        """The job as one that waits, as at first: it is not in work here. May raise
        IllegalTransition."""
        if self.state.final:
            raise IllegalTransition(f"job {self.fingerprint[:12]} is over")
        return replace(
            self,
            state=JobState.QUEUED,
            since=now,
            seq=self.seq + 1,
            kernels_done=0,
            kernels_total=0,
            kernels_stored=0,
            kernels_early=0,
            elsewhere=None,
        )

    def done(self, now: float, *, remember_s: float) -> Job:
        """The job with its artifact published."""
        return self._ended(JobState.DONE, now, None, remember_s)

    def failed(self, error: JobError, now: float, *, remember_s: float) -> Job:
        """The job given up; a submit within `remember_s` seconds gets the same answer."""
        return self._ended(JobState.FAILED, now, error, remember_s)

    def joined(self, *, another: bool, priority: Priority = Priority.BACKGROUND) -> Job:
        """A submit of the same graph, which counts as urgent as the most urgent one; one more
        merge if it came from another client."""
        request = self.request
        if priority > request.priority:
            request = replace(request, priority=priority)
        return replace(self, request=request, merged=self.merged + another)

    def status(self, position: int = 0, left_s: float | None = None) -> JobStatus:
        """What a waiter is told; `position` jobs are before it, and it takes `left_s` seconds."""
        if self.elsewhere is not None and self.state is JobState.QUEUED:
            return replace(self.elsewhere, seq=self.seq)
        return JobStatus(
            self.fingerprint,
            self.state,
            seq=self.seq,
            kernels_done=self.kernels_done,
            kernels_total=self.kernels_total,
            position=position,
            left_s=left_s,
            error=self.error,
        )

    def _ended(self, state: JobState, now: float, error: JobError | None, keep: float) -> Job:
        return replace(
            self._checked(state),
            request=replace(self.request, graph=b""),
            state=state,
            since=now,
            seq=self.seq + 1,
            error=error,
            ended_at=now,
            remember_s=keep,
        )

    def _checked(self, state: JobState) -> Job:
        if state not in _NEXT[self.state]:
            raise IllegalTransition(f"job {self.fingerprint[:12]}: {self.state} -> {state}")
        return self
