"""Reads of the service: from memory, and one of the store for all who ask at once."""

import asyncio
import socket
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from cache import protocol, routes_cache, service_state
from cache.artifacts import publish
from cache.config import ServiceConfig
from cache.embedded import serve_in_thread
from cache.errors import NotReachable
from cache.lru import ITEM_BYTES, ByteLRU
from cache.memory import MemoryStore
from cache.protocol import MSGPACK, pack, unpack
from cache.revocation import KEY as REVOCATIONS
from cache.service import create_app
from tests.cache.asking import post, value
from tests.cache.conftest import s3_store
from tests.cache.samples import BLOBS, artifact, key, manifest, noise, put


class Slow(MemoryStore):
    """Counts its reads, each of which takes a while."""

    def __init__(self):
        super().__init__()
        self.reads = 0
        self.lock = threading.Lock()
        self.fault = None
        self.delay_s = 0.3

    def slowly(self):
        with self.lock:
            self.reads += 1
        time.sleep(self.delay_s)
        if self.fault is not None:
            raise self.fault

    def get_blob(self, digest):
        self.slowly()
        return super().get_blob(digest)

    def get_entry(self, key):
        if key != REVOCATIONS:
            self.slowly()
        return super().get_entry(key)


@pytest.mark.parametrize("what", ["blob", "entry"])
def test_concurrent_reads_of_a_cold_key_are_one_store_read(what):
    store = Slow()
    name = put(store, noise(1000))
    store.put_entry(key(), manifest({}).encode())
    store.reads = 0
    path = f"/v1/blobs/{name}" if what == "blob" else f"/v1/entries/{key()}"

    async def ask(url):
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=30) as client:
            return await asyncio.gather(*(client.get(path) for _ in range(64)))

    with serve_in_thread(ServiceConfig(port=0), store=store) as running:
        replies = asyncio.run(ask(running.url))
        merges = httpx.get(running.url + "/metrics").text
    assert {reply.status_code for reply in replies} == {200}
    assert len({reply.content for reply in replies}) == 1
    assert store.reads == 1
    assert "fusec_cache_inflight_merges_total 63.0" in merges


def test_failed_read_fails_all_who_wait_and_is_not_kept():
    store = Slow()
    store.put_entry(key(), manifest({}).encode())
    store.fault = NotReachable("gone")
    with serve_in_thread(ServiceConfig(port=0), store=store) as running:
        url = f"{running.url}/v1/entries/{key()}"
        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(lambda _: httpx.get(url).status_code, range(8)))
        assert statuses == [503] * 8
        store.fault = None
        assert httpx.get(url).status_code == 200


def test_client_that_goes_away_does_not_end_the_read_for_others():
    store = Slow()
    store.put_entry(key(), manifest({}).encode())
    with serve_in_thread(ServiceConfig(port=0), store=store) as running:
        url = f"{running.url}/v1/entries/{key()}"
        with ThreadPoolExecutor(2) as pool:
            with pytest.raises(httpx.ReadTimeout):
                httpx.get(url, timeout=0.1)
            assert pool.submit(httpx.get, url).result().status_code == 200


def test_hits_are_served_from_memory():
    store = Slow()
    name = put(store, noise(1000))
    with serve_in_thread(ServiceConfig(port=0), store=store) as running:
        for _ in range(5):
            assert httpx.get(f"{running.url}/v1/blobs/{name}").status_code == 200
        assert store.reads == 1


def test_entry_is_read_again_after_its_time():
    store, old, new = MemoryStore(), manifest(meta=b"1"), manifest(meta=b"2").encode()
    publish(store, key(), old, BLOBS)
    with serve_in_thread(ServiceConfig(port=0, entry_ttl_s=0.5), store=store) as running:
        url = f"{running.url}/v1/entries/{key()}"
        started = time.monotonic()
        assert httpx.get(url).content == old.encode()
        store.replace_entry(key(), new)
        while (content := httpx.get(url).content) != new:
            assert content == old.encode()
            assert time.monotonic() < started + 60.0
            time.sleep(0.02)
        assert time.monotonic() - started >= 0.5, "it was read again before its time"


def test_memory_is_bounded():
    store = MemoryStore()
    names = [put(store, noise(10_000, i)) for i in range(20)]
    with serve_in_thread(ServiceConfig(port=0, memory_bytes=50_000), store=store) as running:
        for name in names:
            assert httpx.get(f"{running.url}/v1/blobs/{name}").status_code == 200
        stats = httpx.get(running.url + "/v1/stats").content
    assert 0 < unpack(stats, max_bytes=10_000)["memory"] <= 50_000


@pytest.mark.parametrize("what", ["blob", "entry"])
def test_4096_concurrent_requests_for_one_cold_key_are_one_store_read(what):
    class Counted(MemoryStore):
        reads = 0

        def get_blob(self, digest):
            type(self).reads += 1
            time.sleep(0.3)
            return super().get_blob(digest)

        def get_entry(self, name):
            if name == key():
                type(self).reads += 1
                time.sleep(0.3)
            return super().get_entry(name)

    store = Counted()
    name = put(store, noise(1000))
    store.put_entry(key(), manifest({}).encode())
    Counted.reads = 0
    path = f"/v1/blobs/{name}" if what == "blob" else f"/v1/entries/{key()}"
    app = create_app(ServiceConfig(), store=store)
    statuses: list[int] = []

    async def ask():
        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "query_string": b"",
            "headers": [(b"host", b"127.0.0.1")],
        }
        await asyncio.gather(*(app(dict(scope), receive, send) for _ in range(4096)))

    asyncio.run(ask())
    assert statuses == [200] * 4096
    assert Counted.reads == 1


