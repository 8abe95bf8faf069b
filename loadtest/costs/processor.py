"""Processor time of a piece of work with its child processes: what stays true on a busy machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Spent:
    """``cpu_s``: seconds of processor time, once the block is over."""

    cpu_s: float = 0.0


@contextmanager
def spending() -> Iterator[Spent]:
    """Counts this process and its children, those that live on as well as those that ended."""
    spent = Spent()
    before = _tree_s()
    yield spent
    spent.cpu_s = max(0.0, _tree_s() - before)


def process_cpu_s(pid: int) -> float:
    """User and system seconds of a process so far, and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(value) for value in fields[11:15]) / _TICK


def _tree_s() -> float:
    here = time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID)
    ended = os.times()
    return here + ended.children_user + ended.children_system + sum(map(_live_s, _children()))


def _live_s(pid: int) -> float:
    try:
        return process_cpu_s(pid) + sum(map(_live_s, _children(pid)))
    except OSError:
        return 0.0  # it has just ended: counted with those that did


def _children(pid: int | None = None) -> list[int]:
    """Direct children, of all threads."""
    found: list[int] = []
    for task in Path(f"/proc/{pid or os.getpid()}/task").iterdir():
        try:
            found += [int(text) for text in (task / "children").read_text().split()]
        except OSError:
            continue
    return found
