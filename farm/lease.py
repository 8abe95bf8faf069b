"""When a lease may be taken, and how long its holder may count on it: pure, told the time, no I/O.

    nobody's or released ──take──► held ──renew──► held ──release──► released
                                    │
                                    └─ not renewed for `term_s` ──take (by another)──► held

Nothing here depends on what time it is, only on how fast clocks run: a contender takes a lease when
it has seen the record unchanged for `term_s` seconds of its own monotonic clock, and a holder
counts on it for `HOLD` of that, from the moment at which it began to write the record. A record
that is seen was written before, so the holder has stopped when another may begin, as long as no
clock runs half as fast again as another. Who is stopped at a bad moment (a process, a virtual
machine) writes nothing later on: its epoch is over (`cache.lease.check_claim`).

A first epoch is the time in milliseconds, so that epochs go on growing when the record of an old
lease has been collected.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from cache.lease import Lease

HOLD: Final = 2 / 3
"""The part of the term for which a holder counts on its lease."""
RENEWALS: Final = 4
"""Renewals in a term: two may fail before the holder stops."""
LOOKS: Final = 6
"""Looks of a contender in a term."""


@dataclass(frozen=True, slots=True)
class Member:
    """One who may hold leases: a gateway. Fields as of `Lease`; term_s: seconds of its leases."""

    owner: str
    address: str
    proof: str
    term_s: float

    @property
    def renew_s(self) -> float:
        """Seconds between renewals."""
        return self.term_s / RENEWALS

    @property
    def look_s(self) -> float:
        """Seconds between looks at another's lease."""
        return self.term_s / LOOKS


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a contender knows of a lease: its value, unchanged `since` then by the own clock."""

    lease: Lease | None
    since: float

    def then(self, lease: Lease | None, now: float) -> Sighting:
        """What it knows after another look."""
        return self if lease == self.lease else Sighting(lease, now)

    def may_take(self, member: Member, now: float) -> bool:
        """Whether the lease is nobody's: released, expired, or left over by the member itself."""
        lease = self.lease
        if lease is None or lease.released or lease.owner == member.owner:
            return True
        return now - self.since >= lease.term_s

    def take(self, member: Member, now: float, wall: float) -> Held:
        """The lease as the member wants to hold it: to be swapped for what was seen.

        wall: seconds since 1970.
        """
        epoch = max(1, int(wall * 1000)) if self.lease is None else self.lease.epoch + 1
        lease = Lease(member.owner, member.address, member.proof, epoch, 0, member.term_s)
        return Held(lease, now)


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that its holder wrote, beginning at `since` by its own monotonic clock.

    ``attempt`` is when the holder began to write the next renewal, of which no answer has come.
    """

    lease: Lease
    since: float
    attempt: float | None = None

    def believes(self, now: float) -> bool:
        """Whether the holder may count on it."""
        return now - self.since < self.lease.term_s * HOLD

    def trying(self, now: float) -> Held:
        """The holder begins to write `renewal`. A try without an answer may have been written: the
        renewal counts from the first."""
        return replace(self, attempt=now if self.attempt is None else self.attempt)

    @property
    def renewal(self) -> Lease:
        """The value that renews it: to be swapped for `lease`."""
        return replace(self.lease, beat=self.lease.beat + 1)

    def renewed(self) -> Held:
        """The renewal was written."""
        assert self.attempt is not None, "a renewal is tried before it is written"
        return Held(self.renewal, self.attempt)

    @property
    def release(self) -> Lease:
        """The value that gives it up: to be swapped for `lease`. The record stays, so that the
        epoch goes on from there."""
        return replace(self.renewal, released=True)
