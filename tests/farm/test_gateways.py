"""Several gateways behind one store: one compile, and a job survives the gateway that has it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import pytest

from cache.artifacts import lookup
from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.config import ServiceConfig
from cache.embedded import serve_app_in_thread, serve_in_thread
from cache.farms import order
from cache.lease import Lease
from cache.memory import MemoryStore
from cache.protocol import MAX_RECORD
from farm.config import FarmConfig
from farm.memory_pool import MemoryPool
from farm.open_farm import open_app
from farm.workers import run
from fusec.remote.farm import FarmClient
from fusec.remote.protocol import FarmJob, JobState, JobStatus
from tests.cache.servers import free_port
from tests.farm.tiny_stages import TinyStages, farm_job

PATIENCE_S = 150.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of clients in one process are slow: it is not their patience that is tested."""
    monkeypatch.setattr("fusec.remote.farm.CALL_S", 60.0)
    monkeypatch.setattr("fusec.remote.farm.GRACE_S", 60.0)
    monkeypatch.setattr("cache.routes_farm.CONNECT_SECONDS", 60.0)
    monkeypatch.setattr("cache.routes_farm.SPARE_SECONDS", 3.0)


class Recording(MemoryStore):
    """A store that writes down which entries were published, and how often."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs: list[str] = []

    def put_entry(self, key: str, manifest_bytes: bytes) -> bool:
        before = self.get_entry(key)
        written = super().put_entry(key, manifest_bytes)
        if written and before is None and key.startswith("graph/"):
            self.graphs.append(key)
        return written

    def replace_entry(self, key: str, manifest_bytes: bytes) -> None:
        self.graphs.append(key)
        super().replace_entry(key, manifest_bytes)


@dataclass
class Cluster:
    """A cache service for each list of gateways, all over one store; gateways on ports of their
    own."""

    log: str
    slow_s: float
    lease_s: float
    stack: ExitStack
    store: Recording = field(default_factory=Recording)

    @property
    def stages(self) -> TinyStages:
        return TinyStages(self.log, slow_s=self.slow_s)

    def service(self, *gateways: str) -> str:
        config = ServiceConfig(port=0, farm_url=",".join(gateways))
        return self.stack.enter_context(serve_in_thread(config, store=self.store)).url

    def client(self, url: str) -> CacheClient:
        return self.stack.enter_context(CacheClient(url, budget=DelayBudget(PATIENCE_S)))

    def gateway(self, port: int) -> str:
        """One in this process."""
        pool = MemoryPool(partial(run, stages=self.stages), 2)
        self.stack.callback(pool.close)
        config = FarmConfig(port=port, lease_s=self.lease_s)
        app = open_app(config, pool, self.client(self.service()), stages=self.stages)
        return self.stack.enter_context(serve_app_in_thread(app, port=port)).url

    def process(self, port: int) -> subprocess.Popen[str]:
        """One in a child process."""
        command = [sys.executable, "-m", "tests.farm.gateway_process", self.service(), str(port)]
        child = subprocess.Popen(
            [*command, self.log, str(self.slow_s), str(self.lease_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        self.stack.callback(_end, child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child

    def wait(self, service: str, job: FarmJob, number: int) -> list[Future[JobStatus]]:
        """Many clients, who wait for a job through a service."""
        remote = self.client(service)
        threads = self.stack.enter_context(ThreadPoolExecutor(number))

        def one(_: int) -> JobStatus:
            return FarmClient(remote, outage_s=PATIENCE_S).wait(job, timeout_s=PATIENCE_S)

        return [threads.submit(one, n) for n in range(number)]


def states(waits: list[Future[JobStatus]]) -> set[JobState]:
    """How it ended for all the clients."""
    return {wait.result(PATIENCE_S).state for wait in waits}


def _end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()


@contextmanager
def running(log: Path, slow_s: float, lease_s: float) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(str(log), slow_s, lease_s, stack)


def until(condition: Callable[[], object], seconds: float = PATIENCE_S) -> float:
    """Wait for a condition; the seconds that it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, "it does not come"
        time.sleep(0.02)
    return time.monotonic() - started


