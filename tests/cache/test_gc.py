"""The collector: what goes, what stays, and that traffic beside it never misses a blob."""

import errno
import os
import time
from contextlib import ExitStack

import pytest

from cache import gc, revocation
from cache.artifacts import lookup
from cache.digest import digest
from cache.errors import NotReachable
from cache.gc import Policy
from cache.local import LocalStore
from cache.manifest import VERSION
from cache.protocol import pack
from cache.revocation import Revocations
from tests.cache.ages import age
from tests.cache.conftest import s3_store
from tests.cache.samples import artifact, key, keys_of, noise, put

DAY = 86_400.0


@pytest.fixture(
    params=[
        "local",
        "s3-moto",
        pytest.param("s3-seaweedfs", marks=[pytest.mark.s3, pytest.mark.extended]),
    ]
)
def store(request, tmp_path):
    with ExitStack() as stack:
        match request.param:
            case "local":
                yield LocalStore(tmp_path / "store")
            case "s3-moto":
                yield stack.enter_context(s3_store(request.getfixturevalue("moto")))
            case "s3-seaweedfs":
                yield request.getfixturevalue("seaweed_store")


def later(seconds):
    return lambda: time.time() + seconds


def collect(store, policy, seconds=0.0):
    return gc.collect(store, policy, fence_s=0.0, clock=later(seconds), sleep=lambda _: None)


def test_leases_that_nobody_changes_go_and_other_records_stay(store):
    old, young = f"lease/{1:064x}", f"lease/{2:064x}"
    index, drain = f"index/{1:064x}", f"drain/{0:064x}"
    store.swap_record(index, None, b"what is still to be done")
    store.swap_record(old, None, b"old")
    store.swap_record(drain, None, b"on")
    plan = collect(store, Policy(), gc.RECORD_S + 10)
    assert [item.name for item in plan.records] == [old]
    assert "with 1 idle records" in list(plan.lines())[-1]
    store.swap_record(young, None, b"young")
    assert not store.remove_record(young, time.time() - 60.0)
    assert collect(store, Policy()).records == ()
    assert store.get_record(old) is None
    assert store.get_record(young) == b"young"
    assert {item.name for item in store.list_records()} == {drain, index, young}


def test_listings_name_everything_once(store):
    published = {key(i): artifact(store, i, b"shared") for i in range(3)}
    store.put_entry(revocation.KEY, Revocations().encode())
    assert keys_of(store) == {*published, revocation.KEY}
    names = [item.name for item in store.list_blobs()]
    assert sorted(names) == sorted(
        {digest(d) for blobs in published.values() for d in blobs.values()}
    )
    now = time.time()
    assert all(abs(item.at - now) < 60 and item.bytes > 0 for item in store.list_blobs())


def test_nothing_goes_without_a_bound(store):
    artifact(store, 0)
    made = collect(store, Policy(grace_s=DAY), 0)
    assert (made.entries, made.blobs) == ((), ())
    assert lookup(store, key(0)) is not None


def test_what_is_old_goes_and_its_blobs_after_it(store):
    blobs = artifact(store, 0)
    policy = Policy(max_age_s=7 * DAY, grace_s=DAY)
    assert collect(store, policy, 6 * DAY).entries == ()
    made = collect(store, policy, 8 * DAY)
    assert [item.name for item in made.entries] == [key(0)]
    assert {item.name for item in made.blobs} == {digest(data) for data in blobs.values()}
    assert lookup(store, key(0)) is None
    assert list(store.list_blobs()) == []


def test_blobs_that_another_entry_names_stay(store):
    artifact(store, 0, b"shared")
    age(store, 2)
    artifact(store, 1, b"shared")
    made = collect(store, Policy(max_bytes=1500, low=0.9, grace_s=0.0), 10)
    assert [item.name for item in made.entries] == [key(0)]
    found = lookup(store, key(1))
    assert found is not None
    assert found.blobs["s0"] == b"shared"
    assert store.get_blob(digest(noise(1000, 0))) is None


def test_above_the_bound_what_was_used_longest_ago_goes_down_to_the_low_mark(store):
    for number in range(3):
        artifact(store, number)
        age(store, 2)
    store.touch_entry(key(0))
    total = sum(item.bytes for item in (*store.list_entries(), *store.list_blobs()))
    made = collect(store, Policy(max_bytes=total - 1, low=0.7, grace_s=0.0), 10)
    assert {item.name for item in made.entries} == {key(1)}
    assert keys_of(store) == {key(0), key(2)}
    assert made.kept_bytes <= total * 0.7
    assert all(lookup(store, name) for name in keys_of(store))


