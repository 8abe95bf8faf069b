"""The collector as a part of the service, and as a command."""

import asyncio
import time

import httpx
import pytest

from cache import service, service_state
from cache.__main__ import main
from cache.artifacts import lookup
from cache.config import ServiceConfig
from cache.digest import digest
from cache.embedded import serve_in_thread
from cache.errors import ConfigError, NotReachable
from cache.fence import Fence
from cache.local import LocalStore
from cache.memory import MemoryStore
from cache.open_store import collected_part, namespaces
from cache.tiered import TieredStore
from tests.cache.ages import age
from tests.cache.conftest import s3_store
from tests.cache.samples import artifact, key, keys_of, put

DAY = 86_400.0


def test_a_service_collects_on_its_schedule(tmp_path):
    root = tmp_path / "store"
    store = LocalStore(root)
    artifact(store, 0)
    age(store, 9 * DAY)
    config = ServiceConfig(port=0, store=f"file://{root}", gc_every_s=0.2, gc_max_age_s=DAY)
    with serve_in_thread(config):
        deadline = time.monotonic() + 10
        while keys_of(store) or list(store.list_blobs()):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_what_a_service_serves_is_in_use(tmp_path, moto, monkeypatch):
    monkeypatch.setattr(service_state, "TOUCH_SECONDS", 3600.0)
    with s3_store(moto) as store:
        artifact(store, 0)
        artifact(store, 1)
        age(store, 10)
        before = {item.name: item.at for item in store.list_entries()}
        config = ServiceConfig(port=0, gc_max_age_s=DAY)
        with serve_in_thread(config, store=store) as running:
            for _ in range(3):
                assert httpx.get(f"{running.url}/v1/entries/{key(0)}").status_code == 200
            deadline = time.monotonic() + 10
            while True:
                after = {item.name: item.at for item in store.list_entries()}
                if after[key(0)] > before[key(0)]:
                    break
                assert time.monotonic() < deadline
                time.sleep(0.1)
        assert after[key(1)] == before[key(1)]


def test_the_copies_on_a_services_disk_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "DISK_EVERY_S", 0.2)
    near = LocalStore(tmp_path / "near")
    # Of a namespace that nobody has asked for since the service began.
    beside = LocalStore(tmp_path / "near/ns/team-a")
    store = TieredStore(near, MemoryStore())
    for number in range(10):
        artifact(store, number)
        artifact(beside, 100 + number)
    for part in (near, beside):
        age(part, 9 * DAY)
    config = ServiceConfig(port=0, store="s3://none", disk=str(tmp_path / "d"), disk_bytes=6000)
    with serve_in_thread(config, store=store):
        deadline = time.monotonic() + 60
        while sum(held(part) for part in (near, beside)) > 6000:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert min(held(near), held(beside)) > 0
    assert all(lookup(store, key(number)) for number in range(10)), "the far store has all"


def held(store):
    return sum(item.bytes for item in (*store.list_blobs(), *store.list_entries()))


def test_a_schedule_goes_on_after_a_store_that_failed(tmp_path):
    store = LocalStore(tmp_path / "store")
    artifact(store, 0)
    age(store, 9 * DAY)
    failures = []
    listed = store.list_blobs

    def fails_once():
        if not failures:
            failures.append(1)
            raise NotReachable("the disk is away")
        return listed()

    store.list_blobs = fails_once
    config = ServiceConfig(port=0, gc_every_s=0.05, gc_max_age_s=DAY)
    with serve_in_thread(config, store=store) as running:
        deadline = time.monotonic() + 60
        while keys_of(store):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        text = httpx.get(running.url + "/metrics").text
    assert 'fusec_cache_collections_total{outcome="failed"} 1.0' in text


def test_gc_once_as_a_person_types_it(tmp_path, capsys):
    store = LocalStore(tmp_path)
    inside = LocalStore(tmp_path / "ns" / "team-a")
    for each in (store, inside):
        artifact(each, 0)
    assert namespaces(store) == ["team-a"]
    flags = ["gc-once", "--store", f"file://{tmp_path}", "--gc-max-bytes", "1"]
    assert main([*flags, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert out.count(f"entry {key(0)}") == 2
    assert "namespace team-a" in out
    assert keys_of(store) == keys_of(inside) == {key(0)}
    assert main(flags) == 0
    assert keys_of(store) == keys_of(inside) == set()
    assert list(store.list_blobs()) != [], "their grace is not over"
    assert main(["gc-once"]) == 2
    assert main([*flags, "--gc-grace-s", "10"]) == 2


def test_settings_that_make_no_sense_are_refused():
    for wrong in ({"gc_every_s": -1.0}, {"gc_grace_s": 10.0}, {"disk_bytes": -1}):
        with pytest.raises(ConfigError):
            ServiceConfig(**wrong)


def test_memory_is_not_collected():
    assert collected_part(MemoryStore()) is None


def test_a_fence_without_announcements_asks_the_store_alone(tmp_path):
    store = LocalStore(tmp_path)
    name = put(store, b"x")

    async def call(function, *arguments):
        return function(*arguments)

    fence = Fence(store, store, call)
    assert asyncio.run(fence.present([name, digest(b"y")])) == {name}
    assert asyncio.run(fence.must_write(name)) is False
