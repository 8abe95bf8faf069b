"""Simulated workers on nodes, and the pool that a gateway has of them.

Tasks start in the order of their submission as workers come free, as on Ray. What a task does is
`farm.workers.run` over simulated stages: the bytes that go in and out are the real ones.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from farm.devices import CPU
from farm.pool import Heard, Pool, Runner, Task, TaskFailed, settle
from farm.retry import ErrorKind
from fusec.parts import finish, unheard
from fusec.remote.protocol import Priority
from loadtest.costs.model import Tasks
from loadtest.simulate.host import Host
from loadtest.simulate.stages import WorkerDied
from loadtest.simulate.tally import Tally
from loadtest.simulate.virtual import VirtualLoop

NODE_NOTICED_S = 10.0  # until Ray takes a node that is silent for dead, by its health checks
NODE_BACK_S = 60.0  # until another one has joined in its place


@dataclass(frozen=True, slots=True)
class Nodes:
    """``cpu`` workers in all, ``per_node`` of them a node, and GPU workers by class."""

    cpu: int
    per_node: int = 16
    gpus: Mapping[str, int] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class _Worker:
    node: int
    needs: str
    entry: _Entry | None = None
    gone: bool = False


@dataclass(eq=False, slots=True)
class _Entry:
    task: Task
    future: Future[bytes]
    host: Host
    heard: Heard
    timer: asyncio.TimerHandle | None = None
    worker: _Worker | None = None


_Step: TypeAlias = tuple[float, Callable[[], None]]


class Cluster:
    """All workers; shared by the pools of all gateways."""

    def __init__(
        self, loop: VirtualLoop, nodes: Nodes, run: Runner, costs: Tasks, tally: Tally
    ) -> None:
        self._loop = loop
        self._run = run
        self._costs = costs
        self._tally = tally
        self._waiting: dict[str, deque[_Entry]] = {}
        self._free: dict[str, list[_Worker]] = {}
        self._workers: list[_Worker] = []
        for number in range(nodes.cpu):
            self._add(_Worker(number // nodes.per_node, CPU))
        for needs, count in nodes.gpus.items():
            for number in range(count):
                self._add(_Worker(-1 - number, needs))

    def count(self, needs: str) -> int:
        """Workers of a class that are there."""
        return sum(1 for worker in self._workers if worker.needs == needs and not worker.gone)

    def classes(self) -> tuple[str, ...]:
        return tuple(sorted({worker.needs for worker in self._workers} - {CPU}))

    def enqueue(self, entry: _Entry) -> None:
        """A task has arrived at the cluster."""
        if not entry.future.done() and entry.host.lives():
            self._waiting.setdefault(entry.task.needs, deque()).append(entry)
            self._dispatch(entry.task.needs)

    def cancel(self, entry: _Entry) -> None:
        """Kill a task with its worker's process, or see to it that it never starts."""
        worker = entry.worker
        if worker is not None:
            self._end(worker, self._costs.worker_start_s)

    def lose_worker(self, rng: random.Random) -> None:
        """A worker's process dies, whatever it does; its node starts another one."""
        worker = rng.choice(self._workers)
        if worker.gone:
            return
        entry = worker.entry
        if entry is not None:
            self._end(worker, self._costs.worker_start_s)
            self._fail(entry, 0.0, "the worker's process died", _name(worker))

    def lose_node(self, rng: random.Random) -> None:
        """A node with all its workers is gone; another one takes its place after a while."""
        node = rng.choice([worker.node for worker in self._workers])
        for worker in self._workers:
            if worker.node != node or worker.gone:
                continue
            entry = worker.entry
            if entry is not None:
                self._end(worker, NODE_BACK_S)
                self._fail(entry, NODE_NOTICED_S, "its node has died", _name(worker))
            elif worker in self._free[worker.needs]:
                self._free[worker.needs].remove(worker)
                self._loop.call_later(NODE_BACK_S, self._ready, worker)
            worker.gone = True

    def tasks_of(self, host: Host) -> int:
        """How many tasks of a gateway are in work."""
        return sum(1 for w in self._workers if w.entry is not None and w.entry.host is host)

    def host_died(self, host: Host) -> None:
        """A gateway is gone, and Ray ends the tasks of a driver that is."""
        for worker in self._workers:
            if worker.entry is not None and worker.entry.host is host:
                self._end(worker, self._costs.worker_start_s)

    def _add(self, worker: _Worker) -> None:
        self._workers.append(worker)
        self._free.setdefault(worker.needs, []).append(worker)

    def _dispatch(self, needs: str) -> None:
        waiting, free = self._waiting.get(needs), self._free.get(needs)
        while waiting and free:
            entry = waiting.popleft()
            if not entry.future.done() and entry.host.lives():
                self._start(entry, _taken(free, entry.task.avoid))

    def _start(self, entry: _Entry, worker: _Worker) -> None:
        worker.entry, entry.worker = entry, worker
        self._tally.started(entry.task)
        outcome: bytes | TaskFailed
        died = False
        parts: list[tuple[float, bytes]] = []
        with self._loop.metered() as meter:
            try:
                outcome = finish(
                    self._run(entry.task), lambda part: parts.append((self._loop.charged, part))
                )
            except TaskFailed as error:
                outcome = error
            except WorkerDied:
                died = True
                text = "the worker's process died"
                outcome = TaskFailed(ErrorKind.WORKER_LOST, text, _name(worker))
        end = partial(self._done, worker, entry, outcome, died)
        steps = [(at, partial(self._send, entry, part)) for at, part in parts]
        self._go_on(entry, 0.0, iter([*steps, (meter.seconds, end)]))

    def _done(
        self, worker: _Worker, entry: _Entry, outcome: bytes | TaskFailed, died: bool
    ) -> None:
        self._end(worker, self._costs.worker_start_s if died else 0.0)
        self._loop.call_later(self._costs.round_trip_s / 2, self._settle, entry, outcome)

    def _end(self, worker: _Worker, back_s: float) -> None:
        """The worker is through with its task, whatever became of it."""
        entry = worker.entry
        assert entry is not None
        assert entry.timer is not None
        entry.timer.cancel()
        worker.entry, entry.worker = None, None
        self._tally.ended(entry.task)
        if back_s > 0:
            self._loop.call_later(back_s, self._ready, worker)
        else:
            self._ready(worker)

    def _ready(self, worker: _Worker) -> None:
        worker.gone = False
        self._free[worker.needs].append(worker)
        self._dispatch(worker.needs)

    def _fail(self, entry: _Entry, after_s: float, text: str, node: str) -> None:
        self._tally.lost += 1
        failure = TaskFailed(ErrorKind.WORKER_LOST, text, node)
        self._loop.call_later(after_s, self._settle, entry, failure)

    def _go_on(self, entry: _Entry, now_s: float, steps: Iterator[_Step]) -> None:
        """Wait for the next of a task's steps, which are in seconds since it has begun."""
        at, step = next(steps)

        def due() -> None:
            step()
            if entry.worker is not None:
                self._go_on(entry, at, steps)

        entry.timer = self._loop.call_later(at - now_s, due)

    def _send(self, entry: _Entry, part: bytes) -> None:
        self._loop.call_later(self._costs.round_trip_s / 2, self._tell, entry, part)

    def _tell(self, entry: _Entry, part: bytes) -> None:
        if entry.host.lives() and not entry.future.done():
            entry.host.core.reserve(self._costs.part_cpu_s)  # what it starts comes after that
            entry.heard(part)

    def _settle(self, entry: _Entry, outcome: bytes | TaskFailed) -> None:
        if entry.host.lives():
            settle(entry.future, outcome)


