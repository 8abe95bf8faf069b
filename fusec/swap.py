"""The policy `async`: a graph runs eager at once, and compiled from the call after it is ready."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from fusec.errors import FusecError
from fusec.faults import contained


class Swap:
    """Calls `eager` until `prepare` has returned, then `compiled`.

    A call is wholly the one or the other, and a backward belongs to its forward's kind: the change
    is between two calls, which is the one point where nothing of a graph is under way. `prepare`
    runs in a thread. When it raises FusecError or has a fault, `failed` is told and eager stays.
    """

    def __init__(
        self,
        eager: Callable[..., Any],
        compiled: Callable[..., Any],
        prepare: Callable[[], None],
        *,
        ready: Callable[[], None],
        failed: Callable[[FusecError], None],
    ) -> None:
        self._run = eager
        self._compiled = compiled
        self._prepare = prepare
        self._ready = ready
        self._failed = failed
        work = partial(contextvars.copy_context().run, self._work)  # spans belong to the graph's
        self._thread = threading.Thread(target=work, name="fusec-swap", daemon=True)

    def __call__(self, *inputs: Any) -> Any:
        return self._run(*inputs)

    def start(self) -> None:
        """Begin to prepare; returns at once."""
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until it has been decided which of the two stays."""
        self._thread.join(timeout_s)

    def _work(self) -> None:
        try:
            with contained("compiling beside the eager run"):
                self._prepare()
        except FusecError as error:
            self._failed(error)
            return
        self._run = self._compiled
        self._ready()