def metric(url: str, line: str) -> float:
    for text in httpx.get(url + "/metrics", timeout=30.0).text.splitlines():
        if text.startswith(line + " "):
            return float(text.rsplit(" ", 1)[1])
    raise AssertionError(f"no metric {line}")


def job_of(first: str, other: str) -> FarmJob:
    """A job whose graph goes to `first` as long as that answers."""
    jobs = (farm_job(f"t.slow{n}") for n in range(100))
    return next(job for job in jobs if order([first, other], job.fingerprint)[0] == first)


def lease_in(store: MemoryStore, job: FarmJob) -> Lease | None:
    data = store.get_record(f"lease/{job.fingerprint}")
    assert data is None or len(data) <= MAX_RECORD
    return None if data is None else Lease.decode(data)


def test_256_clients_at_two_gateways_are_one_compile(tmp_path: Path) -> None:
    with running(tmp_path, slow_s=2.0, lease_s=60.0) as cluster:
        gateways = [cluster.gateway(free_port()) for _ in range(2)]
        job = farm_job("t.slow", "t.a")
        # Each service knows one of the gateways only, so that both are asked for sure.
        waits = [cluster.wait(cluster.service(url), job, 128) for url in gateways]
        for wait in waits:
            assert states(wait) == {JobState.DONE}
        assert sorted(cluster.stages.events()) == ["build t.a", "build t.slow", "plan"]
        assert cluster.store.graphs == [f"graph/{job.fingerprint}"]
        assert lookup(cluster.store, f"graph/{job.fingerprint}") is not None
        # A client may have its answer before the gateway has counted the job.
        until(lambda: all(metric(u, 'fusec_farm_jobs_total{state="done"}') == 1 for u in gateways))
        for url in gateways:
            assert metric(url, "fusec_farm_takeovers_total") == 0
            assert metric(url, "fusec_farm_fenced_total") == 0
        until(lambda: all(metric(url, "fusec_farm_following") == 0 for url in gateways))
        until(lambda: all(metric(url, "fusec_farm_leases") == 0 for url in gateways))
        left = lease_in(cluster.store, job)
        assert left is not None
        until(lambda: (lease := lease_in(cluster.store, job)) is not None and lease.released)


def test_followers_are_told_how_far_the_owner_is(tmp_path: Path) -> None:
    with running(tmp_path, slow_s=1.0, lease_s=60.0) as cluster:
        owner, follower = (cluster.gateway(free_port()) for _ in range(2))
        job = farm_job(*(f"t.slow{n}" for n in range(6)))
        first = cluster.wait(cluster.service(owner), job, 1)
        until(lambda: "plan" in cluster.stages.events())
        seen: list[JobStatus] = []
        remote = cluster.client(cluster.service(follower))
        FarmClient(remote).wait(job, timeout_s=PATIENCE_S, on_progress=seen.append)
        assert states(first) == {JobState.DONE}
        assert cluster.stages.count("plan") == 1
        assert [status.seq for status in seen] == sorted({status.seq for status in seen})
        assert any(0 < status.kernels_done < status.kernels_total == 6 for status in seen)


def test_a_poll_at_another_gateway_is_answered_by_the_owner(tmp_path: Path) -> None:
    with running(tmp_path, slow_s=2.0, lease_s=60.0) as cluster:
        owner, other = (cluster.gateway(free_port()) for _ in range(2))
        job = farm_job("t.slow")
        ended = cluster.wait(cluster.service(owner), job, 1)
        until(lambda: "build t.slow" in cluster.stages.events())
        remote = cluster.client(cluster.service(other))
        path = f"/v1/compile/{job.fingerprint}"
        status, value = remote.request("GET", path, timeout=30.0)
        assert status == 200
        assert JobStatus.from_wire(value).state is JobState.COMPILING
        assert metric(other, "fusec_farm_following") == 0, "it was not handed the graph"
        assert states(ended) == {JobState.DONE}


