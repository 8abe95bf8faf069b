"""Nodes of a Ray cluster that are avoided, drained and lost, and a farm under a storm of faults."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farm.pool import Pool, Task, TaskFailed
from farm.retry import ErrorKind
from loadtest.chaos.clients import graphs
from loadtest.chaos.cluster import Nodes
from loadtest.chaos.storm import FAULTS, Account, storm
from tests.farm.pool_tasks import work

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]
PATIENCE_S = 90.0

log = logging.getLogger(__name__)


@pytest.fixture
def nodes(ray_cluster: Any) -> Iterator[Nodes]:
    """Nodes beside the head, of one processor each, gone after the test."""
    made = Nodes(ray_cluster, 1, random.Random(1))
    yield made
    made.close()


@pytest.fixture
def pool(ray_cluster: Any) -> Iterator[Pool]:
    from farm.ray_pool import RayPool

    made = RayPool(work, workers=2)
    yield made
    made.close()


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _node(pool: Pool, avoid: frozenset[str] = frozenset()) -> str:
    return pool.submit(Task("node", b"", avoid=avoid)).result(PATIENCE_S).decode()


def _held_on(pool: Pool, node: str, avoid: frozenset[str], folder: Path) -> tuple[Any, Path]:
    """A task that runs on that node until the file is there.

    A node whose processor Ray has not been given back yet is full, and another has to do: such a
    task is ended, and another one tried.
    """
    for number in range(100):
        mark = folder / f"{node[:8]}-{number}"
        future = pool.submit(Task("hold", str(mark).encode(), avoid=avoid))
        _until(mark.exists)
        end = mark.with_name(mark.name + ".end")
        if mark.read_text() == node:
            return future, end
        end.touch()
        assert future.result(PATIENCE_S) == b"held"
    raise AssertionError("no task runs on that node")


def _drain(cluster: Any, node: str) -> bool:
    from ray._raylet import GcsClient
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    reason = DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
    deadline_ms = int(time.time() + 3600) * 1000
    return GcsClient(address=cluster.address).drain_node(node, reason, "test", deadline_ms)[0]


def test_a_node_is_avoided_drained_and_lost(nodes: Nodes, pool: Pool, tmp_path: Path) -> None:
    head = nodes.cluster.head_node.node_id
    assert _node(pool, frozenset({head})) == head, "where there is no other, it will have to do"
    nodes.add()
    other = nodes.alive[0].node_id
    avoid_head, avoid_other = frozenset({head}), frozenset({other})
    _until(lambda: _node(pool, avoid_head) == other)  # the pool has to hear of it first
    for _ in range(3):
        _until(lambda: _node(pool, avoid_head) == other)
        _until(lambda: _node(pool, avoid_other) == head)

    with pytest.raises(TaskFailed) as caught:
        pool.submit(Task("fail", b"", avoid=avoid_head)).result(PATIENCE_S)
    assert caught.value.node in (head, other), "a failure says where"

    # Drained: it ends what it has and gets nothing new.
    running, end = _held_on(pool, other, avoid_head, tmp_path)
    assert _drain(nodes.cluster, other)
    _until(lambda: _node(pool, avoid_head) == head)
    end.touch()
    assert running.result(PATIENCE_S) == b"held"
    nodes.close()

    # Lost without a word: noticed within seconds, by Ray's heartbeat.
    nodes.add()
    _until(lambda: _node(pool, avoid_head) == nodes.alive[0].node_id)
    lost, _ = _held_on(pool, nodes.alive[0].node_id, avoid_head, tmp_path)
    began = time.monotonic()
    nodes.kill()
    with pytest.raises(TaskFailed) as caught:
        lost.result(PATIENCE_S)
    assert caught.value.kind is ErrorKind.WORKER_LOST
    log.info("a lost node was noticed after %.1f s", time.monotonic() - began)
    _until(lambda: _node(pool, frozenset({"gone"})) == head)


def _storm(nodes: Nodes, tmp_path: Path, jobs: int, faults: list[str], first: int) -> Account:
    while len(nodes.alive) < 2:
        nodes.add()
    account = storm(
        nodes, nodes.cluster.address, tmp_path, list(graphs(jobs, first)), faults,
        seconds=600.0 if jobs > 20 else 150.0, say=log.info,
    )  # fmt: skip
    log.info("\n".join(account.lines()))
    assert account.broken() == []
    return account


@pytest.mark.slow
def test_no_job_is_lost_when_everything_is_killed(nodes: Nodes, tmp_path: Path) -> None:
    jobs = 12
    account = _storm(nodes, tmp_path, jobs, ["compiler", "worker", "gateway", "node"], 1000)
    assert account.clients["done"] == account.clients["accepted"] == jobs, account.why
    assert account.faults["node"] == account.faults["gateway"] == 1
    # Two kernels a graph of which the next has one, the runner, and the graphs.
    assert account.published == jobs + 1 + 1 + jobs


@pytest.mark.extended
def test_storm_after_storm(nodes: Nodes, tmp_path: Path) -> None:
    draw = random.Random(7)
    for number in range(3):
        faults = draw.sample(FAULTS, len(FAULTS)) * 2
        account = _storm(nodes, tmp_path, 24, faults, 2000 + 24 * number)
        assert account.clients["done"] == 24, account.why
