"""A pool of threads in this process: for tests, for development, and for one machine.

The C compiler is a child process in any case, so kernels build in parallel in spite of the GIL.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from queue import SimpleQueue

from farm.devices import CPU
from farm.pool import Heard, Pool, Runner, Task, TaskFailed, as_failure, pool_closed, settle
from farm.retry import ErrorKind
from farm.stamp import stamped
from fusec.parts import finish, unheard
from fusec.remote.protocol import Priority


class MemoryPool:
    """`workers` threads that run tasks with `run`; see `Pool`.

    gpus: this machine's GPUs by class, as numbers of this process (`farm.devices.detected`); each
    has a thread of its own.
    """

    kind = "memory"

    def __init__(
        self, run: Runner, workers: int, *, gpus: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        self.workers = workers
        self._run = run
        self._threads = {CPU: ThreadPoolExecutor(workers, thread_name_prefix="farm-worker")}
        self._count = {CPU: workers, **{needs: len(found) for needs, found in (gpus or {}).items()}}
        self._gpus: dict[str, SimpleQueue[int]] = {}  # those that are free, by class
        for needs, ordinals in sorted((gpus or {}).items()):
            self._threads[needs] = ThreadPoolExecutor(len(ordinals), thread_name_prefix="farm-gpu")
            self._gpus[needs] = SimpleQueue()
            for ordinal in ordinals:
                self._gpus[needs].put(ordinal)
        self._lock = threading.Lock()
        # What the caller holds -> what the executor holds. They are two, since the executor's
        # future cannot end while its thread runs.
        self._open: dict[Future[bytes], _Running] = {}
        self._closed = False

    def workers_of(self, needs: str) -> int:
        """See `Pool`."""
        return self._count.get(needs, 0)

    def gpu_classes(self) -> tuple[str, ...]:
        """See `Pool`."""
        return tuple(self._gpus)

    def want(self, needs: str, tasks: int) -> None:
        """See `Pool`. This one is as large as it is."""

    def submit(self, task: Task, heard: Heard | None = None) -> Future[bytes]:
        """See `Pool`. Nothing joins this pool: a class without a worker fails."""
        future: Future[bytes] = Future()
        with self._lock:
            if self._closed:
                future.set_exception(pool_closed())
                return future
            threads = self._threads.get(task.needs)
            if threads is None:
                text = f"this farm has no worker of the class {task.needs}"
                future.set_exception(TaskFailed(ErrorKind.INTERNAL, text))
                return future
            stop = threading.Event()
            work = threads.submit(self._work, replace(task, stop=stop), heard or unheard)
            self._open[future] = _Running(work, stop)
        work.add_done_callback(lambda ended: self._ended(future, ended))
        return future

    def hurry(self, future: Future[bytes], priority: Priority) -> None:
        """See `Pool`. The order of this one is that of submission."""

    def cancel(self, future: Future[bytes]) -> None:
        """See `Pool`. A task that runs already is told to stop, as one in a child process does
        (`farm.isolation`); any other is left to end, and its result is dropped."""
        with self._lock:
            running = self._open.get(future)
        if running is not None:
            running.end()
        settle(future, TaskFailed(ErrorKind.CANCELLED, "the task was cancelled"))

    def close(self) -> None:
        """See `Pool`. Tasks that run already are told to stop, as by `cancel`."""
        with self._lock:
            self._closed = True
            left = dict(self._open)
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)
        for future, running in left.items():
            running.end()
            settle(future, pool_closed())

    def _work(self, task: Task, heard: Heard) -> bytes:
        free = self._gpus.get(task.needs)
        if free is None:
            return finish(stamped(self._run, task), heard)
        gpu = free.get()  # there is one: the class has as many threads as GPUs
        try:
            return finish(stamped(self._run, replace(task, gpu=gpu)), heard)
        finally:
            free.put(gpu)

    def _ended(self, future: Future[bytes], work: Future[bytes]) -> None:
        with self._lock:
            self._open.pop(future, None)
        if work.cancelled():
            settle(future, TaskFailed(ErrorKind.CANCELLED, "the task was cancelled"))
            return
        error = work.exception()
        settle(future, work.result() if error is None else as_failure(error))


@dataclass(frozen=True, slots=True)
class _Running:
    """What the executor has of a task, and what stops it where it has begun."""

    work: Future[bytes]
    stop: threading.Event

    def end(self) -> None:
        """Nobody wants the result."""
        self.work.cancel()
        self.stop.set()


_CONTRACT: type[Pool] = MemoryPool
