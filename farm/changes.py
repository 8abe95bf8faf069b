"""Clients that wait for something to change about a job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from farm.book import JobBook
from farm.job import Job, JobId

NEWS_S: Final = 1e-3
"""Between two answers about one job that is not over: each costs this process that much."""


class Changes:
    """The jobs of one book. Lives in one event loop; `clock` is its seconds."""

    def __init__(self, book: JobBook, clock: Callable[[], float]) -> None:
        self._book = book
        self._clock = clock
        self._events: dict[JobId, asyncio.Event] = {}

    def tell(self, name: JobId) -> None:
        """A job has changed."""
        event = self._events.pop(name, None)
        if event is not None:
            event.set()

    async def watch(self, name: JobId, waiter: str, after: int, wait_s: float) -> Job | None:
        """The job as soon as its seq is above `after`, or as it is after `wait_s` seconds.

        Where many wait for one job, they hear of its end at once and of the rest the more seldom.
        """
        asked = self._clock()
        while True:
            now = self._clock()
            if waiter:
                self._book.heard(name, waiter, now)
            job = self._book.get(name)
            if job is None or job.state.final or now >= asked + wait_s:
                return job
            left = asked + wait_s - now
            if job.seq > after:
                left = min(left, asked + NEWS_S * self._book.waiters(name) - now)
                if left <= 0:
                    return job
            event = self._events.setdefault(name, asyncio.Event())
            try:
                await asyncio.wait_for(event.wait(), left)
            except TimeoutError:
                continue
