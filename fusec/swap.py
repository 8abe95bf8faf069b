"""A Dynamo graph's callable that may be exchanged between two calls (policy `async`)."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from fusec.errors import FusecError
from fusec.faults import contained

Function = Callable[..., Any]
"""Takes the inputs of a Dynamo graph, returns its outputs."""


class Swap:
    """Calls what it was given last.

    A call is wholly the one or the other, and a backward belongs to its forward's: each callable
    has autograd functions of its own. So the change is between two calls, which is the one point
    where nothing of a graph is under way.
    """

    def __init__(self, run: Function) -> None:
        self._run = run

    def __call__(self, *inputs: Any) -> Any:
        return self._run(*inputs)

    def put(self, run: Function) -> None:
        """Call this one from the next call on. May come from any thread."""
        self._run = run

    def prepare(
        self,
        work: Callable[[], Function],
        *,
        ready: Callable[[], None],
        failed: Callable[[FusecError], None],
    ) -> threading.Thread:
        """Do `work` in a thread, and call from then on what it returns.

        `ready` is told. When it raises FusecError or has a fault, `failed` is told instead, and
        nothing changes.
        """

        def run() -> None:
            try:
                with contained("compiling beside the eager run"):
                    made = work()
            except FusecError as error:
                failed(error)
                return
            self.put(made)
            ready()

        # In a copy of this context, so that its spans belong to the graph's.
        target = partial(contextvars.copy_context().run, run)
        thread = threading.Thread(target=target, name="fusec-swap", daemon=True)
        thread.start()
        return thread
