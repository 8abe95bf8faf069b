"""One contract for every pool."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from farm.devices import CPU
from farm.fair_pool import FairPool
from farm.memory_pool import MemoryPool
from farm.pool import Pool, Task, TaskFailed
from farm.retry import ErrorKind
from farm.stamp import split
from tests.farm.pool_tasks import work

RAY = pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.xdist_group("ray")])


@pytest.fixture(params=["memory", "fair", RAY])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    made: Pool
    if request.param == "memory":
        made = MemoryPool(work, 2)
    elif request.param == "fair":
        made = FairPool(MemoryPool(work, 2))
    else:
        request.getfixturevalue("ray_cluster")
        from farm.ray_pool import RayPool

        made = RayPool(work, workers=2)
    yield made
    made.close()


GPU = "gpu:sm_90:nvidia-h200"


@pytest.fixture(params=["memory", "fair", RAY])
def mixed(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """Two CPU workers and a GPU, whose name Ray alone believes in."""
    made: Pool
    if request.param == "memory":
        made = MemoryPool(work, 2, gpus={GPU: (3,)})
    elif request.param == "fair":
        made = FairPool(MemoryPool(work, 2, gpus={GPU: (3,)}))
    else:
        request.getfixturevalue("ray_cluster")
        from farm.ray_pool import RayPool

        made = RayPool(work, workers=2)
    yield made
    made.close()


def _failure(pool: Pool, task: Task) -> TaskFailed:
    with pytest.raises(TaskFailed) as caught:
        pool.submit(task).result(timeout=60)
    return caught.value


def test_results_come_back(pool: Pool) -> None:
    futures = [pool.submit(Task("echo", b"%d-" % number * 1000)) for number in range(20)]
    for number, future in enumerate(futures):
        assert future.result(timeout=60) == (b"%d-" % number * 1000)[::-1]
    assert pool.workers == 2


def test_tasks_run_where_they_need_to(mixed: Pool) -> None:
    assert (mixed.workers, mixed.workers_of(CPU), mixed.workers_of(GPU)) == (2, 2, 1)
    assert mixed.gpu_classes() == (GPU,)
    assert mixed.workers_of("gpu:sm_80:nvidia-a100") == 0
    gpu = mixed.submit(Task("where", b"", needs=GPU)).result(timeout=60)
    # Ray shows each worker the GPU that it has, and that one alone.
    assert gpu.decode() == f"{GPU} {3 if mixed.kind == 'memory' else 0}"
    assert mixed.submit(Task("where", b"")).result(timeout=60) == b"cpu 0"


def test_a_gpu_is_leased_whole(mixed: Pool) -> None:
    started = time.monotonic()
    for future in [mixed.submit(Task("sleep", b"0.3", needs=GPU)) for _ in range(3)]:
        future.result(timeout=60)
    assert time.monotonic() - started >= 0.9


def test_a_gpu_does_not_wait_for_compiles(mixed: Pool, tmp_path: Path) -> None:
    end = tmp_path / "end"
    busy = [mixed.submit(Task("until", str(end).encode())) for _ in range(2)]
    assert mixed.submit(Task("where", b"", needs=GPU)).result(timeout=50)
    assert not any(future.done() for future in busy)
    end.touch()
    for future in busy:
        assert future.result(timeout=60) == b"waited"


def test_large_payloads(pool: Pool) -> None:
    data = bytes(range(256)) * (32 << 10)
    assert pool.submit(Task("echo", data)).result(timeout=60) == data[::-1]


def test_tasks_run_in_parallel(pool: Pool, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    paths = (f"{one}\n{two}", f"{two}\n{one}")
    # Each waits for the other to begin, which it never does behind it.
    both = [pool.submit(Task("meet", payload.encode())) for payload in paths]
    assert [future.result(timeout=120) for future in both] == [b"met"] * 2


def test_parts_come_in_order_before_the_result(pool: Pool) -> None:
    parts: list[bytes] = []
    future = pool.submit(Task("parts", b"abc" * 20), parts.append)
    assert future.result(timeout=60) == b"all"
    assert b"".join(parts) == b"abc" * 20
    assert pool.submit(Task("parts", b"abc")).result(timeout=60) == b"all", "nobody listens"
    parts.clear()
    assert pool.submit(Task("echo", b"ab"), parts.append).result(timeout=60) == b"ba"
    assert parts == []


def test_parts_come_while_their_task_goes_on(pool: Pool, tmp_path: Path) -> None:
    end, parts = tmp_path / "end", SimpleQueue[bytes]()
    future = pool.submit(Task("parts until", str(end).encode()), parts.put)
    assert parts.get(timeout=60) == b"first"
    assert not future.done()
    end.touch()
    assert future.result(timeout=60) == b"all"
    assert parts.get(timeout=1) == b"last"


def test_a_task_that_fails_may_have_told_some(pool: Pool) -> None:
    parts: list[bytes] = []
    future = pool.submit(Task("parts fail", b""), parts.append)
    with pytest.raises(TaskFailed, match="no more") as caught:
        future.result(timeout=60)
    assert (caught.value.kind, parts) == (ErrorKind.COMPILE_ERROR, [b"first"])


def test_a_task_with_parts_is_cancelled(pool: Pool, tmp_path: Path) -> None:
    end, parts = tmp_path / "end", SimpleQueue[bytes]()
    future = pool.submit(Task("parts until", str(end).encode()), parts.put)
    parts.get(timeout=60)
    pool.cancel(future)
    with pytest.raises(TaskFailed) as caught:
        future.result(timeout=1)
    assert caught.value.kind is ErrorKind.CANCELLED
    end.touch()
    assert pool.submit(Task("echo", b"ab")).result(timeout=60) == b"ba"


def test_a_failure_keeps_its_kind(pool: Pool) -> None:
    failure = _failure(pool, Task("fail", b"way"))
    assert (failure.kind, failure.message) == (ErrorKind.COMPILE_ERROR, "no way")


def test_a_bug_is_an_internal_error(pool: Pool) -> None:
    failure = _failure(pool, Task("bug", b""))
    assert failure.kind is ErrorKind.INTERNAL
    assert "KeyError" in failure.message


def test_out_of_memory(pool: Pool) -> None:
    assert _failure(pool, Task("hog", b"")).kind is ErrorKind.OUT_OF_MEMORY


def test_a_cancelled_task_never_starts(pool: Pool, tmp_path: Path) -> None:
    busy = [pool.submit(Task("sleep", b"0.5")) for _ in range(2)]
    mark = tmp_path / "mark"
    future = pool.submit(Task("touch", str(mark).encode()))
    pool.cancel(future)
    with pytest.raises(TaskFailed) as caught:
        future.result(timeout=1)
    assert caught.value.kind is ErrorKind.CANCELLED
    for other in busy:
        assert other.result(timeout=60) == b"slept"
    assert pool.submit(Task("echo", b"ab")).result(timeout=60) == b"ba"
    assert not mark.exists()


def test_cancelling_what_has_ended_changes_nothing(pool: Pool) -> None:
    future = pool.submit(Task("echo", b"ab"))
    assert future.result(timeout=60) == b"ba"
    pool.cancel(future)
    assert future.result() == b"ba"


def test_a_running_task_ends_for_its_caller_at_once_when_cancelled(pool: Pool) -> None:
    future = pool.submit(Task("sleep", b"2"))
    time.sleep(0.2)
    started = time.monotonic()
    pool.cancel(future)
    with pytest.raises(TaskFailed):
        future.result(timeout=1)
    assert time.monotonic() - started < 1.0


def test_close_ends_what_is_open(pool: Pool) -> None:
    futures = [pool.submit(Task("sleep", b"0.5")) for _ in range(4)]
    futures.append(pool.submit(Task("parts", b"abc"), lambda part: None))
    pool.close()
    for future in futures:
        with pytest.raises(TaskFailed) as caught:
            future.result(timeout=5)
        assert caught.value.kind in (ErrorKind.WORKER_LOST, ErrorKind.CANCELLED)
    with pytest.raises(TaskFailed):
        pool.submit(Task("echo", b"")).result(timeout=1)


@pytest.mark.ray
@pytest.mark.xdist_group("ray")
def test_a_dead_worker_is_reported_as_lost(ray_cluster: None) -> None:
    from farm.ray_pool import RayPool

    pool = RayPool(work, workers=2)
    assert _failure(pool, Task("die", b"")).kind is ErrorKind.WORKER_LOST
    with pytest.raises(TaskFailed) as caught:
        pool.submit(Task("die", b""), lambda part: None).result(timeout=60)
    assert caught.value.kind is ErrorKind.WORKER_LOST
    assert pool.submit(Task("echo", b"ab")).result(timeout=60) == b"ba"
    pool.close()


def test_a_task_that_is_followed_says_when_and_where_it_was_at_work(pool: Pool) -> None:
    parent = f"00-{1:032x}-{2:016x}-01"
    before = time.time_ns()
    stamp, result = split(pool.submit(Task("echo", b"ab", traceparent=parent)).result(timeout=60))
    assert result == b"ba"
    assert before <= stamp.start_ns <= stamp.end_ns <= time.time_ns()
    assert (stamp.process == os.getpid()) == (pool.kind == "memory")
    assert stamp.host == socket.gethostname()
    assert _failure(pool, Task("fail", b"way", traceparent=parent)).message == "no way"