def test_a_batch_is_read_side_by_side():
    """Each read ends only once another one has begun."""
    begun = threading.Barrier(2)

    class Paired(MemoryStore):
        def get_blob(self, digest):
            begun.wait(30)
            return super().get_blob(digest)

    store = Paired()
    names = [put(store, noise(1000, i)) for i in range(20)]
    with (
        serve_in_thread(ServiceConfig(port=0), store=store) as running,
        httpx.Client(base_url=running.url, timeout=60) as http,
    ):
        assert set(value(post(http, "/v1/blobs/get", {"digests": names}))["blobs"]) == set(names)


def test_a_batch_holds_what_fits_and_reads_little_of_the_rest(monkeypatch):
    monkeypatch.setattr(protocol, "MAX_BATCH_BYTES", 50_000)
    store = Slow()
    store.delay_s = 0.0
    names = [put(store, noise(10_000, i)) for i in range(100)]
    store.reads = 0
    with (
        serve_in_thread(ServiceConfig(port=0), store=store) as running,
        httpx.Client(base_url=running.url, timeout=60) as http,
    ):
        assert len(value(post(http, "/v1/blobs/get", {"digests": names}))["blobs"]) == 4
        assert store.reads == routes_cache.AT_ONCE


def test_many_slow_readers_of_one_batch_share_its_bytes():
    """Nobody reads an answer of 48 MiB: what waits to be sent is not copied for each of them."""
    store = MemoryStore()
    names = [put(store, noise(8 << 20, i)) for i in range(6)]
    body = pack({"digests": names})
    head = (
        f"POST /v1/blobs/get HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {MSGPACK}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    with serve_in_thread(ServiceConfig(port=0), store=store) as running, ExitStack() as stack:
        address = ("127.0.0.1", running.port)
        with httpx.Client(base_url=running.url, timeout=60) as http:
            post(http, "/v1/blobs/get", {"digests": names})  # they are in memory from now on
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        for _ in range(8):
            connection = stack.enter_context(socket.create_connection(address))
            connection.sendall(head.encode() + body)
            assert connection.recv(12) == b"HTTP/1.1 200"
        assert tracemalloc.get_traced_memory()[1] < 48 << 20


@pytest.mark.parametrize("what", ["written", "removed"])
def test_a_fresh_read_under_way_does_not_put_back_what_it_has_read(what):
    began, go_on = threading.Event(), threading.Event()

    class Waits(MemoryStore):
        armed = False

        def get_entry(self, name):
            data = super().get_entry(name)
            if self.armed and name == key():
                self.armed = False
                began.set()
                assert go_on.wait(30)
            return data

    store = Waits()
    old, new = manifest({}, meta=b"old").encode(), manifest({}, meta=b"new").encode()
    store.put_entry(key(), old)
    config = ServiceConfig(port=0, entry_ttl_s=3600.0)
    with (
        serve_in_thread(config, store=store) as running,
        httpx.Client(base_url=running.url, timeout=60) as http,
        ThreadPoolExecutor(1) as pool,
    ):
        store.armed = True
        body = {"keys": [key()], "fresh": True}
        read = pool.submit(lambda: post(httpx, f"{running.url}/v1/entries/lookup", body))
        assert began.wait(30)
        path = f"/v1/entries/{key()}"
        done = http.put(path, content=new) if what == "written" else http.delete(path)
        assert done.is_success
        go_on.set()
        assert value(read.result(60)) == {"found": {key(): old}}
        reply = http.get(path)
        assert reply.content == new if what == "written" else reply.status_code == 404


def test_what_lies_in_memory_is_counted_with_its_name():
    kept = ByteLRU(20 * ITEM_BYTES)
    for number in range(100):
        kept.put(number, b"")
    assert len(kept) == 20
    assert kept.bytes == 20 * ITEM_BYTES
    kept.pop(99)
    assert kept.bytes == 19 * ITEM_BYTES


def test_who_asks_at_the_same_time_gets_one_answer_of_the_store():
    class Described(Slow):
        def describe(self):
            self.slowly()
            return super().describe()

    store = Described()
    with (
        serve_in_thread(ServiceConfig(port=0), store=store) as running,
        ThreadPoolExecutor(8) as pool,
    ):
        for path in ("/", "/readyz"):
            store.reads = 0
            asked = [pool.submit(httpx.get, running.url + path) for _ in range(8)]
            assert {each.result().status_code for each in asked} == {200}
            assert store.reads < 8


def test_notes_of_use_do_not_hold_readers_up(moto, monkeypatch):
    """They are made beside the readers, a few at a time; the next use makes what was left out."""
    free = threading.Event()
    with s3_store(moto) as store:
        for number in range(20):
            artifact(store, number)
        touched = []

        def touch(name):
            touched.append(name)
            assert free.wait(60)

        monkeypatch.setattr(store, "touch_entry", touch)
        config = ServiceConfig(port=0, gc_max_age_s=1e6, store_threads=service_state.TOUCHING + 1)
        with (
            serve_in_thread(config, store=store) as running,
            httpx.Client(base_url=running.url, timeout=60) as http,
        ):
            for number in range(20):
                assert http.get(f"/v1/entries/{key(number)}").status_code == 200
            assert len(touched) <= service_state.TOUCHING
            free.set()
            deadline = time.monotonic() + 60
            while len(set(touched)) < 20:
                assert time.monotonic() < deadline
                for number in range(20):
                    http.get(f"/v1/entries/{key(number)}")
