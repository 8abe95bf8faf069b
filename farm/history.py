"""What became of the last jobs, and which have taken longest: for people."""

from __future__ import annotations

import heapq
from collections import deque
from typing import Final

from farm.job import Job

RECENT: Final = 50
SLOWEST: Final = 20


class History:
    """The last RECENT jobs that are over, and the SLOWEST successful ones of all, by their time in
    work: how long they have waited says nothing of the graph."""

    def __init__(self) -> None:
        self._recent: deque[Job] = deque(maxlen=RECENT)
        self._slowest: list[tuple[float, int, Job]] = []
        self._count = 0

    def add(self, job: Job) -> None:
        """A job is over."""
        self._recent.append(job)
        if job.error is None and job.ended_at is not None and job.started_at:
            self._count += 1
            heapq.heappush(self._slowest, (job.ended_at - job.started_at, -self._count, job))
            if len(self._slowest) > SLOWEST:
                heapq.heappop(self._slowest)

    def recent(self) -> list[Job]:
        """The last jobs, the newest first."""
        return list(reversed(self._recent))

    def slowest(self) -> list[Job]:
        """The jobs that have taken longest, the slowest first."""
        return [job for _, _, job in sorted(self._slowest, reverse=True)]
