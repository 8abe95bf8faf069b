"""The farm's gateways: which one a graph goes to, and which of them answer.

Rendezvous hashing (Thaler and Ravishankar, 1998): each graph has an order of all gateways of its
own, so that every service sends a graph to the same one, and what a dead one had is spread over the
others and comes back to it.

A name that has several addresses, as a headless Service of Kubernetes does, is as many gateways.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Final

import httpx

log = logging.getLogger("fusec.cache")

FIRST_DOWN_S: Final = 1.0
MOST_DOWN_S: Final = 15.0
QUIET_S: Final = 1.0
"""A gateway that has a request and said nothing to anybody for so long is asked how it is."""
NAMES_S: Final = 5.0
"""How often the gateways' names are looked up again."""
_NEVER: Final = float("-inf")

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""The addresses of a host. Raises OSError."""


def order(urls: Sequence[str], name: str) -> list[str]:
    """The gateways by the order in which they are to have what is called `name`."""
    return sorted(urls, key=lambda url: sha256(f"{url} {name}".encode()).digest())


async def addresses(host: str) -> Sequence[str]:
    """The IPv4 addresses of a host, or its IPv6 ones where it has no other. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    family = min((item[0] for item in found), key=lambda each: each != socket.AF_INET)
    return sorted({str(item[4][0]) for item in found if item[0] == family})


class Gateways:
    """The gateways of one farm, with a memory of those that do not answer.

    resolve: how their names are looked up, now and then and beside the requests; None if never.
    """

    def __init__(
        self,
        urls: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
        resolve: Resolve | None = None,
    ) -> None:
        self.urls = tuple(urls)
        self._clock = clock
        self._resolve = resolve
        self._replicas: dict[str, tuple[str, ...]] = {url: (url,) for url in urls}  # by given name
        self._looked = _NEVER
        self._looking: asyncio.Future[None] | None = None
        self._down: dict[str, tuple[float, float]] = {}  # until when, and for how long
        self._heard: dict[str, float] = {}  # when each said anything last
        self._mute: dict[str, float] = {}  # when each last did not answer how it is
        self._asking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def of(self, name: str) -> list[str]:
        """Whom to ask, one after another; those that were silent a moment ago come last."""
        now = self._clock()
        if self._resolve is not None and now - self._looked >= NAMES_S:
            self._looked = now
            self._looking = asyncio.ensure_future(self._look_up(self._resolve))
        return sorted(order(self.urls, name), key=lambda url: self._until(url) > now)

    def host(self, url: str) -> str:
        """What a gateway is called in its certificate."""
        return next(
            (httpx.URL(given).host for given, has in self._replicas.items() if url in has),
            httpx.URL(url).host,
        )

    def close(self) -> None:
        """Look nothing up any more."""
        if self._looking is not None:
            self._looking.cancel()

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

    async def _look_up(self, resolve: Resolve) -> None:
        """Where a name cannot be looked up, its gateways stay who they were."""
        for given in self._replicas:
            url = httpx.URL(given)
            try:
                found = await resolve(url.host)
            except OSError as error:
                log.warning(
                    "%s cannot be looked up: %s", url.host, error, extra={"action": "gateways"}
                )
                continue
            several = tuple(str(url.copy_with(host=address)) for address in found)
            self._replicas[given] = several if len(several) > 1 else (given,)
        self.urls = tuple(dict.fromkeys(each for has in self._replicas.values() for each in has))
        for known in (self._down, self._heard, self._mute, self._asking):
            for url_gone in known.keys() - set(self.urls):
                del known[url_gone]

    def _until(self, url: str) -> float:
        return self._down.get(url, (_NEVER, 0.0))[0]
