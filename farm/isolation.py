"""Runs tasks in child processes that are limited, cut off, and may be lost.

A worker, a thread of the memory pool or a process of Ray, keeps one child and has its tasks done
there, one after the other: no network, no credentials, a folder of its own, limits on memory and on
time (`fusec.child`). Whatever happens in it costs one attempt of one task, never the worker: the
next task has another child; so it has after one that nobody wanted any more. A batch of kernels is
asked for one by one, so that it is known which of them a child was lost over; the others have their
results. What times and verifies has children of its own, which end by its own limits alone.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
from dataclasses import dataclass, replace
from typing import Any, Final

from farm.pool import Task, TaskFailed
from farm.quality_tasks import SUPERVISED
from farm.retry import ErrorKind
from farm.workers import BUILD, LOSSES, built_singly, run, single_builds
from fusec.child.offline import Network
from fusec.child.pool import Children
from fusec.errors import ChildLost
from fusec.parts import Parts

log = logging.getLogger("fusec.farm")

PROGRAM: Final = "farm.isolated_worker"
# What the compilers are told by the environment: which C compiler, which GPU is this worker's.
PASSED_ON: Final = ("CC", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
# After these a child is not what it was.
_SPOILT: Final = frozenset((ErrorKind.OUT_OF_MEMORY.value, ErrorKind.INTERNAL.value))
_OUTPUT_CHARACTERS: Final = 600
_MOST_CHILDREN: Final = 256  # as many as a process has threads that ask, and no more


@dataclass(frozen=True, slots=True)
class Isolated:
    """A `Runner`: tasks in children of ``program``.

    memory: bytes of private memory of a child and of each process that it starts. wall_s: seconds
    that a task, or one kernel of a batch, may take; cpu_s: seconds of a processor.
    """

    memory: int
    wall_s: float
    cpu_s: float
    program: str = PROGRAM

    def __call__(self, task: Task) -> Parts[bytes, bytes]:
        """Do a task. Raises TaskFailed."""
        if task.kind in SUPERVISED:
            return (yield from run(task))
        if task.kind != BUILD:
            return (yield from self._ask(task))
        results: dict[str, bytes | TaskFailed] = {}
        for digest, single in single_builds(task).items():
            try:
                results[digest] = yield from self._ask(replace(single, stop=task.stop))
            except TaskFailed as error:
                results[digest] = error
        return built_singly(results, task.node)

    def _ask(self, task: Task) -> Parts[bytes, bytes]:
        if task.stop is not None and task.stop.is_set():
            raise TaskFailed(ErrorKind.CANCELLED, "the task was cancelled")
        given = tuple((name, os.environ[name]) for name in PASSED_ON if name in os.environ)
        try:
            with _children(os.getpid(), self, given).lend() as child:
                _say_network(child.network)
                answer: dict[str, Any] = yield from child.exchange(
                    [task.kind, task.payload, task.gpu], self.wall_s, task.stop
                )
                if answer.get("kind") in _SPOILT:
                    child.close()
        except ChildLost as error:
            raise TaskFailed(LOSSES[error.loss], _told(task, error)) from error
        if "result" in answer:
            return bytes(answer["result"])
        raise TaskFailed(ErrorKind.named(str(answer["kind"])), str(answer["message"]))


def _told(task: Task, error: ChildLost) -> str:
    text = f"{task.label or task.kind}: {error.message}"
    last = error.output[-_OUTPUT_CHARACTERS:].strip()
    return f"{text}\n{last}" if last else text


@functools.cache
def _children(process: int, limits: Isolated, given: tuple[tuple[str, str], ...]) -> Children:
    """The children of this process; one that was forked from it has none of them."""
    made = Children(
        limits.program,
        _MOST_CHILDREN,
        environment=dict(given),
        memory=limits.memory,
        cpu_s=limits.cpu_s,
        idle_s=float("inf"),  # they are as old as their worker, which somebody else ends
    )
    atexit.register(made.close)
    return made


@functools.cache
def _say_network(network: Network) -> None:
    """Once a process: how its children are cut off."""
    if network is Network.SHARED:
        log.warning(
            "compilers are NOT cut off from the network: this kernel gives neither a network "
            "namespace nor a system call filter",
            extra={"action": "isolation"},
        )
    else:
        log.info("compilers have no network (%s)", network, extra={"action": "isolation"})
