"""The head of the Ray cluster is lost: hits go on, and the farm comes back with it."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cache.client import CacheClient
from cache.config import ServiceConfig
from cache.embedded import serve_in_thread
from cache.memory import MemoryStore
from fusec.remote.farm import FarmClient, FarmUnavailable
from fusec.remote.protocol import FarmJob, JobState
from loadtest.chaos.clients import graphs
from loadtest.chaos.cluster import simulated_cluster
from loadtest.chaos.storm import Gateway
from loadtest.servers import free_port

pytestmark = [
    pytest.mark.ray, pytest.mark.xdist_group("ray"), pytest.mark.extended, pytest.mark.timeout(900)
]  # fmt: skip
log = logging.getLogger(__name__)
PATIENCE_S = 180.0


class Farm:
    """A cluster, a cache service and a gateway of its own process."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.cluster: Any = stack.enter_context(simulated_cluster(num_cpus=2))
        self.store = MemoryStore()
        port = free_port()
        config = ServiceConfig(port=0, farm_url=f"http://127.0.0.1:{port}")
        service = stack.enter_context(serve_in_thread(config, store=self.store))
        self.gateway = Gateway(self.cluster.address, service.url, port, folder / "gateway.log")
        stack.callback(self.gateway.kill)
        self.cache = CacheClient(service.url)
        stack.callback(self.cache.close)

    def compile(self, job: FarmJob, seconds: float) -> bool:
        try:
            end = FarmClient(self.cache).wait(job, timeout_s=seconds)
        except FarmUnavailable as error:
            log.info("not now: %s", error.message)
            return False
        return end.state is JobState.DONE

    def hit(self, job: FarmJob) -> bool:
        return self.cache.get_entry(f"graph/{job.fingerprint}") is not None


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    # So long Ray waits for its head before it ends whoever is connected; a minute as it comes.
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "15")
    with ExitStack() as made:
        yield made


def _until(condition: Callable[[], bool]) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < PATIENCE_S
        time.sleep(0.2)
    return time.monotonic() - began


def test_a_gateway_whose_head_is_gone_for_good_ends(stack: ExitStack, tmp_path: Path) -> None:
    """So that its orchestrator starts it anew, beside a new head. Hits never needed it."""
    farm = Farm(stack, tmp_path)
    job = next(graphs(1, 8000))
    assert farm.compile(job, PATIENCE_S)
    farm.cluster.head_node.kill_gcs_server()
    assert farm.hit(job)
    took = _until(lambda: farm.gateway.process.poll() is not None)
    log.info("the gateway ended %.0f s after the head, status %s", took,
             farm.gateway.process.returncode)  # fmt: skip
    assert farm.gateway.process.returncode != 0
    assert farm.hit(job)


@pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="needs redis-server (Debian: redis)"
)
def test_a_head_that_comes_back_finds_everything_in_redis(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    redis = subprocess.Popen(
        ["redis-server", "--port", str(port), "--save", "", "--dir", str(tmp_path)],
        stdout=subprocess.DEVNULL,
    )
    stack.callback(redis.wait)
    stack.callback(redis.kill)
    with monkeypatch.context() as patch:
        patch.setenv("RAY_REDIS_ADDRESS", f"127.0.0.1:{port}")
        farm = Farm(stack, tmp_path)
        first, *others = graphs(4, 8100)
        assert farm.compile(first, PATIENCE_S)
        size = subprocess.run(
            ["redis-cli", "-p", str(port), "dbsize"], capture_output=True, text=True, check=True
        )
        assert int(size.stdout.split()[-1]) > 0, "the head's state is there"
        head = farm.cluster.head_node
        head.kill_gcs_server()
        assert farm.hit(first)
        time.sleep(3.0)
        head.start_gcs_server()
        for job in others:
            _until(lambda job=job: farm.compile(job, 60.0))  # type: ignore[misc]
        assert farm.gateway.process.poll() is None, "it went on, in the same process"
    assert os.environ.get("RAY_REDIS_ADDRESS") is None
