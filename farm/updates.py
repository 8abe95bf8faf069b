"""Changes of jobs: written into the book, told to those who wait, learnt from, and counted."""

from __future__ import annotations

import logging
from collections.abc import Callable

from farm.binaries import Binaries
from farm.book import JobBook
from farm.changes import Changes
from farm.estimate import Estimates
from farm.history import History
from farm.job import Job, JobId
from farm.metrics import FarmMetrics
from farm.retry import ErrorKind
from farm.tracing import FarmTracing
from fusec.remote.protocol import JobState, JobStatus

log = logging.getLogger("fusec.farm")


class Updates:
    """Of the jobs of one book, in its event loop. ``changes``: for those who wait; ``estimates``:
    what stages take; ``history``: of what has ended."""

    def __init__(
        self, book: JobBook, metrics: FarmMetrics, tracing: FarmTracing, clock: Callable[[], float]
    ) -> None:
        self.changes = Changes(book, clock)
        self.estimates = Estimates()
        self.history = History()
        self._book = book
        self._metrics = metrics
        self._tracing = tracing
        self._clock = clock

    def current(self, name: JobId) -> Job:
        """A job that is in the book, as it is now."""
        job = self._book.get(name)
        assert job is not None, "a running job is in the book"
        return job

    def move(self, name: JobId, state: JobState) -> None:
        """A job enters its next state."""
        job, now = self.current(name), self._clock()
        self.estimates.learn(job, now)
        self._book.put(job.to(state, now))
        self.changes.tell(name)

    def planned(self, name: JobId, total: int, kernels: Binaries) -> None:
        """A job has its plan, of so many kernels."""
        job, now = self.current(name), self._clock()
        self.estimates.learn(job, now)
        self._book.put(job.planned(now, total, early=kernels.done))
        self.progress(name, kernels)

    def progress(self, name: JobId, kernels: Binaries) -> None:
        """More of a job's kernels are there."""
        self._book.put(self.current(name).kernels(kernels.done, stored=kernels.stored))
        self.changes.tell(name)

    def aside(self, name: JobId) -> Job:
        """A job is another gateway's: it waits outside the queue."""
        job = self._book.aside(self.current(name), self._clock())
        self.changes.tell(name)
        return job

    def followed(self, name: JobId, status: JobStatus) -> None:
        """The owner of such a job says how it stands."""
        self._book.put(self.current(name).followed(status))
        self.changes.tell(name)

    def published(self, name: JobId) -> Job:
        """A job's artifact was published by this gateway; the job as it was just before."""
        job = self.current(name)
        self.estimates.learn(job, self._clock())
        self.done(name)
        return job

    def done(self, name: JobId) -> None:
        """The artifact stands in the store."""
        self._book.done(self.current(name), self._clock())
        self.ended(name)

    def fail(self, name: JobId, kind: ErrorKind, message: str) -> None:
        """A job that is not over has failed."""
        job = self._book.get(name)
        if job is None or job.state.final:
            return
        log.warning(
            "job %s failed: %s: %s",
            name.fingerprint[:12],
            kind,
            message,
            extra={"action": "fail"},
        )
        self._book.fail(job, kind, message, self._clock())
        self.ended(name)

    def ended(self, name: JobId) -> None:
        """The book has a job as ended."""
        self.changes.tell(name)
        job = self.current(name)
        self._metrics.jobs.labels(job.state.value).inc()
        self._tracing.forget(name)
        self.history.add(job)
