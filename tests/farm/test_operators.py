"""What operators see of a farm and tell it: routes, the page, and the `fusec farm` command."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest

from cache.auth import Grant, hash_token
from cache.client import CacheClient
from cache.config import ServiceConfig
from cache.embedded import serve_app_in_thread, serve_in_thread
from cache.memory import MemoryStore
from cache.protocol import MSGPACK, pack, unpack
from cache.store import Store
from farm.config import FarmConfig
from farm.memory_pool import MemoryPool
from farm.open_farm import open_app
from farm.workers import run
from fusec.cli.parser import run as command
from fusec.options import Target
from fusec.remote.farm import Cause, FarmClient, FarmUnavailable
from fusec.remote.farm_status import STATUS_PATH, FarmStatus
from fusec.remote.protocol import JobState
from fusec.remote.ticket import Ticket
from fusec.remote.tiers import Source
from tests.farm.clients import NewClient
from tests.farm.tiny_stages import TinyStages, farm_job, graph_job

TOKENS = (
    Grant("admin", hash_token("root")),
    Grant("submit", hash_token("rank")),
    Grant("admin", hash_token("team"), "team"),
    Grant("submit", hash_token("member"), "team"),
)


@dataclass(frozen=True)
class HeldStages(TinyStages):
    """Kernels named `t.held…` are built once the test lets them."""

    def build(self, source: bytes, target: Target) -> bytes:
        gate, deadline = Path(self.log) / "gate", time.monotonic() + 60.0
        while source.startswith(b"t.held") and not gate.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        return super().build(source, target)

    def let_go(self) -> None:
        (Path(self.log) / "gate").touch()


@dataclass(frozen=True)
class Farm:
    """A cache service with tokens before a gateway with two workers and one slot."""

    url: str
    gateway_url: str
    stages: HeldStages
    closing: ExitStack

    def client(self, token: str, namespace: str = "") -> CacheClient:
        made = CacheClient(self.url, token=token, namespace=namespace)
        self.closing.callback(made.close)
        return made

    def status(self, token: str = "root", namespace: str = "") -> FarmStatus:
        code, value = self.client(token, namespace).request("GET", STATUS_PATH, timeout=20.0)
        assert code == 200, value
        return FarmStatus.from_wire(value)

    def submit(self, name: str, token: str = "rank", namespace: str = "", **what: str) -> str:
        FarmClient(self.client(token, namespace)).submit(farm_job(name, **what))  # type: ignore[arg-type]
        return farm_job(name).fingerprint

    def metric(self, line: str) -> float:
        for text in httpx.get(self.gateway_url + "/metrics").text.splitlines():
            if text.startswith(line + " "):
                return float(text.rsplit(" ", 1)[1])
        raise AssertionError(f"no metric {line}")


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    stages = HeldStages(str(tmp_path))
    stores: dict[str, Store] = {"": MemoryStore(), "team": MemoryStore()}
    config = FarmConfig(token="farm", running_limit=1)
    with ExitStack() as stack:
        pool = MemoryPool(partial(run, stages=stages), 2)
        stack.callback(pool.close)
        app = open_app(config, pool, stores[""], stages=stages, open_namespace=stores.__getitem__)
        gateway = stack.enter_context(serve_app_in_thread(app))
        service = ServiceConfig(port=0, farm_url=gateway.url, farm_token="farm", tokens=TOKENS)
        cache = stack.enter_context(serve_in_thread(service, store=stores[""]))
        stack.callback(stages.let_go)
        yield Farm(cache.url, gateway.url, stages, stack)


def _until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60.0
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_status_tells_what_waits_runs_and_ran(farm: Farm) -> None:
    farm.submit("t.bad")
    _until(lambda: farm.status().poisoned)
    farm.submit("t.held1", training_job="run/7")
    _until(lambda: farm.status().running)
    farm.submit("t.held2", waiter="v")
    farm.submit("t.held2", waiter="w")
    status = farm.status()
    (running,) = status.running
    assert (running.training_job, running.waiters) == ("run/7", 1)
    assert status.in_work == 1
    (waits,) = status.queue
    assert (waits.tenant, waits.priority, waits.length) == ("", "waiting", 1)
    assert [(row.needs, row.workers) for row in status.workers] == [("cpu", 2)]
    (poisoned,) = status.poisoned
    assert poisoned.error == "compile_error"
    assert "gcc: no" in poisoned.message
    assert farm.metric('fusec_farm_queue_length{priority="waiting"}') == 1
    assert farm.metric('fusec_farm_queue_oldest_seconds{priority="waiting"}') > 0
    assert farm.metric('fusec_farm_workers{worker="cpu"}') == 2
    farm.stages.let_go()
    _until(lambda: not farm.status().in_work and not farm.status().queued)
    status = farm.status()
    assert [row.error for row in status.recent] == ["", "", "compile_error"]
    assert {row.fingerprint for row in status.slowest} == {
        farm_job("t.held1").fingerprint,
        farm_job("t.held2").fingerprint,
    }
    assert status.recent[0].merged == 1
    assert status.recent[0].queued_s > 0
    assert status.submits["queued"] == 3
    assert status.submit_hits == pytest.approx(1 / 4)
    assert status.kernels["built"] == 3
    assert status.seconds_saved is not None
    assert status.seconds_saved > 0
    assert farm.metric('fusec_farm_queue_oldest_seconds{priority="waiting"}') == 0


def test_a_status_that_is_none_is_refused(farm: Farm) -> None:
    from fusec.errors import WireError

    body = farm.status().to_wire()
    for name, value in (
        ("pool", 7), ("queued", "1"), ("queued", True), ("workers", [1]), ("submits", []),
        ("seconds_saved", "much"), ("running", [{"tenant": ""}]),
    ):  # fmt: skip
        with pytest.raises(WireError):
            FarmStatus.from_wire({**body, name: value})
    with pytest.raises(WireError, match="exactly the fields"):
        FarmStatus.from_wire({**body, "more": 1})


@pytest.mark.parametrize(
    ("token", "namespace", "code"),
    [("rank", "", 403), ("nobody", "", 401), ("team", "", 403), ("root", "team", 403)],
)
def test_only_admins_are_told(farm: Farm, token: str, namespace: str, code: int) -> None:
    for method, path in (("GET", STATUS_PATH), ("POST", "/v1/farm/drain")):
        body = {} if method == "POST" else None
        client = farm.client(token, namespace)
        assert client.request(method, path, body=body, timeout=20.0)[0] == code
    # The gateway itself believes nobody without the service's token.
    assert httpx.get(farm.gateway_url + STATUS_PATH).status_code == 401
    assert httpx.get(farm.gateway_url + "/").status_code == 401


def test_a_tenant_sees_and_cancels_its_own_jobs_only(farm: Farm) -> None:
    ours = farm.submit("t.held1")
    theirs = farm.submit("t.held2", "member", "team")
    _until(lambda: farm.status().in_work == 2)
    status = farm.status("team", "team")
    assert [row.fingerprint for row in status.running] == [theirs]
    assert status.submits == {}
    team = farm.client("team", "team")
    code, _ = team.request("POST", "/v1/farm/cancel", body={"fingerprint": ours}, timeout=20.0)
    assert code == 404
    code, value = team.request("POST", "/v1/farm/drain", body={}, timeout=20.0)
    assert code == 403
    assert "default namespace" in str(value)
    code, _ = team.request("POST", "/v1/farm/cancel", body={"fingerprint": theirs}, timeout=20.0)
    assert code == 200
    assert [row.fingerprint for row in farm.status().running] == [ours]


def test_drain_ends_what_is_begun_and_begins_nothing(farm: Farm, client: NewClient) -> None:
    begun = FarmClient(farm.client("rank"))
    job = farm_job("t.held1")
    first = begun.submit(job)
    _until(lambda: farm.status().running)
    waits = FarmClient(farm.client("rank"))
    queued = waits.submit(farm_job("t.held2"))
    admin = farm.client("root")
    assert admin.request("POST", "/v1/farm/drain", body={}, timeout=20.0) == (
        200,
        {"draining": True},
    )
    assert farm.metric("fusec_farm_draining") == 1
    with pytest.raises(FarmUnavailable, match="being drained") as caught:
        begun.submit(farm_job("t.new"))
    assert caught.value.cause is Cause.BUSY
    reply = httpx.post(
        farm.url + "/v1/compile/submit",
        content=farm_job("t.new").encode(),
        headers={"content-type": MSGPACK, "authorization": "Bearer rank"},
    )
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "10")
    joined = begun.submit(farm_job("t.held1", waiter="another"))
    assert joined.state is not JobState.QUEUED, "what is in work may be waited for"
    farm.stages.let_go()
    assert begun.wait(job, timeout_s=60.0, first=first).state is JobState.DONE
    with pytest.raises(FarmUnavailable):
        waits.wait(farm_job("t.held2"), timeout_s=1.0, first=queued)
    status = farm.status()
    assert (status.draining, status.in_work, status.queued) == (True, 0, 1)
    assert "build t.held2" not in farm.stages.events()
    assert begun.submit(job).state is JobState.DONE, "what is stored is there"
    admin.request("POST", "/v1/farm/undrain", body={}, timeout=20.0)
    done = waits.wait(farm_job("t.held2"), timeout_s=60.0)
    assert done.state is JobState.DONE


def test_a_client_compiles_itself_what_was_cancelled(farm: Farm, client: NewClient) -> None:
    here = client(farm.url, farm.stages.compile_local, token="rank")
    ticket: Ticket = here.resolver.submit(graph_job("t.held1", "t.held2", "t.held3"))
    assert not ticket.done()
    prefix = graph_job("t.held1", "t.held2", "t.held3").fingerprint.hex[:10]
    admin = farm.client("root")
    for wrong, code in (("0000000000", 404), ("xyz", 400), ("", 400)):
        body = {"fingerprint": wrong}
        assert admin.request("POST", "/v1/farm/cancel", body=body, timeout=20.0)[0] == code
    reply = admin.request("POST", "/v1/farm/cancel", body={"fingerprint": prefix}, timeout=20.0)
    assert reply[0] == 200
    farm.stages.let_go()
    ticket.result()
    assert ticket.source is Source.COMPILED_HERE


def test_the_page_asks_for_the_token_as_a_password(farm: Farm) -> None:
    farm.submit("t.<script>alert(1)</script>")
    _until(lambda: farm.status().recent)
    refused = httpx.get(farm.url + "/farm")
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Basic ")
    assert httpx.get(farm.url + "/farm", auth=("me", "rank")).status_code == 403
    page = httpx.get(farm.url + "/farm", auth=("me", "root"))
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    for text in ('http-equiv="refresh"', "recent compiles", "slowest graphs", "workers"):
        assert text in page.text
    assert "<script" not in page.text
    basic = httpx.get(farm.url + STATUS_PATH, auth=("me", "root"))
    assert basic.status_code == 401, "what a browser sends unasked opens pages only"
    assert 'href="/farm"' in httpx.get(farm.url + "/").text


def test_another_site_cannot_drain(farm: Farm) -> None:
    reply = httpx.post(
        farm.url + "/v1/farm/drain",
        content=pack({}),
        headers={"content-type": "text/plain", "authorization": "Bearer root"},
    )
    assert reply.status_code == 400
    assert not farm.status().draining


def test_the_command(
    farm: Farm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    token = tmp_path / "token"
    token.write_text("root\n")
    monkeypatch.setenv("FUSEC_REMOTE", farm.url)
    monkeypatch.setenv("FUSEC_TOKEN_FILE", str(token))
    key = farm.submit("t.held1", training_job="run/7")
    _until(lambda: farm.status().running)
    assert command(["farm", "status"]) == 0
    shown = capsys.readouterr().out
    assert "jobs in work" in shown
    assert "run/7" in shown
    assert "\x1b" not in shown, "no colours in a file"
    assert command(["farm", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["running"][0]["fingerprint"] == key
    assert command(["farm", "cancel", f"graph/{key[:12]}"]) == 0
    assert key in capsys.readouterr().out
    assert command(["farm", "cancel", key]) == 1
    assert "no job" in capsys.readouterr().err
    assert command(["farm", "drain"]) == 0
    assert command(["farm", "status"]) == 0
    assert "DRAINING" in capsys.readouterr().out
    assert command(["farm", "undrain"]) == 0
    token.write_text("rank\n")
    assert command(["farm", "status"]) == 1
    assert "role admin" in capsys.readouterr().err


def test_the_command_watches_until_it_is_interrupted(farm: Farm) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "fusec", "farm", "status", "--watch", "--json", "--every", "0.1"],
        stdout=subprocess.PIPE,
        text=True,
        env={"FUSEC_REMOTE": farm.url, "FUSEC_TOKEN": "root", "PYTHONPATH": ":".join(sys.path)},
    ) as process:
        assert process.stdout is not None
        for _ in range(3):
            assert json.loads(process.stdout.readline())["pool"] == "memory"
        process.terminate()


def test_limits_are_named_to_who_meets_them(tmp_path: Path) -> None:
    stages = HeldStages(str(tmp_path))
    pool = MemoryPool(partial(run, stages=stages), 1)
    config = FarmConfig(running_limit=1, queue_limit=8, tenants="team=1/1")
    stores: dict[str, Store] = {"": MemoryStore(), "team": MemoryStore()}
    app = open_app(config, pool, stores[""], stages=stages, open_namespace=stores.__getitem__)
    with serve_app_in_thread(app) as gateway:

        def post(name: str, namespace: str) -> httpx.Response:
            headers = {"content-type": MSGPACK, "x-fusec-namespace": namespace}
            url = gateway.url + "/v1/compile/submit"
            return httpx.post(url, content=farm_job(name).encode(), headers=headers)

        assert [post(f"t.held{n}", "team").status_code for n in range(2)] == [202, 202]
        full = post("t.held2", "team")
        assert full.status_code == 429
        assert int(full.headers["retry-after"]) >= 1
        assert "'team'" in str(unpack(full.content, max_bytes=1 << 16))
        assert post("t.held2", "").status_code == 202, "others have their own room"
        text = httpx.get(gateway.url + "/metrics").text
        assert 'fusec_farm_refused_total{limit="tenant"} 1.0' in text
        stages.let_go()
    pool.close()
