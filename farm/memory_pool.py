"""A pool of threads in this process: for tests, for development, and for one machine.

The C compiler is a child process in any case, so kernels build in parallel in spite of the GIL.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

from farm.pool import Pool, Runner, Task, TaskFailed, as_failure, pool_closed, settle
from farm.retry import ErrorKind


class MemoryPool:
    """`workers` threads that run tasks with `run`; see `Pool`."""

    kind = "memory"

    def __init__(self, run: Runner, workers: int) -> None:
        self.workers = workers
        self._run = run
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="farm-worker")
        self._lock = threading.Lock()
        # What the caller holds -> what the executor holds. They are two, since the executor's
        # future cannot end while its thread runs.
        self._open: dict[Future[bytes], Future[bytes]] = {}
        self._closed = False

    def submit(self, task: Task) -> Future[bytes]:
        """See `Pool`."""
        future: Future[bytes] = Future()
        with self._lock:
            if self._closed:
                future.set_exception(pool_closed())
                return future
            work = self._threads.submit(self._run, task)
            self._open[future] = work
        work.add_done_callback(lambda ended: self._ended(future, ended))
        return future

    def cancel(self, future: Future[bytes]) -> None:
        """See `Pool`. A task that runs already is left to end; its result is dropped."""
        with self._lock:
            work = self._open.get(future)
        if work is not None:
            work.cancel()
        settle(future, TaskFailed(ErrorKind.CANCELLED, "the task was cancelled"))

    def close(self) -> None:
        """See `Pool`. Tasks that run already are left to end, unheard."""
        with self._lock:
            self._closed = True
            left = list(self._open)
        self._threads.shutdown(wait=False, cancel_futures=True)
        for future in left:
            settle(future, pool_closed())

    def _ended(self, future: Future[bytes], work: Future[bytes]) -> None:
        with self._lock:
            self._open.pop(future, None)
        if work.cancelled():
            settle(future, TaskFailed(ErrorKind.CANCELLED, "the task was cancelled"))
            return
        error = work.exception()
        settle(future, work.result() if error is None else as_failure(error))


_CONTRACT: type[Pool] = MemoryPool
