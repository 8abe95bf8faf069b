"""What a person sees while the farm works: a bar in a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from fusec.remote.protocol import JobState, JobStatus

Report = Callable[[JobStatus], None]


class Progress(Protocol):
    """Shows the waits for the farm, one at a time."""

    def waiting(self, label: str) -> AbstractContextManager[Report]:
        """Shows one wait until the context ends; gives the function to tell its statuses to."""
        ...


class Silent:
    """Shows nothing: for logs, pipes and `FUSEC_PROGRESS=0`."""

    @contextmanager
    def waiting(self, label: str) -> Iterator[Report]:
        yield _ignore


class TerminalBar:
    """A bar on stderr that goes away when the wait is over."""

    @contextmanager
    def waiting(self, label: str) -> Iterator[Report]:
        # rich is loaded by those who wait in a terminal only: a warm start must not pay for it.
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("fusec {task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
        )
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(label, total=None, detail="submitting")

            def report(status: JobStatus) -> None:
                # A total of None draws a pulse: nothing to count yet.
                total = status.kernels_total or None
                bar.update(task, completed=status.kernels_done, total=total, detail=detail(status))

            yield report


def terminal_progress(wanted: bool) -> Progress:
    """The bar when `wanted` and stderr is a terminal, else silence."""
    if wanted and sys.stderr is not None and sys.stderr.isatty():
        return TerminalBar()
    return Silent()


def detail(status: JobStatus) -> str:
    """One status in words: `queued, 3 before`, `kernels 5/12`."""
    if status.state is JobState.QUEUED:
        return f"queued, {status.position} before" if status.position else "queued"
    if status.state is JobState.COMPILING and status.kernels_total:
        return f"kernels {status.kernels_done}/{status.kernels_total}"
    return status.state.value


def _ignore(status: JobStatus) -> None:
    """Nothing is shown."""
