"""Calls of a store from an event loop: in threads, tried again while that helps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from cache.errors import CacheError, Fenced, NotReachable
from farm.attempts import Attempts
from farm.pool import TaskFailed
from farm.retry import ErrorKind

T = TypeVar("T")


class StoreCalls:
    """At most `threads` calls at once, which are `name` in a list of threads."""

    def __init__(self, attempts: Attempts, threads: int, name: str) -> None:
        self._attempts = attempts
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def once(self, work: Callable[[], T]) -> T:
        """One try. Raises what the store raises."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def call(self, work: Callable[[], T]) -> T:
        """Raises TaskFailed; Fenced where the writer's lease is over."""
        attempt = 1
        while True:
            try:
                return await self.once(work)
            except Fenced:
                raise
            except CacheError as error:
                kind = (
                    ErrorKind.STORE_UNREACHABLE
                    if isinstance(error, NotReachable)
                    else ErrorKind.STORE_REFUSED
                )
                failure = TaskFailed(kind, f"the store: {error}")
                if await self._attempts.after(failure, attempt) is None:
                    raise failure from error
            attempt += 1

    def close(self) -> None:
        """Calls that have not begun never will."""
        self._threads.shutdown(wait=False, cancel_futures=True)