def _taken(free: list[_Worker], avoid: frozenset[str]) -> _Worker:
    """The last free worker on a node that is not to be avoided, or any if there is none."""
    fit = (at for at in reversed(range(len(free))) if _name(free[at]) not in avoid)
    return free.pop(next(fit, -1) if avoid else -1)


def _name(worker: _Worker) -> str:
    return f"node-{worker.node}"


class SimulatedPool:
    """One gateway's `Pool`: its processor pays for each task, then the cluster has it."""

    kind = "simulated"

    def __init__(self, loop: VirtualLoop, cluster: Cluster, host: Host, costs: Tasks) -> None:
        self._loop = loop
        self._cluster = cluster
        self._host = host
        self._costs = costs
        self._open: dict[Future[bytes], _Entry] = {}

    @property
    def workers(self) -> int:
        """See `Pool`."""
        return self._cluster.count(CPU)

    def workers_of(self, needs: str) -> int:
        """See `Pool`."""
        return self._cluster.count(needs)

    def gpu_classes(self) -> tuple[str, ...]:
        """See `Pool`."""
        return self._cluster.classes()

    def want(self, needs: str, tasks: int) -> None:
        """See `Pool`. The simulated cluster does not grow."""

    def submit(self, task: Task, heard: Heard | None = None) -> Future[bytes]:
        """See `Pool`."""
        future: Future[bytes] = Future()
        entry = self._open[future] = _Entry(task, future, self._host, heard or unheard)
        future.add_done_callback(lambda ended: self._open.pop(ended, None))
        paid_s = self._host.core.reserve(self._costs.gateway_cpu_s)
        self._loop.call_later(paid_s + self._costs.round_trip_s / 2, self._cluster.enqueue, entry)
        return future

    def hurry(self, future: Future[bytes], priority: Priority) -> None:
        """See `Pool`. The order of this one is that of submission."""

    def cancel(self, future: Future[bytes]) -> None:
        """See `Pool`."""
        entry = self._open.get(future)
        if entry is not None and self._host.lives():
            self._cluster.cancel(entry)
        settle(future, TaskFailed(ErrorKind.CANCELLED, "the task was cancelled"))

    def close(self) -> None:
        """See `Pool`. The simulation ends with it."""


_CONTRACT: type[Pool] = SimulatedPool
