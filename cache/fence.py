"""A service's part in the collector's bargain (`cache.doomed`): writers go by the announcement."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from cache import doomed
from cache.doomed import Doomed
from cache.errors import NotReachable
from cache.gc import Collectable
from cache.store import Store

T = TypeVar("T")


class Fence:
    """Questions of writers about the blobs of one store. Lives in one event loop.

    `collected` is the part of the store that collectors work on; where it removes atomically there
    is nothing to announce and nothing to go by. `call` runs a store call in a thread.
    """

    def __init__(
        self,
        store: Store,
        collected: Collectable | None,
        call: Callable[..., Awaitable[object]],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._collected = collected
        self._call = call
        self._clock = clock
        self._listed: Doomed | None = None
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def present(self, digests: Sequence[str]) -> set[str]:
        """Those of the blobs that are here to stay. Raises what the store raises."""
        present = await self._ask(self._store.has_blobs, digests)
        listed = await self._current()
        suspects = sorted(present & listed.digests) if listed is not None else []
        if not suspects or listed is None or self._collected is None:
            return present
        spared = await self._ask(self._collected.written_after, suspects, listed.spared_after)
        return present - (set(suspects) - spared)

    async def must_write(self, digest: str) -> bool:
        """Whether a blob must be written though it is here. Raises NotReachable while it is being
        removed: the writer comes again."""
        listed = await self._current()
        if listed is None or digest not in listed.digests:
            return False
        if listed.is_closed(self._clock()):
            raise NotReachable(
                f"blob {digest[:16]}… is being collected at this moment",
                hint="try again in a minute",
            )
        return True

    async def _ask(self, function: Callable[..., set[str]], *arguments: object) -> set[str]:
        answer = await self._call(function, *arguments)
        assert isinstance(answer, set)
        return answer

    async def _current(self) -> Doomed | None:
        """The list, REFRESH_S old at most; none where none counts."""
        if self._collected is None or self._collected.removes_atomically:
            return None
        async with self._reading:
            if time.monotonic() - self._read_at > doomed.REFRESH_S:
                started = time.monotonic()
                made = await self._call(doomed.read, self._collected)
                assert made is None or isinstance(made, Doomed)
                self._listed, self._read_at = made, started
        if self._listed is not None and self._listed.is_over(self._clock()):
            return None
        return self._listed
