"""Names of jobs that are over, each remembered for a time of its own.

To forget costs what is forgotten, not what is remembered: names that are kept equally long go in
the order in which they came, and there are only as many such times as kinds of ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from farm.job import JobId


class Ended:
    """At most `most` names, in the order of their ends. Times are seconds of the farm's clock."""

    def __init__(self, most: int) -> None:
        self._most = most
        # OrderedDict: to find the first of a dict whose first ones were removed takes a walk.
        self._kept: OrderedDict[JobId, float] = OrderedDict()  # for how long
        self._since: dict[float, OrderedDict[JobId, float]] = {}  # by that time: since when

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[JobId]:
        return iter(self._kept)

    def add(self, name: JobId, now: float, keep_s: float) -> None:
        """A job has ended."""
        self.remove(name)
        self._kept[name] = keep_s
        self._since.setdefault(keep_s, OrderedDict())[name] = now

    def remove(self, name: JobId) -> None:
        """Forget a job, if it is remembered."""
        keep_s = self._kept.pop(name, None)
        if keep_s is not None:
            del self._since[keep_s][name]

    def due(self, now: float) -> Iterator[JobId]:
        """The jobs to be forgotten, each to be removed before the next is asked for: those whose
        time is over, and the oldest that are too many."""
        for keep_s, names in self._since.items():
            while names and now - names[first := next(iter(names))] > keep_s:
                yield first
        while len(self._kept) > self._most:
            yield next(iter(self._kept))
