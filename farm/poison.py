"""Kernels that have failed for good a moment ago: not tried again by every graph that holds them.

Plain data that is told the time. A graph's own failure is remembered by `farm.book`; this is for
another graph with the same kernel in it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from farm.pool import TaskFailed
from farm.retry import RULES

MOST: Final = 10_000


class Poison:
    """Failures by kernel, for as long as `farm.retry` says of their kind."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._known: OrderedDict[str, tuple[TaskFailed, float]] = OrderedDict()

    def remember(self, key: str, error: TaskFailed, now: float) -> None:
        """A kernel was given up. The oldest is forgotten where there are too many."""
        until = now + RULES[error.kind].remember_s
        self._known.pop(key, None)
        if until <= now:
            return
        self._known[key] = TaskFailed(error.kind, error.message), until
        while len(self._known) > self._most:
            self._known.popitem(last=False)

    def recall(self, key: str, now: float) -> TaskFailed | None:
        """Why the kernel is not tried now; None if it may be."""
        error, until = self._known.get(key, (None, 0.0))
        if error is not None and now >= until:
            del self._known[key]
            return None
        return error
