"""Runs a task on the pool until it succeeds or `farm.retry` says that it is enough."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from farm.metrics import FarmMetrics
from farm.pool import Heard, Pool, Task, TaskFailed
from farm.retry import Again, ErrorKind, decide
from farm.tracing import FarmTracing
from farm.urgency import Urgency


@dataclass(frozen=True, slots=True)
class Attempts:
    """Tasks of one pool, each tried within `timeout_s` seconds (the wait for a worker included).

    spread: draws from 0 to 1, see `farm.retry.decide`. sleep: waits out the delays.
    """

    pool: Pool
    metrics: FarmMetrics
    timeout_s: float
    tracing: FarmTracing = field(default_factory=FarmTracing)
    spread: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def once(
        self, task: Task, urgency: Urgency | None = None, heard: Heard | None = None
    ) -> bytes:
        """One try. Raises TaskFailed; when cancelled, the pool forgets the task.

        urgency: of the work that the task is a part of, by default the task's own for ever.
        heard: is told the parts of the result, in this event loop, before the result is there;
        after a failure maybe some more.
        """
        urgency = urgency or Urgency(task.priority)
        with self.tracing.attempt(task) as followed:
            return self.tracing.opened(followed, await self._result(followed, urgency, heard))

    async def _result(self, task: Task, urgency: Urgency, heard: Heard | None) -> bytes:
        future = urgency.submit(self.pool, task, None if heard is None else _here(heard))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self.timeout_s)
        except TimeoutError:
            raise TaskFailed(
                ErrorKind.TIMEOUT, f"no result within {self.timeout_s:g} s: {task.label}"
            ) from None
        finally:
            urgency.over(future)
            if not future.done() or future.cancelled():
                self.pool.cancel(future)

    async def run(
        self, task: Task, urgency: Urgency | None = None, heard: Heard | None = None
    ) -> bytes:
        """Try as often as the kind of failure allows; each try tells its parts. Raises the last
        TaskFailed.

        urgency, heard: as of `once`.
        """
        attempt = 1
        while True:
            try:
                return await self.once(task, urgency, heard)
            except TaskFailed as error:
                verdict = await self.after(error, attempt)
                if verdict is None:
                    raise
                task = replace(task, avoid=avoided(task.avoid, error))
            attempt += 1

    async def after(self, error: TaskFailed, attempt: int) -> Again | None:
        """Count a failure; wait out the delay if another try is due, None if it is not."""
        self.metrics.errors.labels(error.kind.value).inc()
        verdict = decide(error.kind, attempt, self.spread())
        if not isinstance(verdict, Again):
            return None
        self.metrics.retries.labels(error.kind.value).inc()
        await self.sleep(verdict.delay_s)
        return verdict


def _here(heard: Heard) -> Heard:
    """The same for other threads, as this task of this event loop."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()

    def tell(part: bytes) -> None:
        loop.call_soon_threadsafe(heard, part, context=context)

    return tell


def avoided(avoid: frozenset[str], error: TaskFailed) -> frozenset[str]:
    """The nodes that the next try is kept from."""
    return avoid | {error.node} if error.node else avoid
