"""Writes to the local store beside the caller."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cache.artifacts import Found, lookup
from cache.local import LocalStore
from cache.manifest import Manifest
from cache.memory import MemoryStore
from fusec.remote.keeper import Keeper


def _artifact(text: bytes) -> Found:
    blobs = {"program": text}
    return Found(Manifest.of("graph", blobs), blobs)


def _key(number: int) -> str:
    return f"graph/{number:064x}"


class Gate(MemoryStore):
    """A store whose writes wait for `open`."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()

    def put_blob(self, digest: str, data: bytes) -> None:
        assert self.open.wait(10.0)
        super().put_blob(digest, data)


def test_the_caller_does_not_wait_and_finds_what_is_not_written() -> None:
    store = Gate()
    keeper = Keeper(store)
    for number in range(3):
        keeper.keep(_key(number), _artifact(b"%d" % number))
    assert keeper.waiting([_key(1), _key(9)]) == {_key(1): _artifact(b"1")}
    assert lookup(store, _key(0)) is None
    store.open.set()
    keeper.flush()
    assert keeper.waiting([_key(n) for n in range(3)]) == {}
    assert lookup(store, _key(2)) == _artifact(b"2")


def test_what_is_dropped_stays_away() -> None:
    store = Gate()
    keeper = Keeper(store)
    keeper.keep(_key(0), _artifact(b"bad"))
    threading.Timer(0.1, store.open.set).start()
    keeper.drop(_key(0))
    assert lookup(store, _key(0)) is None
    assert keeper.waiting([_key(0)]) == {}


def test_too_much_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusec.remote.keeper.MOST_PENDING_BYTES", 10)
    store = Gate()
    keeper = Keeper(store)
    keeper.keep(_key(0), _artifact(bytes(11)))
    threading.Timer(0.1, store.open.set).start()
    keeper.keep(_key(1), _artifact(b"x"))
    assert lookup(store, _key(1)) is not None
    keeper.flush()


_CHILD = """
import os, sys
from cache.local import LocalStore
from fusec.remote.keeper import Keeper
from tests.remote.test_keeper import _artifact, _key
keeper = Keeper(LocalStore(sys.argv[1]))
for number in range(20):
    keeper.keep(_key(number), _artifact(b"%d" % number))
if sys.argv[2] == "fork":
    pid = os.fork()
    keeper.keep(_key(100 + (pid == 0)), _artifact(b"after"))
    keeper.flush()
    if pid:
        os.waitpid(pid, 0)
"""


@pytest.mark.parametrize("way", ["end", "fork"])
def test_nothing_is_lost_when_the_process_ends(tmp_path: Path, way: str) -> None:
    subprocess.run(
        [sys.executable, "-c", _CHILD, str(tmp_path), way],
        check=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    numbers = [*range(20), *([100, 101] if way == "fork" else [])]
    store = LocalStore(tmp_path)
    assert [n for n in numbers if lookup(store, _key(n)) is None] == []
