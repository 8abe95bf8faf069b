"""Drain is the farm's: all gateways begin nothing, those that come later too, until one is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest

from cache.embedded import serve_app_in_thread
from cache.errors import NotReachable, ProtocolError
from cache.memory import MemoryStore
from cache.protocol import MAX_RECORD, MSGPACK, pack
from farm import drain
from farm.config import FarmConfig
from farm.memory_pool import MemoryPool
from farm.open_farm import open_app
from farm.workers import run
from tests.farm.tiny_stages import TinyStages, farm_job


class Broken(MemoryStore):
    """A store whose records are out of reach at times."""

    away = False

    def get_record(self, name: str) -> bytes | None:
        if self.away:
            raise NotReachable("the store is away")
        return super().get_record(name)


class Farm:
    """Gateways over one store."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.store = Broken()
        self.stages = TinyStages(str(folder))
        self._stack = stack
        self._pool = MemoryPool(partial(run, stages=self.stages), 2)
        stack.callback(self._pool.close)

    def gateway(self) -> str:
        app = open_app(FarmConfig(), self._pool, self.store, stages=self.stages)
        return self._stack.enter_context(serve_app_in_thread(app)).url


@pytest.fixture
def farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Farm]:
    monkeypatch.setattr(drain, "LOOK_S", 0.1)
    with ExitStack() as stack:
        yield Farm(stack, tmp_path)


def _submit(url: str, name: str) -> int:
    headers = {"content-type": MSGPACK}
    address = url + "/v1/compile/submit"
    content = farm_job(name).encode()
    return httpx.post(address, content=content, headers=headers, timeout=30.0).status_code


def _tell(url: str, word: str) -> int:
    headers = {"content-type": MSGPACK, "x-fusec-role": "admin"}
    address = f"{url}/v1/farm/{word}"
    return httpx.post(address, content=pack({}), headers=headers, timeout=60.0).status_code


def _draining(url: str) -> bool:
    return "fusec_farm_draining 1.0" in httpx.get(url + "/metrics", timeout=30.0).text


def _until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60.0
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_drain_is_all_gateways_and_outlives_them(farm: Farm) -> None:
    one, two = farm.gateway(), farm.gateway()
    assert _tell(one, "drain") == 200
    assert _draining(one)
    assert _submit(one, "t.a") == 503
    _until(lambda: _draining(two))
    assert _submit(two, "t.a") == 503
    late = farm.gateway()
    assert _draining(late), "it has read so before it took anything in"
    assert _submit(late, "t.a") == 503
    assert farm.stages.events() == []
    assert _tell(two, "undrain") == 200
    assert _submit(two, "t.b") == 202
    _until(lambda: not _draining(one) and not _draining(late))
    assert _submit(one, "t.c") == 202


def test_a_word_that_cannot_be_kept_is_refused(farm: Farm) -> None:
    url = farm.gateway()
    farm.store.away = True
    assert _tell(url, "drain") == 503
    assert not _draining(url)
    farm.store.away = False
    assert _tell(url, "drain") == 200
    farm.store.away = True
    time.sleep(0.3)
    assert _draining(url), "while nobody can say, it stays as it is"


def test_a_record_that_makes_no_sense_is_refused() -> None:
    assert drain.decode(None) is False
    assert drain.decode(drain.encode(on=True)) is True
    assert drain.decode(drain.encode(on=False)) is False
    assert len(drain.encode(on=True)) < MAX_RECORD
    for wrong in (b"", b"\xc1", pack({}), pack({"version": 2, "draining": True}),
                  pack({"version": 1, "draining": 1}), pack([1])):  # fmt: skip
        with pytest.raises(ProtocolError):
            drain.decode(wrong)
