"""A farm's status in words and tables, for the terminal and for the page alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cache.quantities import duration, percent
from fusec.remote.farm_status import Compiled, FarmStatus, Running, Waiting

SHORT: Final = 12  # digits of a key that are shown


@dataclass(frozen=True, slots=True)
class Listed:
    """A table: its title, the names of its columns, which of them hold numbers, and its rows."""

    title: str
    columns: tuple[str, ...]
    numbers: frozenset[str]
    rows: tuple[tuple[str, ...], ...]


def summary(status: FarmStatus) -> tuple[str, ...]:
    """The first lines: what there is and what it was good for."""
    state = (
        f"{status.pool} pool, up for {duration(status.up_s)}; "
        f"{status.in_work} jobs in work, {status.queued} waiting"
    )
    if status.seconds_saved is None:
        return (state,)
    saved = (
        f"needed no compile: {percent(status.submit_hits)} of submits, "
        f"{percent(status.kernel_hits)} of kernels; {duration(status.seconds_saved)} saved"
    )
    return state, saved


def tables(status: FarmStatus) -> tuple[Listed, ...]:
    """All tables, in the order in which they are read; some may have no rows."""
    return (
        _listed(
            "workers",
            ("class", "#workers", "#busy or next"),
            [(row.needs, row.workers, row.busy) for row in status.workers],
        ),
        _listed("jobs that wait", _QUEUE, [_queued(row) for row in status.queue]),
        _listed(
            "tasks that wait for a worker",
            ("class", *_QUEUE),
            [(row.needs, *_queued(row)) for row in status.tasks],
        ),
        _listed("jobs in work", _RUNNING, [_running(row) for row in status.running]),
        _listed("recent compiles", _COMPILED, [_compiled(row) for row in status.recent]),
        _listed("slowest graphs", _COMPILED, [_compiled(row) for row in status.slowest]),
        _listed(
            "poisoned graphs",
            ("key", "tenant", "failure", "message", "#for"),
            [
                (
                    row.fingerprint[:SHORT],
                    _tenant(row.tenant),
                    row.error,
                    row.message,
                    duration(row.left_s),
                )
                for row in status.poisoned
            ],
        ),
    )


_QUEUE: Final = ("tenant", "priority", "#waiting", "#oldest")
_RUNNING: Final = (
    "key", "tenant", "job", "stage", "#kernels", "#age", "#in stage", "#left", "#waiters"
)  # fmt: skip
_COMPILED: Final = (
    "key", "tenant", "job", "device", "outcome", "#took", "#in queue", "#kernels", "#stored",
    "#merged", "#ago",
)  # fmt: skip


def _listed(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Listed:
    """A column whose name begins with # holds numbers."""
    return Listed(
        title,
        tuple(name.lstrip("#") for name in columns),
        frozenset(name[1:] for name in columns if name.startswith("#")),
        tuple(tuple(map(str, row)) for row in rows),
    )


def _tenant(name: str) -> str:
    return name or "default"


def _queued(row: Waiting) -> Sequence[object]:
    return _tenant(row.tenant), row.priority, row.length, duration(row.oldest_s)


def _running(row: Running) -> Sequence[object]:
    return (
        row.fingerprint[:SHORT],
        _tenant(row.tenant),
        row.training_job,
        row.stage,
        f"{row.kernels_done}/{row.kernels_total}" if row.kernels_total else "",
        duration(row.age_s),
        duration(row.stage_s),
        "" if row.left_s is None else f"about {duration(row.left_s)}",
        row.waiters,
    )


def _compiled(row: Compiled) -> Sequence[object]:
    return (
        row.fingerprint[:SHORT],
        _tenant(row.tenant),
        row.training_job,
        row.device,
        row.error or "done",
        duration(row.seconds),
        duration(row.queued_s),
        row.kernels_total,
        row.kernels_stored,
        row.merged,
        duration(row.ago_s),
    )
