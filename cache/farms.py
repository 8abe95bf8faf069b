"""The farm's gateways: which one a graph goes to, and which of them answer.

Rendezvous hashing (Thaler and Ravishankar, 1998): each graph has an order of all gateways of its
own, so that every service sends a graph to the same one, and what a dead one had is spread over the
others and comes back to it.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Final

FIRST_DOWN_S: Final = 1.0
MOST_DOWN_S: Final = 15.0
QUIET_S: Final = 1.0
"""A gateway that has a request and said nothing to anybody for so long is asked how it is."""
_NEVER: Final = float("-inf")


def order(urls: Sequence[str], name: str) -> list[str]:
    """The gateways by the order in which they are to have what is called `name`."""
    return sorted(urls, key=lambda url: sha256(f"{url} {name}".encode()).digest())


class Gateways:
    """The gateways of one farm, with a memory of those that do not answer."""

    def __init__(self, urls: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.urls = tuple(urls)
        self._clock = clock
        self._down: dict[str, tuple[float, float]] = {}  # until when, and for how long
        self._heard: dict[str, float] = {}  # when each said anything last
        self._mute: dict[str, float] = {}  # when each last did not answer how it is
        self._asking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def of(self, name: str) -> list[str]:
        """Whom to ask, one after another; those that were silent a moment ago come last."""
        now = self._clock()
        return sorted(order(self.urls, name), key=lambda url: self._until(url) > now)

    def answered(self, url: str) -> None:
        """It is there."""
        self._heard[url] = self._clock()
        self._down.pop(url, None)

    def silent(self, url: str) -> None:
        """It did not answer: it is asked last for a second, and longer each time."""
        now = self._clock()
        until, before = self._down.get(url, (_NEVER, 0.0))
        if until <= now:  # else one of many requests that met the same silence
            length = min(MOST_DOWN_S, max(FIRST_DOWN_S, 2 * before))
            self._down[url] = (now + length, length)

    async def lives(self, url: str, ask: Callable[[], Awaitable[bool]]) -> bool:
        """Whether it has said anything in the last QUIET_S seconds, or answers when asked how it
        is; however many want to know, it is asked once."""
        async with self._asking[url]:
            asked = self._clock()
            if asked - self._heard.get(url, _NEVER) < QUIET_S:
                return True
            if asked - self._mute.get(url, _NEVER) < QUIET_S:
                return False
            if await ask():
                self.answered(url)
            if self._heard.get(url, _NEVER) >= asked:
                return True
            self._mute[url] = self._clock()
            return False

    @property
    def down(self) -> int:
        """How many are taken for dead."""
        now = self._clock()
        return sum(1 for url in self.urls if self._until(url) > now)

    def _until(self, url: str) -> float:
        return self._down.get(url, (_NEVER, 0.0))[0]