def test_a_failure_at_the_owner_is_the_followers_too(tmp_path: Path) -> None:
    with running(tmp_path, slow_s=0.0, lease_s=60.0) as cluster:
        gateways = [cluster.gateway(free_port()) for _ in range(2)]
        job = farm_job("t.later", "t.bad")
        remotes = [cluster.client(cluster.service(url)) for url in gateways]
        with ThreadPoolExecutor(2) as threads:
            waits = [
                threads.submit(FarmClient(remote).wait, job, timeout_s=PATIENCE_S)
                for remote in remotes
            ]
            until(lambda: sum(metric(url, "fusec_farm_following") for url in gateways) == 1)
            cluster.stages.go()
            for wait in waits:
                with pytest.raises(Exception, match="gcc: no"):
                    wait.result(PATIENCE_S)
        assert cluster.stages.count("plan") == 1


def test_a_gateway_that_is_killed_is_replaced_within_fifteen_seconds(tmp_path: Path) -> None:
    with running(tmp_path, slow_s=3.0, lease_s=4.0) as cluster:
        port = free_port()
        child = cluster.process(port)
        doomed, heir = f"http://127.0.0.1:{port}", cluster.gateway(free_port())
        job = job_of(doomed, heir)
        ended = cluster.wait(cluster.service(doomed, heir), job, 16)
        until(lambda: any(e.startswith("build") for e in cluster.stages.events()))
        lease = lease_in(cluster.store, job)
        assert lease is not None
        assert lease.address == doomed
        child.kill()
        seconds = until(lambda: cluster.stages.count("plan") == 2)
        assert seconds < 15.0, "the limit is fifteen seconds, at a term of four"
        assert states(ended) == {JobState.DONE}, "no accepted job is lost"
        assert cluster.store.graphs == [f"graph/{job.fingerprint}"]
        assert metric(heir, "fusec_farm_takeovers_total") == 1
        assert metric(heir, 'fusec_farm_jobs_total{state="done"}') == 1


def test_a_gateway_that_was_stopped_publishes_nothing_when_it_goes_on(tmp_path: Path) -> None:
    with running(tmp_path, slow_s=6.0, lease_s=3.0) as cluster:
        port = free_port()
        child = cluster.process(port)
        late, heir = f"http://127.0.0.1:{port}", cluster.gateway(free_port())
        job = job_of(late, heir)
        ended = cluster.wait(cluster.service(late, heir), job, 8)
        until(lambda: any(e.startswith("build") for e in cluster.stages.events()))
        child.send_signal(signal.SIGSTOP)
        until(lambda: cluster.stages.count("plan") == 2)
        child.send_signal(signal.SIGCONT)
        until(lambda: metric(late, "fusec_farm_fenced_total") == 1)
        assert states(ended) == {JobState.DONE}
        assert cluster.store.graphs == [f"graph/{job.fingerprint}"], "published once"
        # The late one has learnt of it, and answers for the job as well.
        until(lambda: metric(late, 'fusec_farm_jobs_total{state="done"}') == 1)
        assert metric(heir, "fusec_farm_takeovers_total") == 1
        assert metric(heir, "fusec_farm_fenced_total") == 0


def test_a_gateway_that_is_told_to_end_hands_its_jobs_over_at_once(tmp_path: Path) -> None:
    with running(tmp_path, slow_s=4.0, lease_s=600.0) as cluster:
        port = free_port()
        child = cluster.process(port)
        leaving, heir = f"http://127.0.0.1:{port}", cluster.gateway(free_port())
        job = job_of(leaving, heir)
        ended = cluster.wait(cluster.service(leaving, heir), job, 2)
        until(lambda: any(e.startswith("build") for e in cluster.stages.events()))
        assert child.stdin is not None
        child.stdin.close()
        assert states(ended) == {JobState.DONE}
        assert cluster.store.graphs == [f"graph/{job.fingerprint}"]
        assert metric(heir, "fusec_farm_takeovers_total") == 0, "it was released, not taken"
