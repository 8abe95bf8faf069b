"""Other gateways are asked under an address that one of us has written, and nobody else."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest

from cache.embedded import serve_app_in_thread
from cache.errors import ConfigError
from cache.lease import Lease
from cache.memory import MemoryStore
from cache.protocol import PATH_COMPILE, pack, unpack
from farm.config import FarmConfig
from farm.job import JobId
from farm.lease import Sighting
from farm.memory_pool import MemoryPool
from farm.open_farm import open_app
from farm.peers import Peers, new_member
from farm.workers import run
from fusec.remote.protocol import JobState, JobStatus
from tests.cache.certificates import Authority
from tests.cache.servers import free_port
from tests.farm.tiny_stages import TinyStages, farm_job

JOB = JobId("team", "5" * 64)


def _lease(address: str, token: str) -> Lease:
    return Sighting(None, 0.0).take(new_member(address, token, 6.0), 0.0, 1.0).lease


def test_the_token_goes_to_nobody_who_does_not_know_it() -> None:
    heard: list[tuple[str, str, str]] = []
    status = JobStatus(JOB.fingerprint, JobState.COMPILING, seq=4, kernels_total=3)

    async def app(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        if scope["type"] == "lifespan":
            for stage in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{stage}.complete"})
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        namespace = headers.get("x-fusec-namespace", "")
        heard.append((scope["path"], headers.get("authorization", ""), namespace))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": pack(status.to_wire())})

    async def story(url: str) -> None:
        peers = Peers(new_member("http://me:1", "secret", 6.0), "secret")
        good = _lease(url, "secret")
        assert await peers.ask(good, JOB, 0, 0.1) == status
        assert heard == [(f"/v1/compile/{JOB.fingerprint}", "Bearer secret", "team")]
        for bad in (
            _lease(url, "guessed"),
            replace(_lease("http://elsewhere:1", "secret"), address=url),
            replace(good, owner="0" * 32),
        ):
            assert await peers.ask(bad, JOB, 0, 0.1) is None
        assert await peers.ask(_lease("http://me:1", "secret"), JOB, 0, 0.1) is None, "itself"
        assert await peers.ask(_lease("http://127.0.0.1:1", "secret"), JOB, 0, 0.1) is None
        assert await peers.ask(good, JobId("team", "6" * 64), 0, 0.1) is None, "of another job"
        assert len(heard) == 2
        await peers.close()

    with serve_app_in_thread(app) as running:
        asyncio.run(story(running.url))


def test_where_other_gateways_reach_this_one() -> None:
    assert FarmConfig().address() == "http://127.0.0.1:8701"
    assert FarmConfig(host="::1").address() == "http://[::1]:8701"
    everywhere = FarmConfig(host="0.0.0.0", token="secret", port=9).address()
    assert "0.0.0.0" not in everywhere
    assert everywhere.endswith(":9")
    assert FarmConfig(advertise="https://gateway-0:1/").address() == "https://gateway-0:1"
    with pytest.raises(ConfigError, match="advertise"):
        FarmConfig(advertise="gateway-0:1")
    for bad in (-1.0, 1e9, float("nan")):
        with pytest.raises(ConfigError, match="lease_s"):
            FarmConfig(lease_s=bad)


def test_gateways_have_one_certificate_which_names_their_service(tmp_path: Path) -> None:
    """As on Kubernetes: they find each other by address, and no certificate names a pod's."""
    service = "fusec-gateway.fusec.svc"
    authority = Authority(tmp_path)
    pair = authority.issue("gateway", service)
    stages, store = TinyStages(str(tmp_path)), MemoryStore()
    job = farm_job("t.held")
    with ExitStack() as stack:
        urls = []
        for name in (service, service, "", "another.svc"):
            config = FarmConfig(
                port=free_port(),
                lease_s=6.0,
                tls_cert=str(pair.cert),
                tls_key=str(pair.key),
                peer_ca=str(authority.cert),
                peer_name=name,
            )
            pool = MemoryPool(partial(run, stages=stages), 1)
            stack.callback(pool.close)
            app = open_app(config, pool, store, stages=stages)
            running = serve_app_in_thread(app, port=config.port, tls=config.tls())
            urls.append(stack.enter_context(running).url)
        assert all(url.startswith("https://127.0.0.1:") for url in urls)
        http = stack.enter_context(httpx.Client(verify=False, timeout=60.0))
        owner, *others = (f"{url}{PATH_COMPILE}" for url in urls)
        sent = http.post(f"{owner}/submit", content=job.encode())
        assert sent.status_code == 202

        def poll(gateway: str, after: int) -> httpx.Response:
            query = {"wait": "30", "after": str(after), "waiter": "me"}
            return http.get(f"{gateway}/{job.fingerprint}", params=query)

        status = _status(sent)
        while status.state is not JobState.COMPILING:
            status = _status(poll(owner, status.seq))
        answers = [poll(other, 0) for other in others]
        assert [answer.status_code for answer in answers] == [200, 404, 404]
        assert _status(answers[0]).state is JobState.COMPILING
        stages.go()


def _status(answer: httpx.Response) -> JobStatus:
    return JobStatus.from_wire(unpack(answer.content, max_bytes=1 << 20))
