"""Builds under every failure there is: a state machine over the real `KernelBuilds`.

The pool is the test's: what is submitted waits until a rule ends it, in one of all ways. The delays
between attempts are of a clock of the test's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from prometheus_client import CollectorRegistry

from cache.digest import digest
from cache.protocol import pack, unpack
from farm.attempts import Attempts
from farm.kernels import Flight, KernelBuilds
from farm.metrics import FarmMetrics
from farm.poison import Poison
from farm.pool import Heard, Pool, Task, TaskFailed, settle
from farm.queue import NOBODY
from farm.retry import RULES, ErrorKind
from farm.urgency import Urgency
from farm.workers import PlannedKernel, built, built_singly
from fusec.options import Target
from fusec.remote.protocol import Priority

WAITING = Priority.WAITING
TARGET = Target("cpu", "x86-64-v3")
NAMES = tuple("abcdefgh")
NODES = ("n1", "n2", "n3")
# What a pool may say of a task; the store's are not of it.
FAULTS = (
    ErrorKind.COMPILE_ERROR, ErrorKind.CRASHED, ErrorKind.WORKER_LOST, ErrorKind.TIMEOUT,
    ErrorKind.OUT_OF_MEMORY, ErrorKind.INTERNAL, ErrorKind.OTHER_RELEASE,
)  # fmt: skip


def _kernel(name: str) -> PlannedKernel:
    source = name.encode()
    return PlannedKernel(digest(source), f"kernel/{name}", source)


class HeldPool:
    """Holds what is submitted until the test ends it."""

    kind = "held"
    workers = 1

    def __init__(self) -> None:
        self.open: list[tuple[Task, Future[bytes]]] = []

    def workers_of(self, needs: str) -> int:
        return 1

    def gpu_classes(self) -> tuple[str, ...]:
        return ()

    def want(self, needs: str, tasks: int) -> None:
        """It is as large as it is."""

    def submit(self, task: Task, heard: Heard | None = None) -> Future[bytes]:
        future: Future[bytes] = Future()
        self.open.append((task, future))
        return future

    def hurry(self, future: Future[bytes], priority: Priority) -> None:
        """It has no order."""

    def cancel(self, future: Future[bytes]) -> None:
        self.open = [(t, f) for t, f in self.open if f is not future]
        settle(future, TaskFailed(ErrorKind.CANCELLED, "cancelled"))

    def close(self) -> None:
        """There is nothing to stop."""


_CONTRACT: type[Pool] = HeldPool


def _keys(task: Task) -> list[str]:
    body = unpack(task.payload, max_bytes=1 << 20)
    return [item[1] for item in body["kernels"]]


@dataclass
class Sleeper:
    until: float
    woken: asyncio.Event


class Retries(RuleBasedStateMachine):
    """``tries``: how often a kernel was handed to the pool since its flight began."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.now = 0.0
        self.sleepers: list[Sleeper] = []
        self.pool = HeldPool()
        self.tries: Counter[str] = Counter()
        self.alone: set[str] = set()
        self.failed_on: dict[str, set[str]] = {}
        self.jobs: list[list[Flight]] = []
        self.published: Counter[str] = Counter()
        self.seen: set[int] = set()
        self.known_until: dict[str, float] = {}
        metrics = FarmMetrics(CollectorRegistry())
        attempts = Attempts(self.pool, metrics, 1e6, spread=lambda: 0.5, sleep=self._sleep)
        self.builds = KernelBuilds(attempts, self._publish, metrics, clock=lambda: self.now)

    async def _sleep(self, seconds: float) -> None:
        assert 0.0 <= seconds <= 8.0
        sleeper = Sleeper(self.now + seconds, asyncio.Event())
        self.sleepers.append(sleeper)
        await sleeper.woken.wait()

    async def _publish(self, key: str, binary: bytes) -> None:
        self.published[key] += 1

    def _run(self) -> None:
        """Let everything happen that can, without anything new."""

        async def turns() -> None:
            for _ in range(60):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())
        for task, future in self.pool.open:
            if id(future) not in self.seen:
                self.seen.add(id(future))
                self._check_new(task)

    def _check_new(self, task: Task) -> None:
        keys = _keys(task)
        for key in keys:
            self.tries[key] += 1
            assert self.tries[key] <= 3, "three attempts at most"
            assert task.avoid == self.failed_on.get(key, set()), "another node"
            assert key not in self.alone or len(keys) == 1, "alone, to find the one at fault"
            assert self.now >= self.known_until.get(key, 0.0), "poison is not tried"

    def _end_flight(self, key: str) -> None:
        self.tries.pop(key, None)
        self.alone.discard(key)
        self.failed_on.pop(key, None)

    def _failed(self, key: str, kind: ErrorKind, node: str) -> None:
        """What the table says of one more failure."""
        if self.tries[key] >= RULES[kind].attempts:
            self._end_flight(key)
            self.known_until[key] = self.now + RULES[kind].remember_s
            return
        self.failed_on.setdefault(key, set()).add(node)
        if RULES[kind].alone:
            self.alone.add(key)

    @rule(names=st.sets(st.sampled_from(NAMES), min_size=1))
    def submit(self, names: set[str]) -> None:
        async def start() -> list[Flight]:
            return self.builds.start(
                [_kernel(name) for name in sorted(names)], TARGET, NOBODY, Urgency(WAITING)
            )

        self.jobs.append(self.loop.run_until_complete(start()))
        self._run()

    @precondition(lambda self: self.pool.open)
    @rule(data=st.data())
    def succeed(self, data: st.DataObject) -> None:
        task, future = self._take(data)
        for key in _keys(task):
            self._end_flight(key)
        results = {_kernel(k[-1]).digest: k.encode() for k in _keys(task)}
        future.set_result(pack(results))
        self._run()

    @precondition(lambda self: self.pool.open)
    @rule(data=st.data(), kind=st.sampled_from(FAULTS), node=st.sampled_from(NODES))
    def fail_whole(self, data: st.DataObject, kind: ErrorKind, node: str) -> None:
        task, future = self._take(data)
        for key in _keys(task):
            self._failed(key, kind, node)
        future.set_exception(TaskFailed(kind, "the worker", node))
        self._run()

    @precondition(lambda self: self.pool.open)
    @rule(data=st.data(), kind=st.sampled_from(FAULTS), node=st.sampled_from(NODES))
    def fail_one(self, data: st.DataObject, kind: ErrorKind, node: str) -> None:
        """As an isolated worker tells of a batch: the others have their results."""
        task, future = self._take(data)
        keys = _keys(task)
        bad = data.draw(st.sampled_from(keys))
        results: dict[str, bytes | TaskFailed] = {}
        for key in keys:
            name = _kernel(key[-1]).digest
            if key == bad:
                results[name] = TaskFailed(kind, "this kernel")
                self._failed(key, kind, node)
            else:
                results[name] = pack({name: key.encode()})
                self._end_flight(key)
        future.set_result(built_singly(results, node))
        self._run()

    @precondition(lambda self: self.sleepers)
    @rule(seconds=st.floats(0.1, 700.0))
    def advance(self, seconds: float) -> None:
        self.now += seconds
        for sleeper in [s for s in self.sleepers if s.until <= self.now]:
            self.sleepers.remove(sleeper)
            sleeper.woken.set()
        self._run()

    @rule()
    def forget_poison(self) -> None:
        self.now += 601.0
        for sleeper in self.sleepers:
            sleeper.woken.set()
        self.sleepers.clear()
        self._run()

    @invariant()
    def no_kernel_is_built_twice_at_once(self) -> None:
        at_work = Counter(key for task, _ in self.pool.open for key in _keys(task))
        assert all(count == 1 for count in at_work.values())

    def _take(self, data: st.DataObject) -> tuple[Task, Future[bytes]]:
        place = data.draw(st.integers(0, len(self.pool.open) - 1))
        task, future = self.pool.open.pop(place)
        self.seen.discard(id(future))
        return task, future

    def teardown(self) -> None:
        """Every job comes to an end: nothing is lost."""
        for _ in range(40):
            self.forget_poison()
            while self.pool.open:
                task, future = self.pool.open.pop()
                future.set_result(pack({_kernel(k[-1]).digest: k.encode() for k in _keys(task)}))
                for key in _keys(task):
                    self._end_flight(key)
                self._run()
        assert not self.sleepers
        for job in self.jobs:
            for flight in job:
                assert flight.over, flight.key
            self.builds.leave(job)
        self.loop.run_until_complete(self.builds.close())
        self.loop.close()


