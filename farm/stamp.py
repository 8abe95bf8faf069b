"""When and where a task was at work, as its worker tells: those who follow the task, and of the
stages inside it everybody.

A worker has neither network nor credentials, so it exports no spans: the result of a task that is
followed (`Task.traceparent`) comes back behind a stamp, from whatever pool.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cache.protocol import Value
from farm.pool import Runner, Task, TaskFailed
from farm.retry import ErrorKind
from fusec.errors import WireError
from fusec.parts import Parts
from fusec.trace import STAGES, Lap

_STAMP: Final = struct.Struct("!QQI64s")
"""Before a result: start and end in nanoseconds of the epoch, process, host."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """A worker's time, by its own clock in nanoseconds of the epoch, and who it is."""

    start_ns: int
    end_ns: int
    process: int
    host: str


def stamped(run: Runner, task: Task) -> Parts[bytes, bytes]:
    """What a pool has a worker do: the task's result, behind a stamp if the task is followed."""
    if not task.traceparent:
        return (yield from run(task))
    started = time.time_ns()
    result = yield from run(task)
    host = socket.gethostname().encode()[:64]
    return _STAMP.pack(started, time.time_ns(), os.getpid(), host) + result


def split(result: bytes) -> tuple[Stamp, bytes]:
    """The stamp and the result behind it. Raises TaskFailed where there is no stamp."""
    if len(result) < _STAMP.size:
        raise TaskFailed(ErrorKind.INTERNAL, "no stamp on the result of a task that is followed")
    started, ended, process, host = _STAMP.unpack_from(result)
    name = host.rstrip(bytes(1)).decode(errors="replace")
    return Stamp(started, ended, process, name), result[_STAMP.size :]


def laps_to_wire(laps: Iterable[Lap]) -> Value:
    """A worker's stages as a part of its result; `laps_from_wire` reads them."""
    return [[lap.stage, lap.start_ns, lap.end_ns] for lap in laps]


def laps_from_wire(value: Value) -> tuple[Lap, ...]:
    """Raises WireError for anything that `laps_to_wire` does not write."""
    if not isinstance(value, list):
        raise WireError("the stages of a worker are no list")
    return tuple(_lap(item) for item in value)


def _lap(item: Value) -> Lap:
    if isinstance(item, list) and len(item) == 3:
        stage, start_ns, end_ns = item
        if stage in STAGES and isinstance(start_ns, int) and isinstance(end_ns, int):
            return Lap(str(stage), start_ns, end_ns)
    raise WireError("not a stage of a worker")
