"""Every fault of store or remote ends in the right result, a counter and one clear warning."""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cache.asgi import Receive, Scope, Send
from cache.auth import Grant, hash_token
from cache.config import ServiceConfig
from cache.embedded import serve_app_in_thread, serve_in_thread
from cache.errors import NotReachable
from cache.local import LocalStore
from cache.manifest import Manifest
from cache.memory import MemoryStore
from cache.protocol import pack, unpack
from cache.service import create_app
from farm.embedded import embedded_farm
from fusec.remote.tiers import Source
from tests.farm.clients import Client, NewClient
from tests.farm.tiny_stages import TinyStages, graph_job, operators

NAMES = ("t.a", "t.b")


def _compile(here: Client, *names: str) -> Source | None:
    ticket = here.resolver.submit(graph_job(*(names or NAMES)))
    assert operators(ticket.result()) == list(names or NAMES)
    return ticket.source


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "fusec.remote"]


def _fill(store: MemoryStore | LocalStore, stages: TinyStages, client: NewClient) -> None:
    """Put the artifact of NAMES into a store, as a farm would."""
    assert _compile(client(None, stages.compile_local, local=store)) is Source.COMPILED_HERE


@contextmanager
def _tampered(
    store: MemoryStore | LocalStore, path: str, change: Callable[[bytes], bytes]
) -> Iterator[str]:
    """A cache service over `store` whose answers at `path` are changed on their way."""
    inner = create_app(ServiceConfig(port=0), store=store)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(path):
            await inner(scope, receive, send)
            return
        sent: list[MutableMapping[str, Any]] = []

        async def keep(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        await inner(scope, receive, keep)
        start, body = sent
        data = change(body["body"])
        headers = [
            (b"content-type", b"application/msgpack"),
            (b"content-length", str(len(data)).encode()),
        ]
        await send({**start, "headers": headers})
        await send({"type": "http.response.body", "body": data})

    with serve_app_in_thread(app) as running:
        yield running.url


def _each_blob(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    def changed(body: bytes) -> bytes:
        value = unpack(body, max_bytes=1 << 26)
        assert isinstance(value, dict)
        blobs = value["blobs"]
        assert isinstance(blobs, dict)
        return pack({"blobs": {k: change(v) for k, v in blobs.items() if isinstance(v, bytes)}})

    return changed


def _flip(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_an_unreachable_remote(
    client: NewClient, stages: TinyStages, caplog: pytest.LogCaptureFixture
) -> None:
    here = client("http://127.0.0.1:1", stages.compile_local)
    started = time.monotonic()
    for number in range(10):
        assert _compile(here, f"t.n{number}") is Source.COMPILED_HERE
    assert time.monotonic() - started < 2.0
    assert here.counters()["local_compiles"] == 10
    assert here.counters()["remote_errors"] >= 10
    told = _warnings(caplog)
    assert len(told) == 1, "the farm behind a dead service is the same fault"
    assert "127.0.0.1:1" in told[0]


def test_a_silent_remote_costs_its_budget_once(
    client: NewClient, stages: TinyStages, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # accepts, and never answers
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        here = client(url, stages.compile_local, budget_s=0.5, probe_s=(5.0, 6.0))
        started = time.monotonic()
        for number in range(5):
            assert _compile(here, f"t.n{number}") is Source.COMPILED_HERE
        assert time.monotonic() - started < 2.0
    assert here.counters()["local_compiles"] == 5
    assert len(_warnings(caplog)) == 1


def test_a_remote_that_answers_500(
    client: NewClient, stages: TinyStages, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"<html>no</html>"})

    with serve_app_in_thread(app) as running:
        here = client(running.url, stages.compile_local)
        assert _compile(here) is Source.COMPILED_HERE
        assert _compile(here, "t.c") is Source.COMPILED_HERE
    assert here.counters()["local_compiles"] == 2
    assert here.counters()["remote_errors"] >= 2
    assert len(_warnings(caplog)) == 1
    assert "500" in _warnings(caplog)[0]


@pytest.mark.parametrize(
    "change", [_flip, lambda data: data[: len(data) // 2]], ids=["flipped", "truncated"]
)
def test_a_blob_damaged_on_the_way(
    client: NewClient,
    stages: TinyStages,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[bytes], bytes],
) -> None:
    store = MemoryStore()
    _fill(store, stages, client)
    with _tampered(store, "/v1/blobs/get", _each_blob(change)) as url:
        here = client(url, stages.compile_local)
        assert _compile(here) is Source.COMPILED_HERE
    assert here.counters()["corrupt"] == 1
    assert here.counters()["local_compiles"] == 1
    told = [text for text in _warnings(caplog) if "damaged" in text]
    assert len(told) == 1


def test_an_answer_that_is_cut_short(
    client: NewClient, stages: TinyStages, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    _fill(store, stages, client)
    with _tampered(store, "/v1/entries/lookup", lambda body: body[:-9]) as url:
        here = client(url, stages.compile_local)
        assert _compile(here) is Source.COMPILED_HERE
    assert here.counters()["remote_errors"] >= 1
    assert here.counters()["local_compiles"] == 1
    assert len([text for text in _warnings(caplog) if "msgpack" in text]) == 1


@pytest.mark.parametrize(
    "change", [_flip, lambda data: data[: len(data) // 2]], ids=["flipped", "truncated"]
)
def test_a_damaged_file_of_the_local_store_heals(
    client: NewClient,
    stages: TinyStages,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[bytes], bytes],
) -> None:
    store = LocalStore(tmp_path / "store")
    _fill(store, stages, client)
    for path in (tmp_path / "store").rglob("*.zst"):
        path.write_bytes(change(path.read_bytes()))
    here = client(None, stages.compile_local, local=store)
    assert _compile(here) is Source.COMPILED_HERE
    assert here.counters()["corrupt"] == 1
    assert len(_warnings(caplog)) == 1
    again = client(None, stages.compile_local, local=store)
    assert _compile(again) is Source.LOCAL_STORE


def test_damage_in_the_farms_store_heals(
    client: NewClient, stages: TinyStages, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path / "store")
    _fill(store, stages, client)
    for path in (tmp_path / "store").rglob("*.zst"):
        path.write_bytes(_flip(path.read_bytes()))
    with embedded_farm(store=store, stages=stages, workers=2) as farm:
        assert _compile(client(farm.url, stages.compile_local)) in (
            Source.FARM,
            Source.COMPILED_HERE,
        )
        assert _compile(client(farm.url, stages.compile_local)) in (
            Source.FARM,
            Source.REMOTE_STORE,
        )
        assert _compile(client(farm.url, stages.compile_local)) is Source.REMOTE_STORE


def test_a_full_disk(
    client: NewClient,
    stages: TinyStages,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = LocalStore(tmp_path / "store")
    here = client(None, stages.compile_local, local=store)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert _compile(here) is Source.COMPILED_HERE
        assert _compile(here, "t.c") is Source.COMPILED_HERE
    assert here.counters()["store_full"] == 1, "not tried again for a while"
    assert len(_warnings(caplog)) == 1
    assert "No space left" in _warnings(caplog)[0]
    assert store.get_entry(graph_job(*NAMES).key) is None, "no entry without its blobs"


def test_a_full_disk_under_the_farm(
    client: NewClient,
    stages: TinyStages,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = LocalStore(tmp_path / "store")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with embedded_farm(store=store, stages=stages, workers=2) as farm:
        here = client(farm.url, stages.compile_local)
        monkeypatch.setattr(os, "fsync", full)
        assert _compile(here) is Source.COMPILED_HERE
    assert here.counters()["remote_errors"] == 1
    assert len([text for text in _warnings(caplog) if "No space left" in text]) == 1


@pytest.mark.parametrize("where", ["local", "remote"])
def test_a_manifest_from_a_newer_version(
    client: NewClient, stages: TinyStages, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    newer = pack({"version": 2, "sha256": b"\0" * 32, "body": b"from the future", "more": 1})
    store, local = MemoryStore(), MemoryStore()
    key = graph_job(*NAMES).key
    (local if where == "local" else store).put_entry(key, newer)
    with serve_in_thread(ServiceConfig(port=0), store=store) as cache:
        here = client(cache.url, stages.compile_local, local=local)
        assert _compile(here) is Source.COMPILED_HERE
    assert here.counters()["newer_version"] == 1
    assert len([text for text in _warnings(caplog) if "newer fusec" in text]) == 1
    standing = (local if where == "local" else store).get_entry(key)
    assert standing == newer, "what a newer fusec has written stays"


def test_a_front_record_that_lies(
    client: NewClient, stages: TinyStages, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    _fill(store, stages, client)
    for number, meta in enumerate((b"junk", pack({"v": 1}))):
        key = f"front/{number:064x}"
        store.put_entry(key, Manifest("front", (), meta).encode())
        here = client(None, stages.compile_local, local=store)
        assert here.resolver.lookup_front(key) is None
        assert here.counters() == {"front_misses": 1, "corrupt": 1}
    assert len(_warnings(caplog)) == 2, "one a process and cause; these were two"


def test_a_token_that_is_refused(
    client: NewClient, stages: TinyStages, caplog: pytest.LogCaptureFixture
) -> None:
    config = ServiceConfig(port=0, tokens=(Grant("read", hash_token("secret-token")),))
    with serve_in_thread(config) as cache:
        here = client(cache.url, stages.compile_local)
        assert _compile(here) is Source.COMPILED_HERE
    assert here.counters()["remote_errors"] >= 1
    assert any("token" in text for text in _warnings(caplog))
    assert "secret-token" not in caplog.text


def test_a_remote_that_comes_back_is_used_again(client: NewClient, stages: TinyStages) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
    here = client(f"http://127.0.0.1:{port}", stages.compile_local)
    assert _compile(here) is Source.COMPILED_HERE
    store = MemoryStore()
    _fill(store, stages, client)
    with serve_in_thread(ServiceConfig(port=port), store=store):
        assert here.remote is not None
        deadline = time.monotonic() + 10.0
        while here.remote.budget.is_open and time.monotonic() < deadline:
            here.resolver.lookup("graph/" + "0" * 64)  # a probe is due at times
            time.sleep(0.05)
        assert here.resolver.lookup("graph/" + "0" * 64) is None
        assert not here.remote.budget.is_open
        assert _compile(here, "t.c") is Source.COMPILED_HERE, "there is no farm behind it"


def test_a_store_that_raises_everywhere_is_no_more_than_a_miss(
    client: NewClient, stages: TinyStages, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(MemoryStore):
        def get_entry(self, key: str) -> bytes | None:
            raise NotReachable("stale file handle")

        def put_blob(self, digest: str, data: bytes) -> None:
            raise NotReachable("stale file handle")

    caplog.set_level(logging.WARNING)
    here = client(None, stages.compile_local, local=Broken())
    assert _compile(here) is Source.COMPILED_HERE
    assert len(_warnings(caplog)) == 2, "reading and writing"


def test_results_from_many_threads(client: NewClient, stages: TinyStages) -> None:
    with embedded_farm(stages=stages, workers=2) as farm:
        here = client(farm.url, stages.compile_local)
        sources: list[Source | None] = []
        threads = [
            threading.Thread(target=lambda: sources.append(_compile(here))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20.0)
    assert len(sources) == 8
    assert stages.count("plan") == 1
