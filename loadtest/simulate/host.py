"""Processors that work is done on: who comes while all are busy waits in line."""

from __future__ import annotations

import heapq

from loadtest.simulate.virtual import VirtualLoop


class Cores:
    """`count` equal processors, first come first served; ``busy_s`` adds up the work done.

    A network line is one, too: its work is bytes over bandwidth.
    """

    def __init__(self, loop: VirtualLoop, count: int = 1) -> None:
        self._loop = loop
        self._free_at = [0.0] * count
        self.busy_s = 0.0

    def reserve(self, seconds: float) -> float:
        """Take the next free processor for so long; seconds from now until that work is done."""
        now = self._loop.time()
        start = max(now, self._free_at[0])
        heapq.heapreplace(self._free_at, start + seconds)
        self.busy_s += seconds
        return start + seconds - now

    @property
    def backlog_s(self) -> float:
        """Seconds that new work waits now."""
        return max(0.0, self._free_at[0] - self._loop.time())


class Host:
    """A gateway's machine: one processor (an event loop and its threads share one interpreter), and
    whether it lives."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.name = name
        self.core = Cores(loop)
        self._lives = True

    def lives(self) -> bool:
        return self._lives

    def die(self) -> None:
        """From now on, whatever it does has no effect and gets no answer."""
        self._lives = False