def test_the_number_of_files_is_bounded(store):
    for number in range(4):
        artifact(store, number)
    collect(store, Policy(max_files=7, low=0.5, grace_s=0.0), 10)
    assert len(keys_of(store)) == 1


def test_orphans_of_crashed_uploads_go_after_the_grace(store):
    name = put(store, b"orphan")
    assert collect(store, Policy(grace_s=DAY), DAY / 2).blobs == ()
    assert store.get_blob(name) == b"orphan"
    assert [item.name for item in collect(store, Policy(grace_s=DAY), 2 * DAY).blobs] == [name]
    assert store.get_blob(name) is None


def test_a_dry_run_prints_a_plan_and_removes_nothing(store):
    artifact(store, 0)
    put(store, b"orphan")
    made = gc.plan(store, Policy(max_age_s=1.0, grace_s=0.0), time.time() + 60)
    lines = list(made.lines())
    assert any(line.startswith(f"entry {key(0)}") for line in lines)
    assert any(digest(b"orphan") in line for line in lines)
    assert lines[-1].startswith("1 entries and 2 blobs go")
    assert lookup(store, key(0)) is not None
    assert store.get_blob(digest(b"orphan")) == b"orphan"


def test_the_caches_own_entries_stay(store):
    revocation.change(store, add=[Revocations(keys=frozenset({key(1)}))])
    collect(store, Policy(max_age_s=1.0, max_bytes=1, grace_s=0.0), 10 * DAY)
    assert revocation.read(store).keys == {key(1)}


def test_an_entry_that_does_not_decode_holds_nothing_up(store):
    artifact(store, 0)
    store.replace_entry(key(0), b"garbage")
    made = collect(store, Policy(max_age_s=DAY, grace_s=0.0), 60)
    assert made.entries == ()
    assert [item.name for item in made.blobs] == [digest(noise(1000, 0))]
    assert [item.name for item in collect(store, Policy(max_age_s=DAY), 2 * DAY).entries] == [
        key(0)
    ]


def test_use_keeps_an_entry(store):
    artifact(store, 0)
    age(store, 2)
    before = {item.name: item.at for item in store.list_entries()}
    store.touch_entry(key(0))
    store.touch_entry(key(9))
    after = {item.name: item.at for item in store.list_entries()}
    assert after[key(0)] > before[key(0)]
    assert keys_of(store) == {key(0)}
    assert lookup(store, key(0)) is not None


def test_a_collector_that_looks_is_no_use_of_an_entry(store):
    artifact(store, 0)
    age(store, 5 * DAY)
    policy = Policy(max_age_s=7 * DAY)
    for _ in range(2):
        assert collect(store, policy).entries == ()
    assert [item.name for item in collect(store, policy, 3 * DAY).entries] == [key(0)]


def test_blobs_stay_while_an_entry_is_a_newer_releases(store):
    artifact(store, 0)
    orphan = put(store, b"for all we know the newer entry names it")
    newer = pack({"version": VERSION + 1})
    store.put_entry(key(1), newer)
    policy = Policy(max_age_s=DAY, grace_s=0.0)
    made = collect(store, policy, 10)
    assert (made.entries, made.blobs) == ((), ())
    made = collect(store, policy, 2 * DAY)
    assert {item.name for item in made.entries} == {key(0), key(1)}, "it goes by its age"
    assert made.blobs == ()
    assert orphan in {item.name for item in collect(store, policy, 2 * DAY).blobs}


def test_a_folder_that_cannot_be_read_ends_the_collection(tmp_path, monkeypatch):
    """Its entries are not seen, and their blobs are no orphans for that."""
    store = LocalStore(tmp_path)
    artifact(store, 0)
    scan = os.scandir

    def fails(path):
        if "entries/graph/" in os.fspath(path):
            raise OSError(errno.EIO, "Input/output error")
        return scan(path)

    monkeypatch.setattr(os, "scandir", fails)
    with pytest.raises(NotReachable, match="cannot list the entries"):
        collect(store, Policy(grace_s=0.0), 10)
    monkeypatch.undo()
    assert lookup(store, key(0)) is not None


def test_stores_share_a_bound_by_what_they_hold(tmp_path):
    small, large = LocalStore(tmp_path / "a"), LocalStore(tmp_path / "b")
    for number in range(4):
        artifact(large, number)
    artifact(small, 9)
    bounds = [policy.max_bytes for policy in gc.shares([small, large], 2000)]
    assert sum(bounds) in (1999, 2000)
    assert bounds[1] == pytest.approx(4 * bounds[0], rel=0.1)
    for store, policy in zip((small, large), gc.shares([small, large], 1 << 20), strict=True):
        assert collect(store, policy).entries == (), "together they are below it"
