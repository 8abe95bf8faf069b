"""What every store promises, over every store."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace as replace_fields
from functools import partial

import pytest

from cache import frames
from cache.artifacts import Miss, lookup, publish, replace
from cache.digest import digest
from cache.errors import Corrupt, Fenced, NotBetter, ProtocolError, TooLarge
from cache.lease import Claim, Lease, check_claim, lease_of
from cache.manifest import Manifest
from cache.protocol import MAX_MANIFEST, MAX_RECORD
from cache.store import get_blobs
from tests.cache.samples import BLOBS, key, manifest, noise, put

ABSENT = digest(b"never written")
swaps = pytest.mark.usefixtures("swaps")


def entry(store, blob: bytes = b"x", meta: bytes = b"") -> bytes:
    """A manifest's bytes, its one blob being in the store."""
    put(store, blob)
    return Manifest.of("graph", {"b": blob}, meta).encode()


def entry_of_tier(store, tier: int, meta: bytes = b"") -> bytes:
    put(store, b"x")
    return Manifest.of("graph", {"b": b"x"}, meta, tier=tier).encode()


@pytest.mark.parametrize("data", [b"", b"a", b"\x00" * 100_000, noise(300_000)])
def test_blob_round_trip(store, data):
    name = put(store, data)
    assert store.get_blob(name) == data
    put(store, data)
    assert store.get_blob(name) == data


def test_frames_are_what_blobs_are(store):
    data = noise(50_000)
    frames.put_frame(store, digest(data), frames.compress(data))
    assert store.get_blob(digest(data)) == data
    other = put(store, b"other" * 1000)
    frame = frames.get_frame(store, other)
    assert frames.decompress(frame, other) == b"other" * 1000
    assert frames.get_frame(store, ABSENT) is None
    for bad in (b"", frame[:-1], frames.compress(b"another")):
        with pytest.raises(Corrupt):
            frames.put_frame(store, ABSENT, bad)
    assert store.get_blob(ABSENT) is None


def test_absent_blob_is_none(store):
    assert store.get_blob(ABSENT) is None


def test_has_blobs_names_those_that_are_there(store):
    names = [put(store, b"%d" % i) for i in range(20)]
    assert store.has_blobs([*names, ABSENT]) == set(names)
    assert store.has_blobs([]) == set()


def test_get_blobs_reads_many_and_leaves_out_the_absent(store):
    wanted = {put(store, noise(1000 + i, i)): noise(1000 + i, i) for i in range(20)}
    got = get_blobs(store, [*wanted, ABSENT])
    assert got.found == wanted
    assert got.corrupt == frozenset()


def test_blob_of_another_digest_is_refused(store):
    with pytest.raises(Corrupt):
        store.put_blob(digest(b"a"), b"b")
    assert store.get_blob(digest(b"a")) is None


@pytest.mark.parametrize("bad", ["", "../../etc/passwd", "A" * 64, "a" * 63, "a" * 64 + "\n"])
def test_malformed_digests_and_keys_are_refused(store, bad):
    with pytest.raises(ProtocolError):
        store.get_blob(bad)
    for name in (bad, f"graph/{bad}", f"other/{'a' * 64}"):
        with pytest.raises(ProtocolError):
            store.get_entry(name)
        with pytest.raises(ProtocolError):
            store.put_entry(name, b"")
        with pytest.raises(ProtocolError):
            store.delete_entry(name)


def test_entry_round_trip(store):
    data = entry(store)
    assert store.get_entry(key()) is None
    assert store.put_entry(key(), data)
    assert store.get_entry(key()) == data
    assert store.get_entry(key(1)) is None


def test_entry_keeps_its_first_value(store):
    first, second = entry(store, meta=b"1"), entry(store, meta=b"2")
    assert store.put_entry(key(), first) is True
    assert store.put_entry(key(), first) is True
    assert store.put_entry(key(), second) is False
    assert store.get_entry(key()) == first


def test_entry_is_replaced_on_request(store):
    first, second = entry(store, meta=b"1"), entry(store, meta=b"2")
    store.replace_entry(key(), first)
    store.replace_entry(key(), second)
    assert store.get_entry(key()) == second
    assert store.put_entry(key(), first) is False


def test_entry_is_removed_on_request(store):
    data = entry(store)
    store.put_entry(key(), data)
    store.delete_entry(key())
    store.delete_entry(key())
    assert store.get_entry(key()) is None
    assert store.put_entry(key(), data)


def test_same_hex_of_another_kind_is_another_entry(store):
    data = entry(store)
    store.put_entry(key(7), data)
    assert store.get_entry(key(7, "kernel")) is None


def test_oversized_entry_is_refused(store):
    with pytest.raises(TooLarge):
        store.put_entry(key(), bytes(MAX_MANIFEST + 1))


def test_one_of_many_concurrent_writers_wins(store):
    values = [entry(store, meta=b"%d" % i) for i in range(16)]
    with ThreadPoolExecutor(16) as pool:
        written = list(pool.map(lambda value: store.put_entry(key(), value), values))
    assert sum(written) == 1
    assert store.get_entry(key()) == values[written.index(True)]


