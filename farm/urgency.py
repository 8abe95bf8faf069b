"""How urgent a piece of work is: the priority of all its tasks, which may rise while they wait."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

from farm.pool import Heard, Pool, Task
from farm.queue import Share
from fusec.remote.protocol import Priority


class Urgency:
    """The priority of tasks that belong together, those of their next attempts included. Lives in
    one event loop."""

    def __init__(self, priority: Priority) -> None:
        self.priority = priority
        self._waiting: dict[Future[bytes], Pool] = {}
        self._others: list[Urgency] = []

    def submit(self, pool: Pool, task: Task, heard: Heard | None = None) -> Future[bytes]:
        """Give a task to a pool, see `Pool.submit`; `over` is to follow."""
        future = pool.submit(replace(task, priority=self.priority), heard)
        self._waiting[future] = pool
        return future

    def over(self, future: Future[bytes]) -> None:
        """A task has ended, or was given up."""
        del self._waiting[future]

    def rise(self, priority: Priority) -> None:
        """Make it as urgent as this, if it is less; also what waits already."""
        if priority <= self.priority:
            return
        self.priority = priority
        for future, pool in self._waiting.items():
            pool.hurry(future, priority)
        for other in self._others:
            other.rise(priority)

    def carry(self, other: Urgency) -> None:
        """Make another piece of work, which this one waits for, as urgent as this, now and when
        this one rises."""
        self._others.append(other)
        other.rise(self.priority)


def behind(task: Task, tenant: str) -> Task:
    """A tenant's task that goes behind all that somebody waits for."""
    return replace(task, share=Share(tenant), priority=Priority.BACKGROUND)
