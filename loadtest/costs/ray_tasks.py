"""Measures Ray: what a task costs that does nothing, and how long a lost worker is away."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from farm.pool import Pool, Task, TaskFailed
from fusec.parts import Parts, unheard
from loadtest.costs.model import Tasks

PART_BYTES: Final = 100_000  # of a few kernels' sources with their variants


def work(task: Task) -> Parts[bytes, bytes]:
    """Nothing, as many parts as the payload says, or the end of the worker's process."""
    if task.kind == "die":
        os._exit(3)
    for _ in range(int(task.payload or b"0")):
        yield bytes(PART_BYTES)
    return b""


def measure(count: int, say: Callable[[str], None]) -> Tasks:
    """Start a Ray on this machine and give it `count` tasks. Needs the extra `farm`."""
    # Ray comes with an extra and takes seconds to import.
    from farm.ray_pool import RayPool

    say("Ray")
    pool: Pool = RayPool(work, workers=2)
    try:
        for _ in range(8):
            pool.submit(Task("nothing", b"")).result()
        begin = time.process_time()
        for future in [pool.submit(Task("nothing", b"")) for _ in range(count)]:
            future.result()
        gateway_cpu_s = (time.process_time() - begin) / count
        begin = time.process_time()
        pool.submit(Task("nothing", b"%d" % count), unheard).result()
        part_cpu_s = (time.process_time() - begin) / count
        round_trips = sorted(_timed(pool, "nothing") for _ in range(max(20, count // 10)))
        say("Ray, workers that die")
        away = sorted(_lost(pool, round_trips[0]) for _ in range(5))
        return Tasks(gateway_cpu_s, part_cpu_s, round_trips[len(round_trips) // 10], away[0])
    finally:
        pool.close()


def _timed(pool: Pool, kind: str) -> float:
    begin = time.perf_counter()
    with suppress(TaskFailed):
        pool.submit(Task(kind, b"")).result()
    return time.perf_counter() - begin


def _lost(pool: Pool, round_trip_s: float) -> float:
    """Kill both workers; seconds until one of them does a task again."""
    for future in [pool.submit(Task("die", b"")) for _ in range(2)]:
        with suppress(TaskFailed):
            future.result()
    return max(0.0, _timed(pool, "nothing") - round_trip_s)
