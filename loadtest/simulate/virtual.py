"""An event loop whose time is computed: it jumps to the next timer when nothing is left to run.

Nothing sleeps and there are no threads, so a run is as long as its Python and always the same. Code
that hands blocking work to an executor runs unchanged: the work is done in the loop, and ends after
the seconds that it says it takes (`VirtualLoop.charge`).
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final, TypeVar

T = TypeVar("T")

DEFAULT_THREADS: Final = 32  # of the executor behind `asyncio.to_thread`
TURN_S: Final = 1e-9
"""What a turn of the loop takes: a moment that was waited for is over, and not nearly so."""
LONGEST_S: Final = 7 * 86400.0


class Deadlock(RuntimeError):
    """Nothing is ready, no timer runs, and the main task has not ended."""


class OutOfTime(RuntimeError):
    """The simulated time has passed its end: something waits, or is tried, for ever."""


class Gone(Exception):
    """Raised by simulated blocking work whose host has died: its caller never hears again."""


@dataclass(slots=True)
class Meter:
    """``seconds`` that a piece of blocking work takes, once it is over."""

    seconds: float = 0.0


class _Timeline(selectors.SelectSelector):
    """Where a loop would wait for sockets, the clock goes on."""

    def __init__(self, longest_s: float) -> None:
        super().__init__()
        self.now = 0.0
        self._longest_s = longest_s

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("nothing is left that could happen")
        self.now += max(0.0, timeout) + TURN_S
        if self.now > self._longest_s:
            raise OutOfTime(f"{self._longest_s:g} simulated seconds are over")
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module. ``longest_s`` ends a run that would go on for ever."""

    def __init__(self, longest_s: float = LONGEST_S) -> None:
        self._timeline = _Timeline(longest_s)
        super().__init__(self._timeline)
        self._lanes: dict[Executor | None, asyncio.Semaphore] = {}
        self._charged = 0.0

    def time(self) -> float:
        """Simulated seconds since the loop was made."""
        return self._timeline.now

    @property
    def charged(self) -> float:
        """Seconds charged so far by the blocking work that is being done."""
        return self._charged

    def charge(self, seconds: float) -> None:
        """Called by the blocking work that is being done: it takes so much longer."""
        self._charged += seconds

    @contextmanager
    def metered(self) -> Iterator[Meter]:
        """What is charged inside the block is charged to it alone."""
        outer, self._charged = self._charged, 0.0
        meter = Meter()
        try:
            yield meter
        finally:
            meter.seconds, self._charged = self._charged, outer

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """There is one thread only: no need to wake it."""
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """As many at once as the executor has threads; each as long as it charges."""
        return self.create_task(self._blocking(self._lane(executor), lambda: func(*args)))

    async def _blocking(self, lane: asyncio.Semaphore, work: Callable[[], T]) -> T:
        async with lane:
            try:
                with self.metered() as meter:
                    return work()
            except Gone:
                meter.seconds = math.inf  # a timer that never comes, and keeps the caller alive
                raise
            finally:
                await asyncio.sleep(meter.seconds)

    def _lane(self, executor: Executor | None) -> asyncio.Semaphore:
        lane = self._lanes.get(executor)
        if lane is None:
            # The number is in no public place; a pool that is no thread pool counts as the default.
            pool = isinstance(executor, ThreadPoolExecutor)
            width = executor._max_workers if pool else DEFAULT_THREADS  # type: ignore[union-attr]
            lane = self._lanes[executor] = asyncio.Semaphore(width)
        return lane


def run(
    main: Callable[[VirtualLoop], Coroutine[Any, Any, T]], *, longest_s: float = LONGEST_S
) -> T:
    """Run `main(loop)` in simulated time. Raises Deadlock, OutOfTime, and what it does."""
    loop = VirtualLoop(longest_s)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main(loop))