TestRetries = Retries.TestCase
TestRetries.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def test_poison_is_remembered_as_long_as_the_table_says() -> None:
    poison = Poison(most=2)
    poison.remember("a", TaskFailed(ErrorKind.CRASHED, "SIGSEGV"), 100.0)
    known = poison.recall("a", 699.0)
    assert known is not None
    assert (known.kind, known.message) == (ErrorKind.CRASHED, "SIGSEGV")
    assert poison.recall("a", 700.0) is None
    poison.remember("b", TaskFailed(ErrorKind.CANCELLED, ""), 0.0)
    assert poison.recall("b", 0.0) is None, "what failed for no reason of its own starts anew"
    for name in ("c", "d", "e"):
        poison.remember(name, TaskFailed(ErrorKind.COMPILE_ERROR, name), 0.0)
    assert poison.recall("c", 1.0) is None, "the oldest makes room"
    assert poison.recall("e", 1.0) is not None


@pytest.mark.parametrize("node", ["", "n1"])
def test_a_failure_keeps_its_node_on_the_way(node: str) -> None:
    kind, arguments = TaskFailed(ErrorKind.CRASHED, "text", node).__reduce__()
    assert kind(*arguments).node == node


def test_a_kernel_of_a_worker_of_another_release_fails_alone() -> None:
    failure = {"kind": "struck_by_lightning", "message": "text", "node": "n1"}
    outcomes = built(pack({"a": b"binary", "b": failure}))
    error = outcomes["b"]
    assert outcomes["a"] == b"binary"
    assert isinstance(error, TaskFailed)
    assert (error.kind, error.message, error.node) == (ErrorKind.INTERNAL, "text", "n1")
