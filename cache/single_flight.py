"""One call at a time, whose answer all get who ask meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """A call that is under way at most once. Lives in one event loop.

    A caller that goes away does not end it for the others; what it raises all of them get.
    """

    def __init__(self, call: Callable[[], Awaitable[T]]) -> None:
        self._call = call
        self._task: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """The answer of the call that is under way, or of a new one. Raises what it raises."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        return await asyncio.shield(self._task)

    async def _run(self) -> T:
        try:
            return await self._call()
        finally:
            self._task = None
