"""Other gateways are asked under an address that one of us has written, and nobody else."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from cache.embedded import serve_app_in_thread
from cache.errors import ConfigError
from cache.lease import Lease
from cache.protocol import pack
from farm.config import FarmConfig
from farm.job import JobId
from farm.lease import Sighting
from farm.peers import Peers, new_member
from fusec.remote.protocol import JobState, JobStatus

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
