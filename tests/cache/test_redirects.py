"""Large blobs come from S3 itself, by an address that the service signs, or through it."""

import httpx
import pytest

from cache.artifacts import lookup, publish
from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.config import ServiceConfig
from cache.digest import digest
from cache.embedded import serve_app_in_thread, serve_in_thread
from cache.frames import compress, decompress
from cache.manifest import Manifest
from cache.memory import MemoryStore
from cache.service import create_app
from tests.cache.conftest import s3_store
from tests.cache.samples import key, noise, put

LARGE, SMALL = noise(50_000), b"small"
CONFIG = ServiceConfig(port=0, redirect_bytes=10_000, memory_bytes=0)


@pytest.fixture
def store(moto):
    with s3_store(moto) as made:
        yield made


def client(running):
    return CacheClient(running.url, budget=DelayBudget(10.0))


def test_a_large_blob_is_fetched_from_s3_and_a_small_one_from_the_service(store):
    for data in (LARGE, SMALL):
        put(store, data)
    with serve_in_thread(CONFIG, store=store) as running, client(running) as made:
        assert made.get_blob(digest(LARGE)) == LARGE
        assert made.metrics.get("redirects") == 1
        assert made.get_blob(digest(SMALL)) == SMALL
        assert made.get_blob(digest(b"absent")) is None
        assert made.metrics.get("redirects") == 1


def test_the_address_needs_no_token_and_does_not_show_ours(store):
    name = put(store, LARGE)
    with serve_in_thread(CONFIG, store=store) as running:
        asked = {"x-fusec-redirect": "1", "authorization": "Bearer secret"}
        reply = httpx.get(f"{running.url}/v1/blobs/{name}", headers=asked)
        assert reply.status_code == 307
        assert "secret" not in reply.headers["location"]
        assert decompress(httpx.get(reply.headers["location"]).content, name) == LARGE


def test_who_does_not_follow_gets_the_bytes(store):
    name = put(store, LARGE)
    with serve_in_thread(CONFIG, store=store) as running:
        assert httpx.get(f"{running.url}/v1/blobs/{name}").status_code == 200


def test_stores_without_addresses_and_services_without_the_setting_serve_all(store):
    name = put(store, LARGE)
    memory = MemoryStore()
    put(memory, LARGE)
    for config, kept in ((ServiceConfig(port=0), store), (CONFIG, memory)):
        with serve_in_thread(config, store=kept) as running, client(running) as made:
            assert made.get_blob(name) == LARGE
            assert made.metrics.get("redirects") == 0


@pytest.mark.parametrize(
    "location",
    ["http://127.0.0.1:1/x", "http://nowhere.invalid/x", "file:///etc/passwd", "nonsense", ""],
)
def test_an_address_out_of_reach_costs_a_detour(location):
    memory = MemoryStore()
    name = put(memory, LARGE)
    with _redirecting(memory, lambda _: location) as running, client(running) as made:
        assert made.get_blob(name) == LARGE
        assert made.metrics.get("redirects_failed") == 1


def test_other_bytes_at_the_address_are_not_believed():
    memory = MemoryStore()
    name, other = put(memory, LARGE), put(memory, b"planted" * 2000)

    def location(url):
        return f"{url}/v1/blobs/{other}?x"

    with _redirecting(memory, location) as running, client(running) as made:
        assert made.get_blob(name) == LARGE
        assert made.metrics.get("corrupt") == 1


def test_the_token_goes_to_the_service_alone():
    seen = []

    async def elsewhere(scope, receive, send):
        if scope["type"] == "lifespan":
            for stage in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{stage}.complete"})
            return
        seen.extend(name for name, _ in scope["headers"])
        frame = compress(LARGE)
        length = [(b"content-length", str(len(frame)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": frame})

    memory = MemoryStore()
    name = put(memory, LARGE)
    with (
        serve_app_in_thread(elsewhere) as other,
        _redirecting(memory, lambda _: other.url + "/x") as running,
        CacheClient(running.url, token="secret", namespace="", budget=DelayBudget(10.0)) as made,
    ):
        assert made.get_blob(name) == LARGE
        assert made.metrics.get("redirects") == 1
    assert b"authorization" not in seen


def test_whole_artifacts_come_by_both_ways(store, monkeypatch):
    monkeypatch.setattr("cache.protocol.MAX_BATCH_BYTES", 20_000)
    blobs = {"large": LARGE, "small": SMALL}
    publish(store, key(), Manifest.of("graph", blobs), blobs)
    with serve_in_thread(CONFIG, store=store) as running, client(running) as made:
        found = lookup(made, key())
        assert found is not None
        assert found.blobs == blobs
        assert made.metrics.get("redirects") == 1


def _redirecting(store, location):
    """A service whose every asked-for redirect goes to `location(its own address)`."""
    inner = create_app(ServiceConfig(port=0), store=store)

    async def app(scope, receive, send):
        headers = dict(scope.get("headers", ()))
        if scope["type"] == "http" and headers.get(b"x-fusec-redirect") == b"1":
            mine = f"http://{headers[b'host'].decode()}"
            where = [(b"location", location(mine).encode()), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 307, "headers": where})
            await send({"type": "http.response.body", "body": b""})
            return
        await inner(scope, receive, send)

    return serve_app_in_thread(app)
