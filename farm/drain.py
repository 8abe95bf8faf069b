"""Whether the farm begins anything new: one word for all of its gateways, which outlives them.

It is a record in the default namespace's store. An operator tells any gateway, which writes it; the
others read it every LOOK_S seconds, and each reads it before it takes anything in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from cache import key as keys
from cache import protocol as wire
from cache.digest import digest
from cache.errors import CacheError, ProtocolError
from cache.store import SwapStore
from farm.attempts import Attempts
from farm.pool import TaskFailed
from farm.retry import ErrorKind
from farm.store_calls import StoreCalls

log = logging.getLogger("fusec.farm")

RECORD: Final = f"{keys.DRAIN}/{'0' * 64}"
VERSION: Final = 1
LOOK_S: Final = 2.0
TELL_ATTEMPTS: Final = 3


class Drain:
    """What one gateway knows of it. Lives in one event loop.

    ``on`` is what was read last; while the store does not answer it stays as it is.
    """

    def __init__(self, store: SwapStore, attempts: Attempts) -> None:
        self.on = False
        self._store = store
        # A thread of its own: it must not wait behind uploads.
        self._calls = StoreCalls(attempts, 1, "farm-drain")
        self._on_change: Callable[[], None] | None = None
        self._told = 0  # what is read while somebody tells is out of date
        self._looking: asyncio.Task[None] | None = None

    async def open(self, on_change: Callable[[], None]) -> None:
        """Read it, for LOOK_S seconds at most, and keep up with it from then on."""
        self._on_change = on_change
        looked = asyncio.Event()
        self._looking = asyncio.create_task(self._keep_looking(looked), name="drain")
        with suppress(TimeoutError):
            await asyncio.wait_for(looked.wait(), LOOK_S)

    async def tell(self, *, on: bool) -> None:
        """Drain the farm, or let it go on. Raises TaskFailed where the store takes no word; it is
        asked once, since a person waits."""
        self._told += 1
        try:
            for _ in range(TELL_ATTEMPTS):
                standing = await self._calls.once(lambda: self._store.get_record(RECORD))
                if decode(standing) == on or await self._calls.once(self._swap(standing, on)):
                    self._told += 1
                    self._set(on)
                    return
        except CacheError as error:
            raise TaskFailed(ErrorKind.STORE_UNREACHABLE, f"the store: {error}") from error
        raise TaskFailed(ErrorKind.STORE_UNREACHABLE, "others tell the farm to drain, or not to")

    async def close(self) -> None:
        """Keep up no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        self._calls.close()

    async def _keep_looking(self, looked: asyncio.Event) -> None:
        answers = True
        while True:
            told = self._told
            try:
                on = decode(await self._calls.once(lambda: self._store.get_record(RECORD)))
            except CacheError as error:
                if answers:
                    text = "it cannot be read whether the farm is drained: %s"
                    log.warning(text, error, extra={"action": "drain"})
                answers = False
            else:
                answers = True
                if told == self._told:
                    self._set(on)
            looked.set()
            await asyncio.sleep(LOOK_S)

    def _swap(self, standing: bytes | None, on: bool) -> Callable[[], bool]:
        expected = None if standing is None else digest(standing)
        return lambda: self._store.swap_record(RECORD, expected, encode(on=on))

    def _set(self, on: bool) -> None:
        if on == self.on:
            return
        self.on = on
        log.info("draining" if on else "no longer draining", extra={"action": "drain"})
        if self._on_change is not None:
            self._on_change()


def encode(*, on: bool) -> bytes:
    """The record's bytes."""
    return wire.pack({"version": VERSION, "draining": on})


def decode(data: bytes | None) -> bool:
    """Whether the farm is drained, by the record or its absence. Raises ProtocolError, TooLarge."""
    if data is None:
        return False
    value = wire.unpack(data, max_bytes=wire.MAX_RECORD, max_depth=1)
    body = wire.fields(value, "a drain", ("version", "draining"))
    if body["version"] != VERSION or not isinstance(body["draining"], bool):
        raise ProtocolError(f"the farm's drain does not make sense: {body!r:.80}")
    return body["draining"]
