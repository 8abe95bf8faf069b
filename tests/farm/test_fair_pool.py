"""Tasks are handed to the pool behind in fair order, as many as there are workers and few more."""

from __future__ import annotations

import math
from concurrent.futures import Future

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.devices import CPU
from farm.fair_pool import BURST_S, FairPool
from farm.pool import Heard, Task, TaskFailed, settle
from farm.queue import Share
from farm.retry import ErrorKind
from fusec.remote.protocol import Priority

GPU = "gpu:sm_90:nvidia-h200"


class ManualPool:
    """A pool whose tasks end when the test says so."""

    kind = "manual"

    def __init__(self, **workers: int) -> None:
        self.workers = workers.get("cpu", 4)
        self.gpus = workers.get("gpu", 0)
        self.open: dict[str, Future[bytes]] = {}
        self.seen: list[str] = []
        self.wanted: dict[str, int] = {}

    def workers_of(self, needs: str) -> int:
        return self.workers if needs == CPU else self.gpus

    def want(self, needs: str, tasks: int) -> None:
        self.wanted[needs] = tasks

    def gpu_classes(self) -> tuple[str, ...]:
        return (GPU,) if self.gpus else ()

    def submit(self, task: Task, heard: Heard | None = None) -> Future[bytes]:
        self.seen.append(task.label)
        future: Future[bytes] = Future()
        self.open[task.label] = future
        return future

    def hurry(self, future: Future[bytes], priority: Priority) -> None:
        """It has no order."""

    def cancel(self, future: Future[bytes]) -> None:
        settle(future, TaskFailed(ErrorKind.CANCELLED, "cancelled"))

    def close(self) -> None:
        for future in self.open.values():
            self.cancel(future)

    def end(self, label: str) -> None:
        settle(self.open.pop(label), b"done")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _task(
    tenant: str, number: int, priority: Priority = Priority.WAITING, needs: str = CPU
) -> Task:
    return Task("t", b"", f"{tenant}{number}", needs, share=Share(tenant), priority=priority)


def test_no_more_is_handed_on_than_the_workers_can_take() -> None:
    behind = ManualPool(cpu=4)
    pool = FairPool(behind)
    for number in range(100):
        pool.submit(_task("a", number))
    assert len(behind.seen) == 5, "one for each worker and one that is ready"
    behind.end("a0")
    assert len(behind.seen) == 6
    assert pool.in_work() == {CPU: 5}
    assert [(b.tenant, b.length) for b in pool.backlogs()[CPU]] == [("a", 94)]
    assert behind.wanted == {CPU: 99}, "all that is left, at work or not, makes a cluster grow"


def test_a_newcomer_goes_before_a_thousand_that_wait() -> None:
    behind, clock = ManualPool(cpu=2), Clock()
    pool = FairPool(behind, clock=clock, burst_s=0.0)
    for number in range(1000):
        pool.submit(_task("a", number))
    for number in range(10):
        pool.submit(_task("b", number))
    while len(behind.seen) < 30:
        clock.now += 1.0
        behind.end(next(iter(behind.open)))
    assert sum(label.startswith("b") for label in behind.seen[:25]) >= 9


def test_seconds_count_and_not_tasks() -> None:
    behind, clock = ManualPool(cpu=1), Clock()
    pool = FairPool(behind, clock=clock, burst_s=0.0)
    for number in range(200):
        pool.submit(_task("a", number))
        pool.submit(_task("b", number))
    seconds = {"a": 0.0, "b": 0.0}
    for _ in range(100):
        label = next(iter(behind.open))
        took = 9.0 if label.startswith("a") else 1.0
        seconds[label[0]] += took
        clock.now += took
        behind.end(label)
    assert seconds["a"] / seconds["b"] == pytest.approx(1.0, rel=0.25)


def test_gpu_work_takes_no_place_of_cpu_work() -> None:
    behind = ManualPool(cpu=1, gpu=1)
    pool = FairPool(behind)
    for number in range(9):
        pool.submit(_task("tune", number, Priority.BACKGROUND, GPU))
    for number in range(9):
        pool.submit(_task("a", number))
    assert behind.seen == ["tune0", "tune1", "a0", "a1"]


