"""Graphs that clients want before any of them has sent one.

Thousands of ranks come within seconds for a graph of some hundred kilobytes. The first to ask by
its fingerprint is told to send it; the others wait for that, and another one is told to when it is
late. Whether a graph is what its fingerprint says is found out when it comes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from farm.job import JobId

UPLOAD_S: Final = 3.0
"""Who was told to send a graph has so long until another one is told to."""
MOST: Final = 4096
"""Graphs that are waited for at once; of one more, whoever asks sends his own."""


@dataclass(slots=True)
class _Expected:
    until: float
    by_all: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Arrivals:
    """What one gateway waits for. Lives in one event loop; `clock` is its seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._expected: OrderedDict[JobId, _Expected] = OrderedDict()  # by `until`

    def claim(self, name: JobId) -> bool:
        """Whether the caller is to send a graph; if not, somebody else was told to."""
        now = self._clock()
        while self._expected and next(iter(self._expected.values())).until <= now:
            self._expected.popitem(last=False)
        known = self._expected.get(name)
        if known is not None:
            return known.by_all
        if len(self._expected) < MOST:
            self._expected[name] = _Expected(now + UPLOAD_S)
        return True

    async def wait(self, name: JobId, until: float) -> None:
        """Wait until a graph has come, may be sent by others, or that time."""
        known = self._expected.get(name)
        if known is not None:
            left = min(known.until, until) - self._clock()
            with suppress(TimeoutError):
                await asyncio.wait_for(known.over.wait(), left)

    def came(self, name: JobId) -> None:
        """A graph is here, or need not be."""
        known = self._expected.pop(name, None)
        if known is not None:
            known.over.set()

    def refused(self, name: JobId) -> None:
        """What was sent under a graph's name is not the graph: whoever wants it sends his own, for
        a while."""
        known = self._expected.pop(name, None)
        if known is not None:
            known.over.set()
            self._expected[name] = _Expected(self._clock() + UPLOAD_S, by_all=True)
