"""Clients that ask for a graph by its fingerprint: one sends it, and none waits for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest

from cache.auth import Grant, hash_token
from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.config import ServiceConfig
from cache.embedded import serve_app_in_thread, serve_in_thread
from cache.memory import MemoryStore
from cache.protocol import PATH_COMPILE
from farm import arrivals
from farm.arrivals import Arrivals
from farm.config import FarmConfig
from farm.job import JobId
from farm.memory_pool import MemoryPool
from farm.open_farm import open_app
from farm.workers import run
from fusec.remote.farm import Cause, FarmClient, FarmUnavailable
from fusec.remote.protocol import FarmJob, JobState, Join
from tests.farm.tiny_stages import TinyStages, farm_job

PATIENCE_S = 120.0
NAME = JobId("", "a" * 64)


class Farm:
    """A cache service over a gateway that may be started again at the same place."""

    def __init__(self, stack: ExitStack, folder: Path, config: FarmConfig) -> None:
        self.stages = TinyStages(str(folder))
        self.store = MemoryStore()
        self._config = config
        self._stack = stack
        self._life = stack.enter_context(ExitStack())
        self._pool = MemoryPool(partial(run, stages=self.stages), 2)
        stack.callback(self._pool.close)
        stack.callback(self.stages.go)
        self._port = 0
        self.start()
        service = ServiceConfig(
            port=0,
            farm_url=self.gateway_url,
            tokens=(Grant("submit", hash_token("rank")), Grant("read", hash_token("reader"))),
        )
        self.url = stack.enter_context(serve_in_thread(service, store=self.store)).url

    def start(self) -> None:
        app = open_app(self._config, self._pool, self.store, stages=self.stages)
        running = self._life.enter_context(serve_app_in_thread(app, port=self._port))
        self.gateway_url, self._port = running.url, running.port

    def stop(self) -> None:
        self._life.close()

    def client(self, token: str = "rank") -> CacheClient:
        made = CacheClient(self.url, token=token, budget=DelayBudget(PATIENCE_S))
        return self._stack.enter_context(made)

    def join(self, job: FarmJob, waiter: str, token: str = "rank") -> int:
        """The status of a join that does not wait."""
        path = f"{PATH_COMPILE}/{job.fingerprint}"
        body = Join(waiter).to_wire()
        return self.client(token).request("POST", path, body=body, timeout=30.0)[0]

    def metric(self, line: str) -> float:
        for text in httpx.get(self.gateway_url + "/metrics", timeout=30.0).text.splitlines():
            if text.startswith(line + " "):
                return float(text.rsplit(" ", 1)[1])
        return 0.0

    @property
    def received(self) -> float:
        return self.metric("fusec_farm_graphs_received_total")


@pytest.fixture
def farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Farm]:
    monkeypatch.setattr("fusec.remote.farm.GRACE_S", 60.0)  # it is not patience that is tested
    monkeypatch.setattr("fusec.remote.farm.CALL_S", 60.0)
    monkeypatch.setattr("cache.routes_farm.CONNECT_SECONDS", 60.0)
    with ExitStack() as stack:
        yield Farm(
            stack,
            tmp_path,
            FarmConfig(lease_s=0.0, queue_limit=2, tenant_queued=2, running_limit=1),
        )


def _wait(farm: Farm, job: FarmJob) -> JobState:
    client = FarmClient(farm.client(), outage_s=PATIENCE_S)
    return client.wait(replace(job, waiter=client.waiter), timeout_s=PATIENCE_S).state


def _until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_of_many_clients_one_sends_the_graph(farm: Farm) -> None:
    job = farm_job("t.held")
    with ThreadPoolExecutor(48) as threads:
        waits = [threads.submit(_wait, farm, job) for _ in range(48)]
        _until(lambda: farm.metric("fusec_farm_inflight_merges_total") >= 47)
        farm.stages.go()
        assert {wait.result(PATIENCE_S) for wait in waits} == {JobState.DONE}
    assert farm.received == 1
    assert farm.stages.events() == ["plan", "build t.held"]


def test_another_sends_it_when_the_first_does_not(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "UPLOAD_S", 0.5)
    job = farm_job("t.a")
    assert farm.join(job, "lost") == 404, "told to send it, and never heard of again"
    with ThreadPoolExecutor(8) as threads:
        waits = [threads.submit(_wait, farm, job) for _ in range(8)]
        assert {wait.result(PATIENCE_S) for wait in waits} == {JobState.DONE}
    assert farm.received == 1


def test_what_is_not_the_graph_keeps_nobody_from_sending_it(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "UPLOAD_S", 60.0)
    monkeypatch.setattr("fusec.remote.farm.POLL_S", 60.0)
    job, started = farm_job("t.a"), time.monotonic()
    assert farm.join(job, "liar") == 404
    with ThreadPoolExecutor(1) as threads:
        honest = threads.submit(_wait, farm, job)
        time.sleep(0.2)
        liar = FarmClient(farm.client())
        with pytest.raises(FarmUnavailable, match="fingerprint") as caught:
            liar._send(replace(job, graph=farm_job("t.b").graph, waiter="liar"))
        assert caught.value.cause is Cause.REFUSED
        assert honest.result(PATIENCE_S) is JobState.DONE
    assert time.monotonic() - started < 50.0, "nobody has waited for the one who was told to"
    assert farm.stages.events() == ["plan", "build t.a"]


def test_who_has_joined_sends_the_graph_when_the_job_is_lost(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusec.remote.farm.POLL_S", 0.5)
    job = farm_job("t.held")
    FarmClient(farm.client()).submit(replace(job, waiter="sender"))  # and is gone
    with ThreadPoolExecutor(4) as threads:
        waits = [threads.submit(_wait, farm, job) for _ in range(4)]
        _until(lambda: farm.metric("fusec_farm_inflight_merges_total") >= 4)
        assert farm.received == 1
        farm.stop()
        farm.start()
        _until(lambda: farm.stages.count("plan") == 2)
        farm.stages.go()
        assert {wait.result(PATIENCE_S) for wait in waits} == {JobState.DONE}
    assert farm.received == 1, "of those who had joined one has sent it"


def test_a_join_takes_the_role_submit(farm: Farm) -> None:
    job = farm_job("t.a")
    assert farm.join(job, "w", token="reader") == 403
    assert farm.join(job, "w", token="nobody") == 401
    assert farm.join(job, "a b") == 400
    assert farm.join(job, "w") == 404


def test_a_full_farm_says_so_before_anything_is_sent(farm: Farm) -> None:
    for name in ("t.held", "t.b", "t.c"):  # one in work, two that wait
        FarmClient(farm.client()).submit(farm_job(name))
    assert farm.received == 3
    with pytest.raises(FarmUnavailable) as caught:
        FarmClient(farm.client()).submit(farm_job("t.d"))
    assert caught.value.cause is Cause.BUSY
    assert farm.received == 3
    assert farm.join(farm_job("t.b"), "v") == 200, "what waits is joined though it is full"


def test_an_artifact_that_has_gone_is_made_again(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farm.gateway.FRESH_S", -1.0)
    job = farm_job("t.a")
    assert _wait(farm, job) is JobState.DONE
    assert farm.join(job, "w") == 200
    farm.store.delete_entry(f"graph/{job.fingerprint}")
    assert _wait(farm, job) is JobState.DONE
    assert farm.stages.count("plan") == 2


def test_whose_turn_it_is_to_send() -> None:
    now = 0.0
    made = Arrivals(lambda: now)
    assert made.claim(NAME)
    assert not made.claim(NAME)
    assert made.claim(NAME._replace(tenant="other")), "tenants share nothing"
    now = arrivals.UPLOAD_S
    assert made.claim(NAME), "the first one is late"
    assert not made.claim(NAME)
    made.refused(NAME)
    assert all(made.claim(NAME) for _ in range(3))
    made.came(NAME)
    assert made.claim(NAME)
    for number in range(2 * arrivals.MOST):
        made.claim(JobId("", f"{number:064x}"))
    assert len(made._expected) == arrivals.MOST, "what is remembered is bounded"
    now += arrivals.UPLOAD_S
    assert made.claim(NAME)
    assert len(made._expected) == 1


def test_those_who_wait_hear_of_it_at_once() -> None:
    async def play() -> list[str]:
        loop = asyncio.get_running_loop()
        made, heard = Arrivals(loop.time), list[str]()

        async def wait(who: str, seconds: float) -> None:
            await made.wait(NAME, loop.time() + seconds)
            heard.append(who)

        await made.wait(NAME, loop.time() + PATIENCE_S)  # nobody was told to: no reason to wait
        assert made.claim(NAME)
        async with asyncio.TaskGroup() as group:
            group.create_task(wait("impatient", 0.0))
            group.create_task(wait("patient", PATIENCE_S))
            await asyncio.sleep(0.05)
            heard.append("came")
            made.came(NAME)
        return heard

    assert asyncio.run(play()) == ["impatient", "came", "patient"]