def test_a_class_without_workers_is_asked_for_all_the_same() -> None:
    behind = ManualPool(cpu=1)
    pool = FairPool(behind)
    pool.submit(_task("tune", 0, needs=GPU))
    assert behind.seen == ["tune0"], "so that a cluster which can grow does"


def test_clients_before_background() -> None:
    behind = ManualPool(cpu=1)
    pool = FairPool(behind)
    for number in range(4):
        pool.submit(_task("tune", number, Priority.BACKGROUND))
    pool.submit(_task("a", 0))
    behind.end("tune0")
    assert behind.seen == ["tune0", "tune1", "a0"]


def test_a_task_that_becomes_urgent_goes_before_others_and_never_becomes_less() -> None:
    behind = ManualPool(cpu=1)
    pool = FairPool(behind)
    futures = [pool.submit(_task("warm", number, Priority.PREWARM)) for number in range(6)]
    pool.hurry(futures[4], Priority.WAITING)
    pool.hurry(futures[4], Priority.BACKGROUND)
    pool.hurry(futures[0], Priority.WAITING)
    behind.end("warm0")
    behind.end("warm1")
    assert behind.seen == ["warm0", "warm1", "warm4", "warm2"]
    pool.hurry(futures[0], Priority.WAITING)  # it is over


def test_a_task_that_waits_is_cancelled_without_the_pool_behind() -> None:
    behind = ManualPool(cpu=1)
    pool = FairPool(behind)
    futures = [pool.submit(_task("a", number)) for number in range(4)]
    pool.cancel(futures[2])
    with pytest.raises(TaskFailed):
        futures[2].result(timeout=0)
    behind.end("a0")
    behind.end("a1")
    assert behind.seen == ["a0", "a1", "a3"]
    assert futures[0].result(timeout=0) == b"done"


def test_a_cancelled_task_in_work_frees_its_place() -> None:
    behind = ManualPool(cpu=1)
    pool = FairPool(behind)
    futures = [pool.submit(_task("a", number)) for number in range(3)]
    pool.cancel(futures[0])
    assert behind.seen == ["a0", "a1", "a2"]


class VirtualPool(ManualPool):
    """Workers that take a second for a task, in the time of a clock."""

    def __init__(self, clock: Clock, workers: int) -> None:
        super().__init__(cpu=workers)
        self._clock = clock
        self._running: list[str] = []

    def second(self) -> None:
        """What has begun ends; what waits begins."""
        self._clock.now += 1.0
        for label in self._running:
            self.end(label)
        self._running = list(self.open)[: self.workers]


def _seconds_for(tasks: int, workers: int, flood: int, burst_s: float) -> float:
    """Until the tasks of a tenant that comes are done, beside those of another."""
    clock = Clock()
    behind = VirtualPool(clock, workers)
    pool = FairPool(behind, clock=clock, burst_s=burst_s)
    for number in range(flood):
        pool.submit(_task("flood", number))
    # Past its own start, which a tenant that came a moment ago has too.
    for _ in range(5 + math.ceil(burst_s / workers) if flood else 0):
        behind.second()
    began = clock.now
    futures = [pool.submit(_task("new", number)) for number in range(tasks)]
    while not all(future.done() for future in futures):
        behind.second()
    return clock.now - began


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 8), st.integers(1, 60), st.sampled_from([0.0, 10.0, BURST_S]))
def test_ten_thousand_tasks_of_one_tenant_delay_another_at_most_twofold(
    workers: int, tasks: int, burst_s: float
) -> None:
    alone = _seconds_for(tasks, workers, 0, burst_s)
    beside = _seconds_for(tasks, workers, 10_000, burst_s)
    # And what was in work, and ready for a worker, when it came: no task is taken back.
    assert beside <= 2 * alone + 2
    if burst_s >= tasks:
        assert beside <= alone + 2, "a small piece of work is hardly delayed"
