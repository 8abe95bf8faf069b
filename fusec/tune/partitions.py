"""Which of a graph's partitions into kernels is the fastest, by the times of their kernels.

The search over partitions keeps those of a region whose modelled costs are about the same
(`fusec.schedule.search`). Regions are taken one after the other, the others as they are: what two
programs both start takes as long in both, so the kernels that only one of them has decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

_WORTH: Final = 0.02  # of the time of what differs: less is not told from chance

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Timed(Generic[T]):
    """A program, as ``made``. launches: how often it starts each kernel, by digest; ms: of one
    launch of those kernels that were timed."""

    made: T
    launches: Counter[str]
    ms: Mapping[str, float] = field(default_factory=dict)

    def faster_than(self, other: Timed[T]) -> bool:
        """Whether it is worth taking instead; not where a kernel that decides was not timed."""
        mine, theirs = self.launches - other.launches, other.launches - self.launches
        if not (set(mine) <= set(self.ms) and set(theirs) <= set(other.ms)):
            return False
        taken = sum(self.ms[digest] * count for digest, count in mine.items())
        before = sum(other.ms[digest] * count for digest, count in theirs.items())
        return taken < (1.0 - _WORTH) * before


def fastest(
    first: Timed[T], near: Sequence[int], make: Callable[[tuple[int, ...]], Timed[T] | None]
) -> Timed[T]:
    """The fastest program from ``first`` on, which has the first partition of every region.

    near: how many partitions each region has; make: the program with the partition of that number
    of each, None when the time for it is up.
    """
    best, picks = first, [0] * len(near)
    for region, count in enumerate(near):
        for number in range(1, count):
            tried = make((*picks[:region], number, *picks[region + 1 :]))
            if tried is None:
                return best
            if tried.faster_than(best):
                best, picks[region] = tried, number
    return best
