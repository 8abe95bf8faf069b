"""Which jobs are this gateway's to do.

Where it is the only one, all are: `Ownership`. Where several share a store (`farm.leases`), a job
belongs to whoever holds its lease; the others follow it there.
"""

from __future__ import annotations

from types import TracebackType

from cache.lease import Claim, Lease


class Holding:
    """The right to do a job, within `async with`. ``contested``: somebody held it before, who may
    have published the artifact."""

    contested = False

    async def claim(self) -> Claim | None:
        """What is to be shown with an entry. Raises Fenced when the job is another's by now."""
        return None

    async def __aenter__(self) -> Holding:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """The job is over, or given up."""


class Ownership:
    """That of a gateway which is the only one."""

    look_s = 1.0
    """Seconds between looks at another's job."""

    async def acquire(self, fingerprint: str) -> Holding | None:
        """The right to do a job, or None: it is another gateway's. Raises TaskFailed."""
        return Holding()

    async def owner(self, fingerprint: str) -> Lease | None:
        """Whose job it is, or None: this gateway may acquire it. Raises what the store raises."""
        return None

    async def close(self) -> None:
        """Give up what is still held."""