@swaps
def test_an_entry_is_swapped_for_the_one_that_was_seen(store):
    first, second, third = (entry_of_tier(store, tier) for tier in (0, 1, 2))
    assert not store.swap_entry(key(), digest(first), second), "nothing stands"
    assert store.get_entry(key()) is None
    store.put_entry(key(), first)
    assert store.swap_entry(key(), digest(first), second)
    assert store.get_entry(key()) == second
    assert store.swap_entry(key(), digest(first), second), "asked again, for a lost answer"
    assert not store.swap_entry(key(), digest(first), third), "another stands by now"
    assert store.get_entry(key()) == second
    assert store.swap_entry(key(), digest(second), third)
    assert store.get_entry(key()) == third


@swaps
def test_of_many_who_swap_one_does(store):
    first = entry_of_tier(store, 0)
    store.put_entry(key(), first)
    values = [entry_of_tier(store, 1, b"%d" % i) for i in range(32)]
    with ThreadPoolExecutor(32) as pool:
        done = list(pool.map(lambda value: store.swap_entry(key(), digest(first), value), values))
    assert sum(done) == 1
    assert store.get_entry(key()) == values[done.index(True)]


@swaps
def test_records_change_by_compare_and_swap(store):
    name = f"lease/{7:064x}"
    assert store.get_record(name) is None
    assert not store.swap_record(name, digest(b"one"), b"two"), "nothing stands"
    assert store.swap_record(name, None, b"one")
    assert store.swap_record(name, None, b"one"), "asked again, for a lost answer"
    assert not store.swap_record(name, None, b"other")
    assert store.get_record(name) == b"one"
    assert store.swap_record(name, digest(b"one"), b"two")
    assert not store.swap_record(name, digest(b"one"), b"three")
    assert store.get_record(name) == b"two"
    assert store.get_record(f"lease/{8:064x}") is None
    assert store.get_entry(key(7)) is None, "a record is no entry"
    assert store.describe()["entries"] == 0


@swaps
def test_of_many_who_swap_a_record_one_does(store):
    name = f"lease/{1:064x}"
    expected = None
    for turn in range(3):
        values = [b"%d of turn %d" % (i, turn) for i in range(32)]
        with ThreadPoolExecutor(32) as pool:
            done = list(pool.map(partial(store.swap_record, name, expected), values))
        assert sum(done) == 1
        assert store.get_record(name) == values[done.index(True)]
        expected = digest(values[done.index(True)])


def test_odd_records_are_refused(store):
    for bad in (key(), "lease/" + "A" * 64, f"lease/{1:064x}/..", "lease/"):
        with pytest.raises(ProtocolError):
            store.get_record(bad)
        with pytest.raises(ProtocolError):
            store.swap_record(bad, None, b"")
    with pytest.raises(ProtocolError):
        store.swap_record(f"lease/{1:064x}", "*", b"")
    with pytest.raises(TooLarge):
        store.swap_record(f"lease/{1:064x}", None, bytes(MAX_RECORD + 1))
    with pytest.raises(ProtocolError):
        store.get_entry(f"lease/{1:064x}")


@swaps
def test_a_claim_is_borne_out_by_the_lease_that_stands(store):
    claim = Claim("ab" * 8, 5)
    lease = Lease("ab" * 8, "http://10.0.0.1:8701", "0" * 64, 5, 0, 6.0)
    with pytest.raises(Fenced, match="nobody's"):
        check_claim(store, key(3), claim)
    store.swap_record(lease_of(key(3)), None, lease.encode())
    check_claim(store, key(3), claim)
    later = replace_fields(lease, owner="cd" * 8, epoch=6)
    store.swap_record(lease_of(key(3)), digest(lease.encode()), later.encode())
    with pytest.raises(Fenced, match=r"epoch 5 may not write .* of epoch 6"):
        check_claim(store, key(3), claim)
    check_claim(store, key(3), later.claim)


@pytest.mark.parametrize("bad", ["", "*", "A" * 64, "a" * 63])
def test_what_is_expected_is_a_digest(store, bad):
    with pytest.raises(ProtocolError):
        store.swap_entry(key(), bad, entry(store))


@swaps
def test_a_better_artifact_takes_the_place_of_the_one_that_was_seen(store):
    quick = Manifest.of("graph", BLOBS, b"quick", tier=0)
    publish(store, key(), quick, BLOBS)
    seen = lookup(store, key())
    blobs = {"program": b"tuned"}
    tuned = Manifest.of("graph", blobs, b"tuned")
    assert replace(store, key(), tuned, blobs, seen.version)
    found = lookup(store, key())
    assert (found.manifest, found.blobs) == (tuned, blobs)
    other = Manifest.of("graph", BLOBS, b"later", tier=5)
    assert not replace(store, key(), other, BLOBS, seen.version), "somebody was faster"
    with pytest.raises(NotBetter):
        replace(store, key(), other, BLOBS, found.version)
    assert lookup(store, key()).manifest == tuned


def test_publish_and_lookup(store):
    assert publish(store, key(), manifest(), BLOBS) == manifest()
    found = lookup(store, key())
    assert found is not None
    assert found.manifest == manifest()
    assert found.blobs == BLOBS


def test_lookup_of_an_absent_key_says_so(store):
    reasons = []
    assert lookup(store, key(), on_miss=lambda *miss: reasons.append(miss)) is None
    assert reasons == [(key(), Miss.ABSENT)]


def test_describe_counts(store):
    publish(store, key(), manifest(), BLOBS)
    described = store.describe()
    assert (described["blobs"], described["entries"]) == (3, 1)
    assert described["bytes"] > 0
    assert described["kind"]
    assert described["where"]
