"""What a person sees while the farm works: a line in a terminal that keeps changing, lines of a log
elsewhere; nothing for waits that are over soon."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final, Protocol

from fusec.remote.protocol import JobState, JobStatus

log = logging.getLogger("fusec.remote")

Report = Callable[[JobStatus], None]

SHOWN_AFTER_S: Final = 3.0
LOGGED_AFTER_S: Final = 5.0
LOGGED_EVERY_S: Final = 30.0


class Progress(Protocol):
    """Shows the waits for the farm, one at a time."""

    def waiting(self, label: str) -> AbstractContextManager[Report]:
        """Shows one wait until the context ends; gives the function to tell its statuses to."""
        ...


class Silent:
    """Shows nothing: `FUSEC_PROGRESS=0`."""

    @contextmanager
    def waiting(self, label: str) -> Iterator[Report]:
        yield _ignore


class LogLines:
    """A line of the log now and then, where stderr is a file or a pipe.

    The first one of a process is a warning, since Python shows no others unless it is told to.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._warned = False

    @contextmanager
    def waiting(self, label: str) -> Iterator[Report]:
        due = self._clock() + LOGGED_AFTER_S

        def report(status: JobStatus) -> None:
            nonlocal due
            if status.state.final or self._clock() < due:
                return
            due = self._clock() + LOGGED_EVERY_S
            level = logging.INFO if self._warned else logging.WARNING
            more = "" if self._warned else " (FUSEC_PROGRESS=0 hides this)"
            self._warned = True
            log.log(level, "fusec: waiting for the farm: %s: %s%s", label, detail(status), more)

        yield report


class TerminalLine:
    """A bar on stderr that comes when a wait takes long, and goes away when it is over.

    There is one terminal: of waits in several threads one is shown.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._terminal = threading.Lock()

    @contextmanager
    def waiting(self, label: str) -> Iterator[Report]:
        started = self._clock()
        show: Report | None = None
        with ExitStack() as stack:

            def report(status: JobStatus) -> None:
                nonlocal show
                late = self._clock() - started >= SHOWN_AFTER_S
                if show is None and late and self._terminal.acquire(blocking=False):
                    stack.callback(self._terminal.release)
                    show = stack.enter_context(_bar(label))
                if show is not None:
                    show(status)

            yield report


@contextmanager
def _bar(label: str) -> Iterator[Report]:
    # rich is loaded by those who wait in a terminal only: a warm start must not pay for it.
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        SpinnerColumn("line"),
        TextColumn("fusec {task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[detail]}"),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None, detail="")

        def report(status: JobStatus) -> None:
            # A total of None draws a pulse: nothing to count yet.
            total = status.kernels_total or None
            bar.update(task, completed=status.kernels_done, total=total, detail=detail(status))

        yield report


def open_progress(wanted: bool) -> Progress:
    """How waits are shown by this process, if they are."""
    if not wanted or sys.stderr is None:
        return Silent()
    return TerminalLine() if sys.stderr.isatty() else LogLines()


def detail(status: JobStatus) -> str:
    """One status in words: `queued, 3 before, about 2 min left`, `kernels 5/12`."""
    if status.state is JobState.QUEUED:
        text = f"queued, {status.position} before" if status.position else "queued, next"
    elif status.state is JobState.COMPILING and status.kernels_total:
        text = f"kernels {status.kernels_done}/{status.kernels_total}"
    else:
        text = status.state.value
    left = "" if status.left_s is None or status.state.final else _about(status.left_s)
    return f"{text}, {left} left" if left else text


def _about(seconds: float) -> str:
    """A duration as exactly as an estimate is."""
    if seconds < 1.5:
        return "about 1 s"
    if seconds < 90.0:
        return f"about {seconds:.0f} s"
    return (
        f"about {seconds / 60.0:.0f} min" if seconds < 5400.0 else f"about {seconds / 3600:.0f} h"
    )


def _ignore(status: JobStatus) -> None:
    """Nothing is shown."""
