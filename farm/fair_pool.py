"""A pool that keeps tasks back and hands them on in fair order, few more than there are workers.

A job becomes hundreds of tasks at once. Were they all given to the pool, whose order is that of
their submission, the tasks of whoever comes next would stand behind them all.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Final

from farm.pool import Heard, Pool, Task, TaskFailed, as_failure, pool_closed, settle
from farm.queue import Backlog, FairQueue
from farm.retry import ErrorKind
from fusec.remote.protocol import Priority

BURST_S: Final = 60.0
"""Seconds of workers' time that a tenant which comes has before it is one among the others: about
what a small model takes."""
TURN_S: Final = 1.0
"""What a task is taken to cost until it has ended, in seconds of a worker."""


class FairPool:
    """Another pool in the order of `farm.queue`; see `Pool`. One order for each class of workers.

    A share is charged for the seconds that its tasks have had. weight: a tenant's share beside
    others. Safe to use from several threads.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        weight: Callable[[str], float] = lambda tenant: 1.0,
        clock: Callable[[], float] = time.monotonic,
        burst_s: float = BURST_S,
    ) -> None:
        self._pool = pool
        self._weight = weight
        self._clock = clock
        self._burst = burst_s / TURN_S
        self._lock = threading.Lock()
        self._queues: dict[str, FairQueue[Future[bytes]]] = {}
        self._waiting: dict[Future[bytes], _Entry] = {}
        self._handed: dict[Future[bytes], _Entry] = {}
        self._busy: Counter[str] = Counter()
        self._spare: defaultdict[str, list[_Entry]] = defaultdict(list)
        self._closed = False

    @property
    def kind(self) -> str:
        """See `Pool`."""
        return self._pool.kind

    @property
    def workers(self) -> int:
        """See `Pool`."""
        return self._pool.workers

    def workers_of(self, needs: str) -> int:
        """See `Pool`."""
        return self._pool.workers_of(needs)

    def gpu_classes(self) -> tuple[str, ...]:
        """See `Pool`."""
        return self._pool.gpu_classes()

    def want(self, needs: str, tasks: int) -> None:
        """See `Pool`."""
        self._pool.want(needs, tasks)

    def submit(self, task: Task, heard: Heard | None = None) -> Future[bytes]:
        """See `Pool`. The task waits for its turn by its share and priority."""
        future: Future[bytes] = Future()
        with self._lock:
            if self._closed:
                future.set_exception(pool_closed())
                return future
            queue = self._queues.get(task.needs)
            if queue is None:
                queue = FairQueue(weight=self._weight, burst=self._burst)
                self._queues[task.needs] = queue
            queue.push(future, task.share, task.priority, self._clock())
            self._waiting[future] = _Entry(task, heard)
        self._hand_on(task.needs)
        return future

    def hurry(self, future: Future[bytes], priority: Priority) -> None:
        """See `Pool`."""
        with self._lock:
            entry = self._waiting.get(future)
            if entry is not None and priority > entry.task.priority:
                entry.task = replace(entry.task, priority=priority)
                queue = self._queues[entry.task.needs]
                queue.push(future, entry.task.share, priority, self._clock())

    def cancel(self, future: Future[bytes]) -> None:
        """See `Pool`."""
        with self._lock:
            waits = self._waiting.pop(future, None)
            if waits is not None:
                self._queues[waits.task.needs].remove(future)
            handed = self._handed.get(future)
        # Before the look at `work`: `_start` sets that first, and then looks whether this is over.
        settle(future, TaskFailed(ErrorKind.CANCELLED, "the task was cancelled"))
        if handed is not None and handed.work is not None:
            self._pool.cancel(handed.work)

    def close(self) -> None:
        """See `Pool`. Closes the other pool too."""
        with self._lock:
            self._closed = True
            left = list(self._waiting)
            self._waiting.clear()
            self._queues.clear()
        for future in left:
            settle(future, pool_closed())
        self._pool.close()

    def backlogs(self) -> dict[str, list[Backlog]]:
        """Tasks that wait for their turn, by class of worker."""
        with self._lock:
            return {needs: queue.backlogs() for needs, queue in self._queues.items()}

    def in_work(self) -> dict[str, int]:
        """Tasks that the other pool has, by class of worker."""
        with self._lock:
            return {needs: count for needs, count in self._busy.items() if count}

    def _hand_on(self, needs: str) -> None:
        """Give the other pool what its workers can do, and a little more: a worker that ends a task
        should find the next one there."""
        workers = self._pool.workers_of(needs)
        # A class without workers gets a task all the same: it makes the cluster grow, or fails.
        most = workers + max(1, workers // 4)
        with self._lock:
            waiting = len(self._queues[needs]) if needs in self._queues else 0
            wanted = waiting + self._busy[needs]
        self._pool.want(needs, wanted)
        while True:
            with self._lock:
                queue = self._queues.get(needs)
                if queue is None or self._busy[needs] >= most:
                    return
                taken = queue.pop(self._clock())
                if taken is None:
                    return
                handed = self._handed[taken.item] = self._waiting.pop(taken.item)
                if self._busy[needs] < workers:
                    handed.since = self._clock()
                else:
                    self._spare[needs].append(handed)
                self._busy[needs] += 1
            # Outside the lock: a task that ends at once calls back from here.
            self._start(taken.item, handed)

    def _start(self, future: Future[bytes], handed: _Entry) -> None:
        handed.work = self._pool.submit(handed.task, handed.heard)
        handed.work.add_done_callback(lambda ended: self._ended(future, ended))
        if future.done():  # it was cancelled before there was anything to cancel
            self._pool.cancel(handed.work)

    def _ended(self, future: Future[bytes], work: Future[bytes]) -> None:
        with self._lock:
            handed = self._handed.pop(future)
            task, now = handed.task, self._clock()
            self._busy[task.needs] -= 1
            spare = self._spare[task.needs]
            if handed.since is None:
                spare.remove(handed)
            elif spare:
                spare.pop(0).since = now  # its worker is free now
            queue = self._queues.get(task.needs)
            if queue is not None:
                took = 0.0 if handed.since is None else now - handed.since
                queue.charge(task.share, task.priority, took / TURN_S - 1.0)
        error = work.exception()
        settle(future, work.result() if error is None else as_failure(error))
        self._hand_on(task.needs)


@dataclass(slots=True, eq=False)
class _Entry:
    """A task, and who hears of it, for the other pool; once that has it: since when a worker has
    been free for it, None as long as there was none, and what the pool gave for it."""

    task: Task
    heard: Heard | None
    since: float | None = None
    work: Future[bytes] | None = None


_CONTRACT: type[Pool] = FairPool
