"""The local store stays within its bounds, looked at once an hour."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cache.artifacts import lookup, publish
from cache.local import LocalStore
from cache.manifest import Manifest
from fusec.errors import OptionsError
from fusec.options import Options
from fusec.remote import tidy
from fusec.remote.tidy import tidy_beside


def _fill(store: LocalStore, count: int) -> list[str]:
    keys = []
    for number in range(count):
        blobs = {"b": os.urandom(1000)}
        keys.append(f"graph/{number:064x}")
        publish(store, keys[-1], Manifest.of("graph", blobs), blobs)
        for path in (store._entry_path(keys[-1]), *(store._base / "blobs").rglob("*.zst")):
            os.utime(path, (1e9 + number, 1e9 + number))
    return keys


def _look(store: LocalStore, max_bytes: int) -> bool:
    thread = tidy_beside(store, max_bytes)
    if thread is None:
        return False
    thread.join(30)
    return True


def test_what_was_used_longest_ago_goes_above_the_bound(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    keys = _fill(store, 10)
    total = sum(item.bytes for item in (*store.list_blobs(), *store.list_entries()))
    assert _look(store, total // 2)
    left = {item.name for item in store.list_entries()}
    assert left == set(keys[-len(left) :])
    assert 3 <= len(left) <= 4, "four fifths of a half"
    assert len(list(store.list_blobs())) == len(left)
    assert all(lookup(store, key) for key in left)


def test_the_number_of_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidy, "MAX_FILES", 10)
    store = LocalStore(tmp_path)
    _fill(store, 10)
    assert _look(store, 1 << 30)
    assert len([*store.list_blobs(), *store.list_entries()]) <= 8


def test_within_its_bounds_nothing_goes_and_no_entry_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    keys = _fill(store, 3)
    monkeypatch.setattr(store, "get_entry", lambda key: pytest.fail("read"))
    assert _look(store, 1 << 30)
    assert {item.name for item in store.list_entries()} == set(keys)


def test_it_is_looked_at_once_an_hour(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert _look(store, 1 << 30)
    assert not _look(store, 1 << 30)
    os.utime(tmp_path / "looked-at", (1e9, 1e9))
    assert _look(store, 1 << 30)


def test_the_bound_is_an_option() -> None:
    assert Options.from_env({"FUSEC_CACHE_BYTES": "1000"}).cache_bytes == 1000
    with pytest.raises(OptionsError):
        Options.from_env({"FUSEC_CACHE_BYTES": "1e3"})
