"""Children of one program, kept for the next request and replaced when lost."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from fusec.child.process import IDLE_S, Child

MOST_REQUESTS: Final = 500  # then another takes over: what a library leaks does not add up


class Children:
    """At most ``limit`` children at work at once, from any threads; see `Child` for the rest."""

    def __init__(
        self,
        module: str,
        limit: int,
        *,
        environment: Mapping[str, str],
        memory: int | None = None,
        cpu_s: float | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        self._module = module
        self._environment = dict(environment)
        self._memory, self._cpu_s, self._idle_s = memory, cpu_s, idle_s
        self._process = os.getpid()
        self._slots = threading.Semaphore(limit)
        self._lock = threading.Lock()
        self._idle: list[Child] = []

    @contextmanager
    def lend(self) -> Iterator[Child]:
        """A child for this block alone; one that is closed in it is not lent again.

        Raises ChildLost when none starts.
        """
        with self._slots:
            child = self._take()
            try:
                yield child
            except BaseException:  # who knows in the middle of what
                child.close()
                raise
            if child.requests >= MOST_REQUESTS:
                child.close()
            if child.usable:
                with self._lock:
                    self._idle.append(child)

    def close(self) -> None:
        """End the children that have no work, unless they are of the process that this one was
        forked from."""
        if os.getpid() != self._process:
            return
        with self._lock:
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()

    def _take(self) -> Child:
        while True:
            with self._lock:
                child = self._idle.pop() if self._idle else None
            if child is None:
                return Child(
                    self._module,
                    environment=self._environment,
                    memory=self._memory,
                    cpu_s=self._cpu_s,
                    idle_s=self._idle_s,
                )
            if child.usable:
                return child
            child.close()
