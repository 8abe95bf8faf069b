"""The interface of what runs tasks. Tasks and results are bytes; how they travel is the pool's.

Three implementations keep one contract: `MemoryPool` (threads of this process), `RayPool`, and
`FairPool`, which stands before another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from farm.devices import CPU
from farm.queue import NOBODY, Share
from farm.retry import ErrorKind
from fusec.parts import Parts
from fusec.remote.protocol import Priority


@dataclass(frozen=True, slots=True)
class Task:
    """A piece of work: ``kind`` names the function of `farm.workers`, ``payload`` is its input.

    ``label`` is for people and logs. ``needs`` is the class of worker (`farm.devices`); a GPU's
    has the whole GPU for the time of the task. ``avoid``: nodes on which it has failed; another is
    taken if there is one. The pool sets, where the task runs: ``gpu``, which one of those that the
    worker sees, ``node``, the worker's, and ``stop``, which it sets once nobody wants the result.
    ``share`` and ``priority`` say when its turn comes (`farm.fair_pool`). ``traceparent``: the span
    that follows it, empty where nobody does; its result then comes back behind a `farm.stamp`.
    """

    kind: str
    payload: bytes
    label: str = ""
    needs: str = CPU
    gpu: int = 0
    share: Share = NOBODY
    priority: Priority = Priority.WAITING
    avoid: frozenset[str] = frozenset()
    node: str = ""
    stop: threading.Event | None = field(default=None, compare=False)
    traceparent: str = ""


class TaskFailed(Exception):
    """A task came to no result. ``kind`` decides on a retry, the message is for people.

    ``node`` names where it was tried, as `Task.avoid` takes it; empty where that is not known.
    """

    def __init__(self, kind: ErrorKind, message: str, node: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.node = node

    def __reduce__(self) -> tuple[type[TaskFailed], tuple[ErrorKind, str, str]]:
        return TaskFailed, (self.kind, self.message, self.node)


Runner = Callable[[Task], Parts[bytes, bytes]]
"""Does a task in the worker. Raises TaskFailed; anything else counts as an internal error."""

Heard = Callable[[bytes], object]
"""Is told a part of a task's result, in a thread of the pool; must not raise, nor wait for long."""


class Pool(Protocol):
    """Runs tasks in parallel, in the order of their submission as far as there are workers."""

    @property
    def workers(self) -> int:
        """How many tasks that need a CPU run at the same time, at present."""
        ...

    def workers_of(self, needs: str) -> int:
        """How many tasks that need this class run at the same time, at present."""
        ...

    def gpu_classes(self) -> tuple[str, ...]:
        """The classes of GPUs that have a worker at present, sorted."""
        ...

    def want(self, needs: str, tasks: int) -> None:
        """So many tasks of a class are at work or wait for their turn: a pool that can grow does,
        and shrinks when they are fewer."""
        ...

    @property
    def kind(self) -> str:
        """``memory`` or ``ray``."""
        ...

    def submit(self, task: Task, heard: Heard | None = None) -> Future[bytes]:
        """Start a task; returns at once. The future raises TaskFailed and nothing else.

        heard: is told the parts of the result while the task goes on, each of them, in order,
        before the future has it. A task that fails may have told some. A task that needs a class
        without a worker waits for one to join, or fails.
        """
        ...

    def hurry(self, future: Future[bytes], priority: Priority) -> None:
        """A task is at least so urgent by now: where it waits for its turn, that comes earlier."""
        ...

    def cancel(self, future: Future[bytes]) -> None:
        """Nobody wants the result. A task that has not started never will; one that runs ends as
        soon as its runner can end it; the future ends at once."""
        ...

    def close(self) -> None:
        """Stop. Futures that are still open end with TaskFailed."""
        ...


def as_failure(error: BaseException) -> TaskFailed:
    """What a worker raised, as the one error of the interface."""
    if isinstance(error, TaskFailed):
        return error
    if isinstance(error, MemoryError):
        return TaskFailed(ErrorKind.OUT_OF_MEMORY, "the worker ran out of memory")
    return TaskFailed(ErrorKind.INTERNAL, f"{type(error).__name__}: {error}"[:1000])


def settle(future: Future[bytes], outcome: bytes | TaskFailed) -> None:
    """End a future; nothing happens if it has ended: a cancel and a result may come together."""
    with suppress(InvalidStateError):
        if isinstance(outcome, TaskFailed):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def pool_closed() -> TaskFailed:
    """What a task of a closed pool ends with."""
    return TaskFailed(ErrorKind.WORKER_LOST, "the pool is closed")
