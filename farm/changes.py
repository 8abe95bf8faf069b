"""Clients that wait for something to change about a job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from farm.book import JobBook
from farm.job import Job, JobId

NEWS_S: Final = 1e-3
"""Between two answers about jobs that are not over: each costs this process about that much. Jobs
share them alike, and those who wait for a job share its own."""

_Events = dict[JobId, asyncio.Event]


class Changes:
    """The jobs of one book. Lives in one event loop; `clock` is its seconds."""

    def __init__(self, book: JobBook, clock: Callable[[], float]) -> None:
        self._book = book
        self._clock = clock
        self._news: _Events = {}
        self._ends: _Events = {}

    def tell(self, name: JobId) -> None:
        """A job has changed."""
        job = self._book.get(name)
        over = job is None or job.state.final
        for events in (self._news, self._ends) if over else (self._news,):
            event = events.pop(name, None)
            if event is not None:
                event.set()

    async def watch(self, name: JobId, waiter: str, after: int, wait_s: float) -> Job | None:
        """The job as soon as its seq is above `after`, or as it is after `wait_s` seconds.

        Where many wait for one job they hear of its end at once, and of the rest the more seldom:
        it does not even wake them.
        """
        asked = self._clock()
        until = asked + wait_s
        while True:
            now = self._clock()
            if waiter:
                self._book.heard(name, waiter, now)
            job = self._book.get(name)
            if job is None or job.state.final or now >= until:
                return job
            quiet = min(until, asked + self._book.turn(name) * NEWS_S)
            if now < quiet:
                await _wait(self._ends, name, quiet - now)
            elif job.seq > after:
                return job
            else:
                await _wait(self._news, name, until - now)


async def _wait(events: _Events, name: JobId, seconds: float) -> None:
    """Wait for an event, or so long."""
    event = events.setdefault(name, asyncio.Event())
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
