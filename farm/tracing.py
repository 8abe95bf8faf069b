"""What the farm adds to a trace: a job below the submit that began it, its stages, and its tasks.

The span of an attempt goes with the task to its worker, which says when it was at work
(`farm.stamp`); the gateway makes a span of that, under the name of the worker.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from cache.open_tracing import open_tracing
from cache.tracing import Tracing
from farm.job import JobId
from farm.pool import Task, TaskFailed
from farm.stamp import split
from fusec.trace import Lap


class FarmTracing:
    """The spans of one gateway; with an empty setting there are none. Lives in one event loop."""

    def __init__(self, setting: str = "") -> None:
        self.gateway: Tracing = open_tracing(setting, "fusec-farm")
        self._workers: Tracing = open_tracing(setting, "fusec-worker")
        self._submits: dict[JobId, tuple[str, int]] = {}  # traceparent, nanoseconds of the epoch

    def submitted(self, job: JobId) -> None:
        """The request that is served has begun this job."""
        traceparent = self.gateway.traceparent()
        if traceparent:
            self._submits[job] = traceparent, time.time_ns()

    def forget(self, job: JobId) -> None:
        """A job has ended, maybe without having been in work."""
        self._submits.pop(job, None)

    @contextmanager
    def job(self, job: JobId) -> Iterator[None]:
        """A job in work: below its submit, whatever request or job made room for it."""
        traceparent, since = self._submits.pop(job, ("", 0))
        with self.gateway.under(traceparent):
            with self.gateway.past("queue", since, time.time_ns()):
                pass
            with self.gateway.span("job", fingerprint=job.fingerprint):
                yield

    @contextmanager
    def attempt(self, task: Task) -> Iterator[Task]:
        """A try of a task with its wait for a worker; gives the task as it goes to the pool."""
        with self.gateway.span("attempt", label=task.label):
            try:
                yield replace(task, traceparent=self.gateway.traceparent())
            except TaskFailed as error:
                self.gateway.failed(error.kind.value)
                raise

    def opened(self, task: Task, result: bytes) -> bytes:
        """The result of a try without its stamp, which becomes a span. Raises TaskFailed."""
        if not task.traceparent:
            return result
        stamp, inner = split(result)
        worker = f"{stamp.host}:{stamp.process}"
        with self._workers.past(f"task {task.kind}", stamp.start_ns, stamp.end_ns, worker=worker):
            return inner

    def laps(self, laps: Iterable[Lap]) -> None:
        """The compiler's stages in a worker."""
        for lap in laps:
            with self._workers.past(lap.stage, lap.start_ns, lap.end_ns):
                pass

    def close(self) -> None:
        """Export what is not exported yet."""
        self.gateway.close()
        self._workers.close()
