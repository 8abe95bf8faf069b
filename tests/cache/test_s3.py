"""The S3 store against a real server, and against none."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import httpx
import pytest

from cache.artifacts import Miss, lookup, publish
from cache.config import ServiceConfig
from cache.counters import Counters
from cache.digest import digest
from cache.embedded import serve_in_thread
from cache.errors import NotReachable, Refused
from cache.frames import compress
from cache.open_store import open_store
from cache.s3 import S3Store
from cache.testing import seaweedfs_server
from cache.tiered import TieredStore
from tests.cache.conftest import s3_store
from tests.cache.samples import BLOBS, key, manifest, noise, put
from tests.cache.servers import dripping, fixed, free_port, head, raw_server, silent


def objects(store):
    listed = store.bucket.client.list_objects_v2(Bucket="fusec", Prefix=store.bucket.prefix)
    return [item["Key"] for item in listed.get("Contents", ())]


def overwrite(store, part, change):
    (name,) = [name for name in objects(store) if part in name]
    body = store.bucket.client.get_object(Bucket="fusec", Key=name)["Body"].read()
    store.bucket.client.put_object(Bucket="fusec", Key=name, Body=change(body))


def flip(body):
    changed = bytearray(body)
    changed[len(body) // 2] ^= 4
    return bytes(changed)


@pytest.mark.s3
class TestRealServer:
    @pytest.mark.parametrize(
        "change",
        [flip, lambda body: body[:-1], lambda body: b"", lambda body: compress(b"other")],
        ids=["flipped", "truncated", "empty", "other blob"],
    )
    def test_damaged_blob_is_a_corrupt_miss_and_heals(self, seaweed_store, change):
        publish(seaweed_store, key(), manifest(), BLOBS)
        overwrite(seaweed_store, digest(BLOBS["program"]), change)
        reasons = []
        assert lookup(seaweed_store, key(), on_miss=lambda _, why: reasons.append(why)) is None
        assert reasons == [Miss.CORRUPT]
        assert seaweed_store.counters.get("corrupt") == 1
        publish(seaweed_store, key(), manifest(), BLOBS)
        assert lookup(seaweed_store, key()).blobs == BLOBS

    def test_damaged_entry_is_a_corrupt_miss_and_heals(self, seaweed_store):
        publish(seaweed_store, key(), manifest(), BLOBS)
        overwrite(seaweed_store, "/entries/", flip)
        reasons = []
        assert lookup(seaweed_store, key(), on_miss=lambda _, why: reasons.append(why)) is None
        assert reasons == [Miss.CORRUPT]
        publish(seaweed_store, key(), manifest(), BLOBS)
        assert lookup(seaweed_store, key()).blobs == BLOBS

    def test_one_of_many_racing_stores_wins(self, seaweedfs):
        keys = (seaweedfs.access_key, seaweedfs.secret_key)
        first = s3_store(seaweedfs.endpoint, *keys)
        prefix = first.bucket.prefix.removesuffix("/v1/")
        stores = [first] + [
            S3Store(
                "fusec",
                prefix,
                endpoint=seaweedfs.endpoint,
                access_key=keys[0],
                secret_key=keys[1],
            )
            for _ in range(7)
        ]

        def write(number):
            made = manifest({}, meta=b"%d" % number)
            return publish(stores[number % 8], key(), made, {})

        with ThreadPoolExecutor(32) as pool:
            results = set(pool.map(write, range(32)))
        assert results == {lookup(first, key()).manifest}
        for store in stores:
            store.close()

    def test_what_is_swapped_beside_many_touches_stays(self, seaweed_store):
        values = [manifest({}, meta=b"%d" % number).encode() for number in range(60)]
        seaweed_store.put_entry(key(), values[0])
        stop = threading.Event()

        def touch():
            count = 0
            while not stop.is_set():
                seaweed_store.touch_entry(key())
                count += 1
            return count

        with ThreadPoolExecutor(2) as pool:
            touching = [pool.submit(touch) for _ in range(2)]
            try:
                for before, after in pairwise(values):
                    assert seaweed_store.swap_entry(key(), digest(before), after), "it was undone"
            finally:
                stop.set()
            assert all(future.result() for future in touching)
        assert seaweed_store.get_entry(key()) == values[-1]

    def test_layout(self, seaweed_store):
        publish(seaweed_store, key(), manifest({"a": b"x"}), {"a": b"x"})
        base, name = seaweed_store.bucket.prefix, digest(b"x")
        assert objects(seaweed_store) == [
            f"{base}blobs/{name[:2]}/{name}.zst",
            f"{base}entries/{key()}",
        ]

    def test_wrong_secret_is_refused(self, seaweedfs):
        with s3_store(seaweedfs.endpoint, seaweedfs.access_key, "wrong") as store:
            for call in (
                lambda: store.get_blob(digest(b"x")),
                lambda: put(store, b"x"),
                lambda: store.get_entry(key()),
                store.describe,
            ):
                with pytest.raises(Refused) as caught:
                    call()
                assert "credentials" in caught.value.hint
                assert "wrong" not in str(caught.value)

    def test_killed_server_comes_back_with_what_it_had(self, tmp_path):
        with seaweedfs_server(tmp_path) as server:
            with s3_store(server.endpoint, server.access_key, server.secret_key) as store:
                prefix = store.bucket.prefix.removesuffix("/v1/")
                for i in range(20):
                    publish(store, key(i), manifest({"a": noise(9000, i)}), {"a": noise(9000, i)})
            os.kill(server.pid, signal.SIGKILL)
        with (
            seaweedfs_server(tmp_path) as server,
            S3Store(
                "fusec",
                prefix,
                endpoint=server.endpoint,
                access_key=server.access_key,
                secret_key=server.secret_key,
            ) as store,
        ):
            for i in range(20):
                assert lookup(store, key(i)).blobs == {"a": noise(9000, i)}

    def test_service_configuration_opens_it(self, seaweedfs, monkeypatch, tmp_path):
        for name, text in seaweedfs.env.items():
            monkeypatch.setenv(name, text)
        config = ServiceConfig(
            store="s3://fusec/configured", s3_endpoint=seaweedfs.endpoint, disk=str(tmp_path / "d")
        )
        store = open_store(config, Counters())
        assert isinstance(store, TieredStore)
        publish(store, key(), manifest(), BLOBS)
        assert lookup(store.far, key()).blobs == BLOBS
        assert lookup(store.near, key()).blobs == BLOBS
        store.far.close()


@pytest.fixture(params=["moto", pytest.param("seaweedfs", marks=pytest.mark.s3)])
def stores(request):
    """Two stores over the same objects."""
    server = request.getfixturevalue(request.param)
    endpoint, *keys = (
        (server, "any", "any")
        if isinstance(server, str)
        else (server.endpoint, server.access_key, server.secret_key)
    )
    with (
        s3_store(endpoint, *keys) as one,
        S3Store(
            "fusec",
            one.bucket.prefix.removesuffix("/v1/"),
            endpoint=endpoint,
            access_key=keys[0],
            secret_key=keys[1],
        ) as two,
    ):
        yield one, two


@pytest.mark.parametrize("what", ["swapped", "removed"])
def test_a_touch_does_not_undo_what_came_between_its_read_and_its_write(stores, what):
    one, two = stores
    old, new = manifest({}, meta=b"old").encode(), manifest({}, meta=b"new").encode()
    one.put_entry(key(), old)
    one.touch_entry(key())  # by which it knows that the server's conditions hold
    came = []

    def between(**_):
        if what == "swapped":
            came.append(two.swap_entry(key(), digest(old), new))
        else:
            came.append(two.delete_entry(key()) is None)

    one.bucket.client.meta.events.register("before-send.s3.PutObject", between)
    one.touch_entry(key())
    assert came == [True]
    assert one.get_entry(key()) == (new if what == "swapped" else None)


def test_missing_bucket_is_not_reachable(moto):
    with S3Store("no-bucket", endpoint=moto, access_key="any", secret_key="any") as store:
        for call in (
            lambda: put(store, b"x"),
            lambda: store.get_entry(key()),
            lambda: store.put_entry(key(), manifest({}).encode()),
        ):
            with pytest.raises(NotReachable, match="NoSuchBucket") as caught:
                call()
            assert "bucket" in caught.value.hint


def test_missing_bucket_is_not_ready(moto, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    config = ServiceConfig(port=0, store="s3://no-bucket/x", s3_endpoint=moto)
    with serve_in_thread(config) as running:
        assert httpx.get(running.url + "/healthz").status_code == 200
        assert httpx.get(running.url + "/readyz").status_code == 503


def no_retries(endpoint, **more):
    return s3_store(endpoint, attempts=1, timeout_s=0.5, **more)


def test_unreachable_server_is_not_reachable():
    with no_retries(f"http://127.0.0.1:{free_port()}") as store:
        for call in (
            lambda: store.get_blob(digest(b"x")),
            lambda: store.get_blobs([digest(b"x"), digest(b"y")]),
            lambda: store.has_blobs([digest(b"x")]),
            lambda: put(store, b"x"),
            lambda: store.get_entry(key()),
            lambda: store.put_entry(key(), b"x"),
            lambda: store.replace_entry(key(), b"x"),
            lambda: store.delete_entry(key()),
            store.describe,
        ):
            with pytest.raises(NotReachable, match="EndpointConnectionError"):
                call()
        assert store.counters.get("io_errors") >= 9


@pytest.mark.parametrize(
    "answer",
    [
        silent,
        fixed(head("500 Internal Server Error", 0)),
        fixed(head("503 Slow Down", 0)),
        fixed(head("200 OK", 1000) + b"cut"),
        fixed(b"not http"),
        dripping(noise(300_000), 150_000),
    ],
    ids=["silent", "500", "503", "cut in the body", "garbage", "slow"],
)
def test_broken_server_is_not_reachable(answer):
    started = time.monotonic()
    with raw_server(answer) as endpoint, no_retries(endpoint) as store:
        with pytest.raises(NotReachable):
            store.get_blob(digest(b"x"))
        assert store.counters.get("corrupt") == 0
    assert time.monotonic() - started < 10


def test_odd_endpoint_is_not_reachable():
    with pytest.raises(NotReachable, match="cannot open the store"):
        S3Store("fusec", endpoint="not an address")
