"""Which gateway a graph goes to: the same for every service, and never a silent one for long."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from cache.config import ServiceConfig
from cache.digest import digest
from cache.embedded import serve_app_in_thread, serve_in_thread
from cache.errors import ConfigError
from cache.farms import MOST_DOWN_S, QUIET_S, Gateways, addresses, order
from cache.tls import ServerTls
from tests.cache.certificates import Authority
from tests.cache.servers import fixed, free_port, head, raw_server, silent

URLS = [f"http://10.0.0.{n}:8701" for n in range(1, 5)]
GRAPHS = [digest(b"%d" % n) for n in range(2000)]


def test_graphs_are_spread_and_stay_where_they_are():
    firsts = {name: order(URLS, name)[0] for name in GRAPHS}
    shares = Counter(firsts.values())
    assert all(400 < shares[url] < 600 for url in URLS)
    assert all(order(reversed(URLS), name)[0] == first for name, first in firsts.items())
    fewer = URLS[1:]
    for name, first in firsts.items():
        if first != URLS[0]:
            assert order(fewer, name)[0] == first, "others' graphs do not move"


def test_a_silent_gateway_is_asked_last_for_a_while():
    now = 0.0
    gateways = Gateways(URLS, clock=lambda: now)
    name = GRAPHS[0]
    first, second, *rest = order(URLS, name)
    gateways.silent(first)
    gateways.silent(first)  # of another request at the same moment
    assert gateways.of(name) == [second, *rest, first]
    assert gateways.down == 1
    now = 1.1
    assert gateways.of(name)[0] == first
    for seconds in (2.0, 4.0, 8.0, MOST_DOWN_S, MOST_DOWN_S):
        gateways.silent(first)
        now += seconds - 0.1
        assert gateways.of(name)[0] == second
        now += 0.2
        assert gateways.of(name)[0] == first
    gateways.answered(first)
    gateways.silent(first)
    now += 1.1
    assert gateways.down == 0


def test_what_the_last_gateway_says_is_passed_back():
    drained = fixed(head("503 Service Unavailable", 5) + b"later")
    with raw_server(drained) as one, raw_server(drained) as two:
        config = ServiceConfig(port=0, farm_url=f"{one},{two}")
        with serve_in_thread(config) as running:
            reply = httpx.get(f"{running.url}/v1/compile/{GRAPHS[0]}")
            assert (reply.status_code, reply.text) == (503, "later")


def test_a_long_poll_ends_with_its_gateway(monkeypatch):
    """One that says nothing, as a machine that has gone, is found out though a poll may be long."""
    monkeypatch.setattr("cache.routes_farm.QUIET_S", 0.1)
    monkeypatch.setattr("cache.farms.QUIET_S", 0.1)
    monkeypatch.setattr("cache.routes_farm.ALIVE_SECONDS", 0.5)
    with serve_app_in_thread(_echo("good")) as good, raw_server(silent) as bad:
        graph = next(name for name in GRAPHS if order([bad, good.url], name)[0] == bad)
        config = ServiceConfig(port=0, farm_url=f"{bad},{good.url}")
        with serve_in_thread(config) as running:
            started = time.monotonic()
            reply = httpx.get(f"{running.url}/v1/compile/{graph}?wait=60", timeout=90.0)
            assert reply.text.startswith("good GET")
            assert time.monotonic() - started < 45.0, "long before the poll is over"


def test_a_gateway_that_is_well_is_waited_for(monkeypatch):
    monkeypatch.setattr("cache.routes_farm.QUIET_S", 0.1)
    monkeypatch.setattr("cache.farms.QUIET_S", 0.1)
    asked = []

    async def slow(scope, receive, send):
        if scope["type"] == "http":
            asked.append(scope["path"])
            if scope["path"] != "/healthz":
                await asyncio.sleep(1.0)
        await _echo("slow")(scope, receive, send)

    with serve_app_in_thread(slow) as one, raw_server(silent) as two:
        graph = next(name for name in GRAPHS if order([one.url, two], name)[0] == one.url)
        config = ServiceConfig(port=0, farm_url=f"{one.url},{two}")
        with serve_in_thread(config) as running, ThreadPoolExecutor(16) as threads:
            url = f"{running.url}/v1/compile/{graph}?wait=30"
            replies = [threads.submit(httpx.get, url, timeout=90.0) for _ in range(16)]
            assert all(reply.result().text.startswith("slow GET") for reply in replies)
    assert "/healthz" in asked


def test_however_many_want_to_know_a_gateway_is_asked_once():
    async def play():
        now, asks = 0.0, 0
        gateways = Gateways(URLS, clock=lambda: now)

        async def all_think(answer):
            async def ask():
                nonlocal asks
                asks += 1
                await asyncio.sleep(0)
                return answer

            return set(await asyncio.gather(*(gateways.lives(URLS[0], ask) for _ in range(50))))

        assert (await all_think(True), asks) == ({True}, 1)
        now += QUIET_S
        assert (await all_think(False), asks) == ({False}, 2)
        gateways.answered(URLS[0])
        assert (await all_think(False), asks) == ({True}, 2), "it has just answered somebody"

    asyncio.run(play())


def test_all_silent_are_asked_all_the_same():
    gateways = Gateways(URLS)
    for url in URLS:
        gateways.silent(url)
    assert sorted(gateways.of(GRAPHS[0])) == URLS


def test_addresses_are_checked():
    config = ServiceConfig(farm_url="http://a:1/, https://b:2,,http://a:1")
    assert config.farm_urls() == ("http://a:1", "https://b:2")
    assert ServiceConfig().farm_urls() == ()
    with pytest.raises(ConfigError, match="ftp://b"):
        ServiceConfig(farm_url="http://a:1,ftp://b")


def _echo(name: str):
    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            for stage in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{stage}.complete"})
            return
        text = f"{name} {scope['method']} {scope['query_string'].decode()}".encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": text})

    return app


def test_what_is_about_one_graph_goes_to_one_gateway():
    with serve_app_in_thread(_echo("one")) as one, serve_app_in_thread(_echo("two")) as two:
        urls = [one.url, two.url]
        config = ServiceConfig(port=0, farm_url=",".join(urls))
        with serve_in_thread(config) as running, httpx.Client(base_url=running.url) as http:
            met = set()
            for graph in GRAPHS[:12]:
                expected = {one.url: "one", two.url: "two"}[order(urls, graph)[0]]
                submit = http.post(f"/v1/compile/submit?fingerprint={graph}", content=b"x")
                poll = http.get(f"/v1/compile/{graph}?wait=0&waiter=a")
                left = http.delete(f"/v1/compile/{graph}?waiter=a")
                assert submit.text == f"{expected} POST fingerprint={graph}"
                assert poll.text == f"{expected} GET wait=0&waiter=a"
                assert left.text == f"{expected} DELETE waiter=a"
                met.add(expected)
            assert met == {"one", "two"}
            assert http.post("/v1/compile/submit", content=b"x").status_code == 200
            for wrong in ("x", "nan", "-1"):
                assert http.get(f"/v1/compile/{GRAPHS[0]}?wait={wrong}").status_code == 400


@pytest.mark.parametrize("fault", ["closed", "silent", "breaks off", "drained"])
def test_the_next_gateway_is_asked_when_one_does_not_answer(fault, monkeypatch):
    monkeypatch.setattr("cache.routes_farm.SPARE_SECONDS", 0.5)
    broken = {
        "breaks off": fixed(head("200 OK", 10) + b"half"),
        "drained": fixed(head("503 Service Unavailable", 5) + b"later"),
    }
    with serve_app_in_thread(_echo("good")) as good:
        closed = f"http://127.0.0.1:{free_port()}"
        with raw_server(broken.get(fault, silent)) as other:
            bad = closed if fault == "closed" else other
            config = ServiceConfig(port=0, farm_url=f"{bad},{good.url}")
            graph = next(name for name in GRAPHS if order([bad, good.url], name)[0] == bad)
            with serve_in_thread(config) as running, httpx.Client(base_url=running.url) as http:
                for _ in range(3):
                    reply = http.get(f"/v1/compile/{graph}?wait=0.1", timeout=60.0)
                    assert reply.text.startswith("good GET")
                text = http.get("/metrics").text
                none = 'fusec_cache_errors_total{where="farm"} 0.0' in text
                assert none == (fault == "drained")


def _replicas(monkeypatch, found):
    """The addresses that a name has; `found` may change, and may be an error."""

    async def addresses(host):
        assert host == "fusec-gateway.test"
        if isinstance(found[0], OSError):
            raise found[0]
        return found

    monkeypatch.setattr("cache.farms.addresses", addresses)
    monkeypatch.setattr("cache.farms.NAMES_S", 0.0)


def _until(holds):
    give_up = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def test_a_name_with_several_addresses_is_as_many_gateways(monkeypatch, tmp_path):
    """They show one certificate, of the name, as the gateways of the chart do."""
    authority = Authority(tmp_path)
    pair = authority.issue("gateway", "fusec-gateway.test")
    tls = ServerTls(str(pair.cert), str(pair.key))
    found = ["127.0.0.2", "127.0.0.3"]
    _replicas(monkeypatch, found)
    with (
        serve_app_in_thread(_echo("127.0.0.2"), host=found[0], tls=tls) as one,
        serve_app_in_thread(_echo("127.0.0.3"), host=found[1], port=one.port, tls=tls),
    ):
        url = f"https://fusec-gateway.test:{one.port}"
        config = ServiceConfig(port=0, farm_url=url, farm_ca=str(authority.cert))
        with serve_in_thread(config) as running, httpx.Client(base_url=running.url) as http:

            def of(graph):
                return http.get(f"/v1/compile/{graph}?wait=0", timeout=60).text.split()[0]

            _until(lambda: of(GRAPHS[0]) in found)
            answers = {graph: of(graph) for graph in GRAPHS[:12]}
            for graph, answered in answers.items():
                urls = [f"https://{address}:{one.port}" for address in found]
                assert f"https://{answered}:{one.port}" == order(urls, graph)[0]
            assert set(answers.values()) == set(found)
            found[:] = [OSError("no such name")]  # DNS is gone: all stays as it was
            assert {graph: of(graph) for graph in answers} == answers
            found[:] = ["127.0.0.2", "127.0.0.9"]  # one was replaced, and does not answer yet
            _until(lambda: {of(graph) for graph in answers} == {"127.0.0.2"})


def test_addresses_of_a_host():
    assert asyncio.run(addresses("localhost")) == ["127.0.0.1"]
