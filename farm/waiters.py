"""Who waits for which job, and when each was last heard of.

Apart from the jobs, which are frozen: thousands of ranks wait for one and ask every few seconds, so
hearing of one of them must not cost a copy of them all.
"""

from __future__ import annotations

from farm.job import JobId


class Waiters:
    """Names of clients by job, with seconds of the farm's clock."""

    def __init__(self) -> None:
        self._heard: dict[JobId, dict[str, float]] = {}

    def heard(self, job: JobId, waiter: str, now: float) -> bool:
        """A client submitted or asked; True if it did not wait before."""
        heard = self._heard.setdefault(job, {})
        known = heard.pop(waiter, None) is not None
        heard[waiter] = now  # the last one is the one heard of last
        return not known

    def left(self, job: JobId, waiter: str) -> bool:
        """A client waits no more; True if nobody does."""
        heard = self._heard.get(job, {})
        heard.pop(waiter, None)
        return not heard

    def count(self, job: JobId) -> int:
        """How many wait."""
        return len(self._heard.get(job, ()))

    def jobs(self) -> int:
        """How many jobs are waited for."""
        return len(self._heard)

    def last_heard(self, job: JobId) -> float | None:
        """When anybody who waits was last heard of; None where nobody does."""
        heard = self._heard.get(job)
        return heard[next(reversed(heard))] if heard else None

    def forget(self, job: JobId) -> None:
        """The job is over."""
        self._heard.pop(job, None)
