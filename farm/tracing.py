"""What the farm adds to a trace: a job below the submit that began it, its stages, and its tasks.

A worker has neither network nor credentials, so it exports nothing: it sends back when it was at
work, and the gateway makes spans of that, under the name of the worker.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from cache.open_tracing import open_tracing
from cache.tracing import OFF, Tracing
from farm.job import JobId
from farm.pool import Runner, Task, TaskFailed
from farm.retry import ErrorKind
from fusec.trace import Lap

_STAMP: Final = struct.Struct("!QQI64s")
"""Before a result: start and end in nanoseconds of the epoch, process, host."""


@dataclass(frozen=True, slots=True)
class Stamped:
    """A runner whose results say when, and where, they were made; `FarmTracing.opened` reads it."""

    run: Runner

    def __call__(self, task: Task) -> bytes:
        started = time.time_ns()
        result = self.run(task)
        host = socket.gethostname().encode()[:64]
        return _STAMP.pack(started, time.time_ns(), os.getpid(), host) + result


def stamped(setting: str, runner: Runner) -> Runner:
    """What the pool of a farm with this setting runs."""
    return Stamped(runner) if setting else runner


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

    def opened(self, task: Task, result: bytes) -> bytes:
        """A task's result without its stamp, which becomes a span. Raises TaskFailed."""
        if self.gateway is OFF:
            return result
        if len(result) < _STAMP.size:
            raise TaskFailed(ErrorKind.INTERNAL, f"no stamp on the result of {task.label}")
        started, ended, process, host = _STAMP.unpack_from(result)
        worker = f"{host.rstrip(bytes(1)).decode(errors='replace')}:{process}"
        self._worked(f"task {task.kind}", started, ended, worker=worker, label=task.label)
        return result[_STAMP.size :]

    def laps(self, laps: Iterable[Lap]) -> None:
        """The compiler's stages in a worker."""
        for lap in laps:
            self._worked(lap.stage, lap.start_ns, lap.end_ns)

    def close(self) -> None:
        """Export what is not exported yet."""
        self.gateway.close()
        self._workers.close()

    def _worked(self, name: str, start_ns: int, end_ns: int, **attributes: str) -> None:
        with self._workers.past(name, start_ns, end_ns, **attributes):
            pass
