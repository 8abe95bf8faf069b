"""The contract of pools goes on where tasks are isolated: faults cost a child, never a worker."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farm.devices import CPU
from farm.isolation import Isolated, _children
from farm.memory_pool import MemoryPool
from farm.pool import Pool, Task, TaskFailed
from farm.retry import ErrorKind

RAY = pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.xdist_group("ray")])
ISOLATED = Isolated(2 << 30, wall_s=120.0, cpu_s=120.0, program="tests.farm.isolated_tasks")
GPU = "gpu:sm_90:nvidia-h200"


@pytest.fixture(params=["memory", RAY])
def pool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    made: Pool
    if request.param == "memory":
        made = MemoryPool(ISOLATED, 2)
    else:
        request.getfixturevalue("ray_cluster")
        from farm.ray_pool import RayPool

        made = RayPool(ISOLATED, workers=2)
    yield made
    made.close()
    if request.param == "memory":
        _children(os.getpid(), ISOLATED, ()).close()


def test_faults_cost_one_attempt_each(pool: Pool) -> None:
    kinds = {
        "segfault": ErrorKind.CRASHED,
        "exit": ErrorKind.CRASHED,
        "killed": ErrorKind.OUT_OF_MEMORY,
        "hog": ErrorKind.OUT_OF_MEMORY,
        "bug": ErrorKind.INTERNAL,
        "fail": ErrorKind.COMPILE_ERROR,
    }
    futures = {kind: pool.submit(Task(kind, b"", kind)) for kind in kinds}
    good = [pool.submit(Task("echo", b"%d-" % number)) for number in range(8)]
    for kind, expected in kinds.items():
        with pytest.raises(TaskFailed) as caught:
            futures[kind].result(timeout=90)
        assert caught.value.kind is expected, kind
    assert [future.result(timeout=90) for future in good] == [b"-%d" % n for n in range(8)]


def test_parts_come_out_of_the_child_until_it_is_lost(pool: Pool) -> None:
    parts: list[bytes] = []
    lost = pool.submit(Task("parts exit", b""), parts.append)
    with pytest.raises(TaskFailed) as caught:
        lost.result(timeout=90)
    assert (caught.value.kind, parts) == (ErrorKind.CRASHED, [b"first"])
    parts.clear()
    assert pool.submit(Task("parts", b"abc"), parts.append).result(timeout=90) == b"all"
    assert parts == [b"a", b"b", b"c"]


def test_a_cancelled_task_frees_its_worker_and_leaves_nothing(pool: Pool, tmp_path: Path) -> None:
    marks = [tmp_path / f"pid{number}" for number in range(2)]
    hung = [pool.submit(Task("hang told", str(mark).encode())) for mark in marks]
    _until(lambda: all(mark.exists() and mark.read_text() for mark in marks))
    for future in hung:
        pool.cancel(future)
        with pytest.raises(TaskFailed) as caught:
            future.result(timeout=1)
        assert caught.value.kind is ErrorKind.CANCELLED
    # Both workers were busy for two minutes to come.
    together = [pool.submit(Task("echo", b"ab")) for _ in range(2)]
    assert [future.result(timeout=90) for future in together] == [b"ba"] * 2
    _until(lambda: not any(_alive(int(mark.read_text())) for mark in marks))


@pytest.mark.ray
@pytest.mark.xdist_group("ray")
def test_ray_is_told_how_large_the_cluster_should_be(ray_cluster: object) -> None:
    """As its autoscaler reads it: all that is at work or waits, and nothing when nothing is."""
    import json

    from ray.autoscaler._private.constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL
    from ray.experimental.internal_kv import _internal_kv_get

    from farm.ray_demand import STALE_S, RayDemand
    from farm.ray_pool import RayPool

    def told() -> list[dict[str, float]]:
        return json.loads(_internal_kv_get(AUTOSCALER_RESOURCE_REQUEST_CHANNEL) or b"[]")

    pool = RayPool(ISOLATED, workers=2)
    pool.want(CPU, 3)
    pool.want(GPU, 1)
    _until(lambda: told() == [{"CPU": 1}] * 3 + [{"GPU": 1, GPU: 1}])
    pool.want(GPU, 0)
    _until(lambda: told() == [{"CPU": 1}] * 3)
    # Another gateway's: Ray keeps one demand, which has to be that of both.
    other = RayDemand()
    other.want(CPU, 2)
    other.tell()
    assert told() == [{"CPU": 1}] * 5
    pool.want(CPU, 0)
    _until(lambda: told() == [{"CPU": 1}] * 2)
    pool.want(CPU, 1)
    _until(lambda: told() == [{"CPU": 1}] * 3)
    pool.close()
    assert told() == [{"CPU": 1}] * 2, "who goes takes its part along"
    # Who is gone without a word is forgotten, by those who look for long enough.
    now = 0.0
    third = RayDemand(clock=lambda: now)
    third.tell()
    assert told() == [{"CPU": 1}] * 2
    now = STALE_S + 1.0
    third.tell()
    assert told() == []
    third.withdraw()


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
