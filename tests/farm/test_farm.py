"""A whole farm: cache service, gateway and memory pool on loopback, with real clients."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest

from cache.artifacts import lookup
from cache.config import ServiceConfig
from cache.embedded import serve_app_in_thread, serve_in_thread
from cache.memory import MemoryStore
from cache.protocol import pack, unpack
from farm.config import FarmConfig
from farm.embedded import EmbeddedFarm, embedded_farm
from farm.memory_pool import MemoryPool
from farm.open_farm import open_app
from farm.workers import PART_KERNELS, run
from fusec.remote.farm import FarmClient, FarmUnavailable
from fusec.remote.jobs import FrontRecord, parts_of
from fusec.remote.protocol import JobState, JobStatus
from fusec.remote.ticket import Ticket
from fusec.remote.tiers import Source
from tests.farm.clients import Client, NewClient
from tests.farm.tiny_stages import TinyStages, farm_job, graph_job, operators


@pytest.fixture
def stages(tmp_path: Path) -> TinyStages:
    return TinyStages(str(tmp_path))


@pytest.fixture
def farm(stages: TinyStages) -> Iterator[EmbeddedFarm]:
    with embedded_farm(stages=stages, workers=4) as running:
        yield running


def _metric(farm: EmbeddedFarm, line: str) -> float:
    for text in httpx.get(farm.gateway_url + "/metrics").text.splitlines():
        if text.startswith(line + " "):
            return float(text.rsplit(" ", 1)[1])
    return 0.0


def _compile(here: Client, *names: str) -> Ticket:
    ticket = here.resolver.submit(graph_job(*names))
    assert operators(ticket.result()) == list(names)
    return ticket


def test_cold_warm_and_kernels_shared_between_graphs(
    client: NewClient, farm: EmbeddedFarm, stages: TinyStages
) -> None:
    first = client(farm.url, stages.compile_local)
    assert _compile(first, "t.a", "t.b", "t.a").source is Source.FARM
    assert first.counters() == {"graph_misses": 1, "farm_compiles": 1}
    assert stages.count("build t.a") == 1, "two launches of one kernel are one build"
    assert _compile(first, "t.a", "t.b", "t.a").source is Source.LOCAL_STORE

    second = client(farm.url, stages.compile_local)
    assert _compile(second, "t.a", "t.b", "t.a").source is Source.REMOTE_STORE
    assert second.counters() == {"graph_hits": 1}
    assert _compile(second, "t.b", "t.c").source is Source.FARM
    assert stages.count("build t.b") == 1, "a kernel that is stored is not built again"
    assert stages.count("local") == 0
    assert _metric(farm, 'fusec_farm_kernels_total{source="stored"}') == 1
    assert _metric(farm, 'fusec_farm_jobs_total{state="done"}') == 2


def test_thirty_two_submits_are_one_compile(
    client: NewClient, farm: EmbeddedFarm, stages: TinyStages
) -> None:
    def one(number: int) -> list[str]:
        here = client(farm.url, stages.compile_local, wait_s=150.0, budget_s=150.0)
        return operators(here.resolver.submit(graph_job("t.held")).result())

    merges = "fusec_farm_inflight_merges_total"
    with ThreadPoolExecutor(32) as threads:
        found = [threads.submit(one, number) for number in range(32)]
        deadline = time.monotonic() + 60.0
        while _metric(farm, merges) < 31 and time.monotonic() < deadline:
            time.sleep(0.05)
        stages.go()
        assert [future.result() for future in found] == [["t.held"]] * 32
    assert stages.events() == ["plan", "build t.held"]
    assert _metric(farm, 'fusec_farm_submits_total{outcome="queued"}') == 1
    assert _metric(farm, merges) >= 31


def test_kernels_are_published_though_their_job_is_over(
    client: NewClient, stages: TinyStages
) -> None:
    class Slow(MemoryStore):
        def put_entry(self, key: str, manifest_bytes: bytes) -> bool:
            if key.startswith("kernel/"):
                time.sleep(0.3)
            return super().put_entry(key, manifest_bytes)

    store = Slow()
    with embedded_farm(stages=stages, workers=2, store=store) as farm:
        _compile(client(farm.url, stages.compile_local), "t.a")
        deadline = time.monotonic() + 5.0
        while store.describe()["entries"] != 2 and time.monotonic() < deadline:
            time.sleep(0.02)
    assert store.describe()["entries"] == 2, "the graph and its kernel"


EIGHT = tuple(f"t.k{number}" for number in range(PART_KERNELS))
"""As many kernels as a plan hands on together."""


def test_kernels_are_built_while_their_plan_goes_on(
    client: NewClient, farm: EmbeddedFarm, stages: TinyStages
) -> None:
    ticket = client(farm.url, stages.compile_local).resolver.submit(graph_job(*EIGHT, "t.later"))
    deadline = time.monotonic() + 60.0
    while len(stages.events()) < 1 + len(EIGHT) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert sorted(stages.events()) == [*sorted(f"build {name}" for name in EIGHT), "plan"]
    stages.go()
    assert operators(ticket.result()) == [*EIGHT, "t.later"]
    assert stages.count("build t.later") == 1


def test_a_plan_that_is_tried_again_has_its_kernels_built_once(
    client: NewClient, farm: EmbeddedFarm, stages: TinyStages
) -> None:
    assert _compile(client(farm.url, stages.compile_local), *EIGHT, "t.tired").source is Source.FARM
    assert stages.count("plan") == 2
    assert [stages.count(f"build {name}") for name in (*EIGHT, "t.tired")] == [1] * 9


def test_kernels_of_a_plan_that_nobody_waits_for_any_more_are_not_begun(
    client: NewClient, stages: TinyStages
) -> None:
    with embedded_farm(stages=stages, workers=1) as farm:
        here = client(farm.url, stages.compile_local)
        ticket = here.resolver.submit(graph_job(*EIGHT, "t.later"))
        begun = 'fusec_farm_kernels_total{source="built"}'
        deadline = time.monotonic() + 60.0
        while _metric(farm, begun) < len(EIGHT) and time.monotonic() < deadline:
            time.sleep(0.02)
        ticket.cancel()
        while _metric(farm, 'fusec_farm_jobs_total{state="failed"}') < 1:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        stages.go()
        _compile(here, "t.a")
    assert stages.events() == ["plan", "plan", "build t.a"]


def test_two_graphs_in_flight_share_their_kernels(
    client: NewClient, farm: EmbeddedFarm, stages: TinyStages
) -> None:
    here = client(farm.url, stages.compile_local)
    tickets = [
        here.resolver.submit(graph_job("t.slow", "t.a")),
        here.resolver.submit(graph_job("t.slow", "t.b")),
    ]
    for ticket in tickets:
        ticket.result()
        assert ticket.source is Source.FARM
    assert stages.count("build t.slow") == 1
    assert _metric(farm, 'fusec_farm_kernels_total{source="shared"}') == 1


def test_progress_is_told(client: NewClient, farm: EmbeddedFarm, stages: TinyStages) -> None:
    here = client(farm.url, stages.compile_local)
    assert here.remote is not None
    seen: list[JobStatus] = []
    job = farm_job("t.slow1", "t.slow2", "t.slow3", "t.slow4", "t.slow5", "t.slow6")
    end = FarmClient(here.remote).wait(job, timeout_s=20.0, on_progress=seen.append)
    assert end.state is JobState.DONE
    assert [status.seq for status in seen] == sorted({status.seq for status in seen})
    assert JobState.COMPILING in {status.state for status in seen}
    partly = [s for s in seen if 0 < s.kernels_done < s.kernels_total]
    assert partly, "a bar that jumps from nothing to all is no progress bar"


def test_cancel_by_the_last_waiter_stops_the_job(client: NewClient, tmp_path: Path) -> None:
    stages = TinyStages(str(tmp_path), slow_s=0.5)
    with embedded_farm(stages=stages, workers=1) as farm:
        one, two = (client(farm.url, stages.compile_local) for _ in range(2))
        tickets = [c.resolver.submit(graph_job("t.slow", "t.x", "t.y")) for c in (one, two)]
        tickets[0].cancel()
        assert operators(tickets[1].result()) == ["t.slow", "t.x", "t.y"]
        alone = one.resolver.submit(graph_job("t.slow2", "t.slow3", "t.slow4", "t.slow5"))
        assert not alone.done()  # which waits until it is submitted
        alone.cancel()
        again = one.resolver.submit(graph_job("t.slow2", "t.slow3", "t.slow4", "t.slow5"))
        assert not again.done()  # which waits until it is submitted
        again.cancel()
        assert _metric(farm, 'fusec_farm_jobs_total{state="failed"}') == 2
        time.sleep(0.8)
        assert len([e for e in stages.events() if e.startswith("build t.slow")]) <= 3, (
            "the builds that had not begun must not begin"
        )
        # The same graph may be asked for again at once.
        assert _compile(two, "t.slow2").source is Source.FARM


def test_a_full_queue_is_429_and_the_client_comes_again(client: NewClient, tmp_path: Path) -> None:
    stages = TinyStages(str(tmp_path), slow_s=1.5)
    config = FarmConfig(queue_limit=1, running_limit=1)
    with embedded_farm(stages=stages, workers=2, farm=config) as farm:
        here = client(farm.url, stages.compile_local)
        tickets = [here.resolver.submit(graph_job(f"t.slow{n}")) for n in range(3)]
        for ticket in tickets:
            ticket.done()  # which waits until it was submitted
        reply = httpx.post(
            farm.url + "/v1/compile/submit",
            content=farm_job("t.slow9").encode(),
            headers={"content-type": "application/msgpack"},
        )
        assert reply.status_code == 429
        assert int(reply.headers["retry-after"]) >= 1
        for ticket in tickets:
            ticket.result()
            assert ticket.source is Source.FARM
        assert here.counters() == {"graph_misses": 3, "farm_compiles": 3}


def test_a_farm_that_stays_full_is_given_up(
    client: NewClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusec.remote.farm.BUSY_S", 0.5)
    stages = TinyStages(str(tmp_path), slow_s=3.0)
    config = FarmConfig(queue_limit=1, running_limit=1)
    with embedded_farm(stages=stages, workers=1, farm=config) as farm:
        here = client(farm.url, stages.compile_local)
        # One that runs, then one that fills the queue; `done` waits until a job is at the farm.
        here.resolver.submit(graph_job("t.slow0")).done()
        deadline = time.monotonic() + 20
        while not stages.events() and time.monotonic() < deadline:
            time.sleep(0.01)
        here.resolver.submit(graph_job("t.slow1")).done()
        assert _compile(here, "t.a").source is Source.COMPILED_HERE
        here.resolver.close()


def test_a_compile_error_is_compiled_here(
    client: NewClient, farm: EmbeddedFarm, stages: TinyStages, caplog: pytest.LogCaptureFixture
) -> None:
    """The farm's compiler says no; the client's, which differs in this test, says yes."""

    class Lenient(TinyStages):
        def build(self, source: bytes, target: object) -> bytes:
            return b"binary of " + source

    here = client(farm.url, Lenient(stages.log).compile_local)
    assert _compile(here, "t.a", "t.bad").source is Source.COMPILED_HERE
    assert _compile(here, "t.b", "t.bad").source is Source.COMPILED_HERE
    assert here.counters() == {"graph_misses": 2, "local_compiles": 2, "remote_errors": 2}
    told = [r for r in caplog.records if r.name == "fusec.remote"]
    assert len(told) == 1, "one warning a cause"
    assert "gcc: no" in told[0].getMessage()
    tries = stages.count("build t.bad")
    other = client(farm.url, Lenient(stages.log).compile_local)
    assert _compile(other, "t.a", "t.bad").source is Source.COMPILED_HERE
    assert stages.count("build t.bad") == tries, "a poison graph is remembered"
    assert _metric(farm, 'fusec_farm_errors_total{kind="compile_error"}') >= 1


def test_a_bug_in_a_worker_fails_the_job_after_a_retry(
    client: NewClient, farm: EmbeddedFarm, stages: TinyStages
) -> None:
    here = client(farm.url, stages.compile_local)
    assert here.remote is not None
    with pytest.raises(Exception, match="ZeroDivisionError") as caught:
        FarmClient(here.remote).wait(farm_job("t.bug"), timeout_s=20.0)
    assert getattr(caught.value, "kind", "") == "internal"
    assert stages.count("build t.bug") == 2
    assert _compile(here, "t.a").source is Source.FARM


def test_another_graph_under_a_key_is_refused(
    client: NewClient, farm: EmbeddedFarm, stages: TinyStages
) -> None:
    here = client(farm.url, stages.compile_local)
    assert here.remote is not None
    body = farm_job("t.a").to_wire()
    graph = farm_job("t.b").graph
    assert isinstance(body["body"], dict)
    body["body"]["graph"] = graph
    status, value = here.remote.request("POST", "/v1/compile/submit", body=body, timeout=5.0)
    assert status == 422
    assert "graph" in str(value)
    assert stages.events() == []


def test_a_release_that_differs_is_named(
    client: NewClient, farm: EmbeddedFarm, stages: TinyStages, caplog: pytest.LogCaptureFixture
) -> None:
    here = client(farm.url, stages.compile_local)
    job = graph_job("t.a")
    entries = tuple((n, "f" * 64 if n == "toolchain" else h) for n, h in job.fingerprint.entries)
    other = type(job)(job.graph, job.graph_bytes, type(job.fingerprint)(entries), job.target)
    assert here.resolver.submit(other).result()
    assert here.counters()["local_compiles"] == 1
    assert "what differs: toolchain" in caplog.text


def test_a_worker_of_another_release_publishes_nothing(
    client: NewClient, stages: TinyStages
) -> None:
    other = replace(stages, toolchain="0" * 64)
    store, pool = MemoryStore(), MemoryPool(partial(run, stages=other), 2)
    with serve_app_in_thread(open_app(FarmConfig(), pool, store, stages=stages)) as gateway:
        service = ServiceConfig(port=0, farm_url=gateway.url)
        with serve_in_thread(service, store=store) as cache:
            here = client(cache.url, stages.compile_local)
            assert _compile(here, "t.a").source is Source.COMPILED_HERE
    pool.close()
    assert store.get_entry(graph_job("t.a").key) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        pack({"v": 1}),
        pack({"v": 99, "kind": "graph", "body": {}}),
        pack({"v": 2, "kind": "graph", "body": {}, "extra": 1}),
        pack({"v": 2, "kind": "exec", "body": {}}),
        pack({"v": 2, "kind": "front", "body": {"record": b"junk"}}),
        farm_job("t.a").encode()[:-1],
        farm_job("t.a", training_job="a b").encode(),
        farm_job("t.a", waiter="a b").encode(),
    ],
)
def test_malformed_submits_are_refused(farm: EmbeddedFarm, stages: TinyStages, body: bytes) -> None:
    reply = httpx.post(
        farm.gateway_url + "/v1/compile/submit",
        content=body,
        headers={"content-type": "application/msgpack"},
    )
    assert reply.status_code == 400
    error = unpack(reply.content, max_bytes=1 << 16)
    assert isinstance(error, dict)
    assert isinstance(error["error"], dict)
    assert error["error"]["message"]
    assert stages.events() == []


def test_fronts_are_published_once_their_parts_exist(
    client: NewClient, farm: EmbeddedFarm, stages: TinyStages
) -> None:
    here = client(farm.url, stages.compile_local)
    jobs = {"fw": graph_job("t.a"), "bw": graph_job("t.b")}
    entries = jobs["fw"].fingerprint.entries
    parts = parts_of({role: job.fingerprint.hex for role, job in jobs.items()})
    record = FrontRecord(entries, parts, b"recipe")
    assert here.remote is not None
    assert not FarmClient(here.remote).publish_front(record), "no part exists yet"
    tickets = [here.resolver.submit(job) for job in jobs.values()]
    for ticket in tickets:
        ticket.result()
    here.resolver.publish_front(record)
    assert here.resolver.lookup_front(record.key) is not None

    fresh = client(farm.url, stages.compile_local)
    front = fresh.resolver.lookup_front(record.key)
    assert front is not None
    assert front.record == record
    assert operators(front.parts["bw"]) == ["t.b"]
    assert fresh.counters() == {"front_hits": 1, "graph_hits": 2}
    fresh.resolver.close()
    offline = client(None, stages.compile_local, local=fresh.local)
    assert offline.resolver.lookup_front(record.key) is not None, "kept locally with its parts"


def test_a_gateway_that_restarts_gets_the_job_again(
    client: NewClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusec.remote.farm.POLL_S", 0.2)
    stages = TinyStages(str(tmp_path), slow_s=1.0)
    store, pool, config = MemoryStore(), MemoryPool(partial(run, stages=stages), 2), FarmConfig()
    with ExitStack() as stack:
        stack.callback(pool.close)
        with ExitStack() as life:
            app = open_app(config, pool, store, stages=stages)
            gateway = life.enter_context(serve_app_in_thread(app))
            service = ServiceConfig(port=0, farm_url=gateway.url)
            cache = stack.enter_context(serve_in_thread(service, store=store))
            here = client(cache.url, stages.compile_local, budget_s=5.0)
            ticket = here.resolver.submit(graph_job("t.slow"))
            waiting = stack.enter_context(ThreadPoolExecutor(1)).submit(ticket.result)
            time.sleep(0.4)
        assert not waiting.done()
        app = open_app(config, pool, store, stages=stages)
        stack.enter_context(serve_app_in_thread(app, port=gateway.port))
        assert operators(waiting.result(timeout=20)) == ["t.slow"]
        assert ticket.source is Source.FARM
        assert here.counters() == {"graph_misses": 1, "farm_compiles": 1}
        assert stages.count("plan") == 2, "the second gateway was given the graph again"


def test_hits_go_on_when_the_farm_is_dead(client: NewClient, tmp_path: Path) -> None:
    stages = TinyStages(str(tmp_path))
    store = MemoryStore()
    with embedded_farm(stages=stages, workers=2, store=store) as farm:
        _compile(client(farm.url, stages.compile_local), "t.a")
    dead = "http://127.0.0.1:1"
    with serve_in_thread(ServiceConfig(port=0, farm_url=dead), store=store) as cache:
        here = client(cache.url, stages.compile_local)
        started = time.monotonic()
        assert _compile(here, "t.new").source is Source.COMPILED_HERE
        assert _compile(here, "t.a").source is Source.REMOTE_STORE
        assert _compile(here, "t.new2").source is Source.COMPILED_HERE
        assert time.monotonic() - started < 2.0
        assert here.counters() == {
            "graph_misses": 2,
            "graph_hits": 1,
            "local_compiles": 2,
            "remote_errors": 2,
        }


def test_status_pages(farm: EmbeddedFarm) -> None:
    assert "<h1>fusec farm</h1>" in httpx.get(farm.gateway_url + "/").text
    assert httpx.get(farm.gateway_url + "/healthz").status_code == 200
    assert httpx.get(farm.gateway_url + "/readyz").status_code == 200
    assert httpx.get(farm.gateway_url + "/nothing").status_code == 404


def test_a_token_is_asked_for(client: NewClient, stages: TinyStages) -> None:
    config = FarmConfig(token="secret")
    pool = MemoryPool(partial(run, stages=stages), 1)
    store = MemoryStore()
    with serve_app_in_thread(open_app(config, pool, store, stages=stages)) as gateway:
        for token, works in (("wrong", False), ("secret", True)):
            service = ServiceConfig(port=0, farm_url=gateway.url, farm_token=token)
            with serve_in_thread(service, store=store) as cache:
                remote = client(cache.url, stages.compile_local).remote
                assert remote is not None
                if works:
                    assert FarmClient(remote).wait(farm_job("t.a"), timeout_s=10.0)
                else:
                    with pytest.raises(FarmUnavailable, match="401"):
                        FarmClient(remote).submit(farm_job("t.a"))
    pool.close()
    assert lookup(store, graph_job("t.a").key) is not None
