"""Whole artifacts: never half of one, and what is damaged heals."""

import pytest

from cache.artifacts import Miss, lookup, lookup_many, publish
from cache.digest import digest
from cache.errors import MissingBlobs, ProtocolError
from cache.manifest import Manifest
from cache.memory import MemoryStore
from cache.protocol import pack
from tests.cache.samples import BLOBS, key, manifest


class Forgetful(MemoryStore):
    """A store whose blobs can vanish."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: set[str] = set()

    def get_blob(self, digest):
        return None if digest in self.gone else super().get_blob(digest)

    def has_blobs(self, digests):
        return super().has_blobs(digests) - self.gone

    def put_blob(self, digest, data):
        super().put_blob(digest, data)
        self.gone.discard(digest)


def reason(store, name=None):
    """Why the lookup misses."""
    reasons = []
    assert lookup(store, name or key(), on_miss=lambda _, why: reasons.append(why)) is None
    (only,) = reasons
    return only


def test_entry_is_written_after_its_blobs():
    events = []

    class Watched(MemoryStore):
        def put_blob(self, digest, data):
            events.append("blob")
            super().put_blob(digest, data)

        def put_entry(self, key, manifest_bytes):
            events.append("entry")
            return super().put_entry(key, manifest_bytes)

    publish(Watched(), key(), manifest(), BLOBS)
    assert events == ["blob"] * 3 + ["entry"]


def test_blobs_that_are_there_are_not_written_again():
    written = []

    class Watched(MemoryStore):
        def put_blob(self, digest, data):
            written.append(digest)
            super().put_blob(digest, data)

    store = Watched()
    publish(store, key(0), manifest(), BLOBS)
    publish(store, key(1), manifest(meta=b"other"), BLOBS)
    assert len(written) == 3


def test_hit_whose_blob_is_gone_is_a_miss_and_heals():
    store = Forgetful()
    publish(store, key(), manifest(), BLOBS)
    store.gone.add(digest(BLOBS["program"]))
    assert reason(store) is Miss.BLOB_MISSING
    publish(store, key(), manifest(), BLOBS)
    assert lookup(store, key()).blobs == BLOBS


def test_other_writers_whole_artifact_stands():
    store = MemoryStore()
    first = manifest(meta=b"first")
    publish(store, key(), first, BLOBS)
    assert publish(store, key(), manifest(meta=b"second"), BLOBS) == first
    assert lookup(store, key()).manifest == first


def test_other_writers_broken_artifact_is_replaced():
    store = Forgetful()
    publish(store, key(), manifest({"other": b"other"}), {"other": b"other"})
    store.gone.add(digest(b"other"))
    assert publish(store, key(), manifest(), BLOBS) == manifest()
    assert lookup(store, key()).blobs == BLOBS


def test_blob_that_a_collector_takes_meanwhile_is_written_again():
    class Collected(MemoryStore):
        """Claims to hold a blob that is gone, and checks entries as a service does."""

        def has_blobs(self, digests):
            return set(digests)

        def put_entry(self, key, manifest_bytes):
            named = Manifest.decode(manifest_bytes).digests()
            if any(self.get_blob(digest) is None for digest in named):
                raise MissingBlobs("gone")
            return super().put_entry(key, manifest_bytes)

    store = Collected()
    publish(store, key(), manifest(), BLOBS)
    assert lookup(store, key()).blobs == BLOBS


def test_damaged_entry_is_a_miss_and_heals():
    for damage in (b"", b"garbage", manifest().encode()[:-3], manifest().encode()[:-1] + b"\x00"):
        store = MemoryStore()
        store.put_entry(key(), damage)
        assert reason(store) is Miss.CORRUPT
        publish(store, key(), manifest(), BLOBS)
        assert lookup(store, key()).blobs == BLOBS


def test_newer_version_is_a_miss_and_is_left_alone():
    store = MemoryStore()
    newer = pack({"version": 9, "what": "is this"})
    store.put_entry(key(), newer)
    assert reason(store) is Miss.NEWER_VERSION
    assert publish(store, key(), manifest(), BLOBS) == manifest()
    assert store.get_entry(key()) == newer


def test_manifest_of_another_kind_is_a_miss():
    store = MemoryStore()
    store.put_entry(key(kind="kernel"), manifest().encode())
    assert reason(store, key(kind="kernel")) is Miss.CORRUPT


def test_blob_of_another_size_than_named_is_a_miss():
    store = MemoryStore()
    store.put_blob(digest(b"abc"), b"abc")
    store.put_entry(key(), Manifest("graph", (("a", digest(b"abc"), 4),), b"").encode())
    assert reason(store) is Miss.CORRUPT


@pytest.mark.parametrize(
    "blobs", [{}, {**BLOBS, "more": b""}, {**BLOBS, "program": b"other"}, {"program": b""}]
)
def test_blobs_that_are_not_the_manifests_are_refused(blobs):
    store = MemoryStore()
    with pytest.raises(ProtocolError):
        publish(store, key(), manifest(), blobs)
    assert store.describe()["blobs"] == 0


def test_manifest_under_a_key_of_another_kind_is_refused():
    with pytest.raises(ProtocolError):
        publish(MemoryStore(), key(kind="front"), manifest(), BLOBS)


def test_lookup_many_reads_shared_blobs_once():
    reads = []

    class Watched(MemoryStore):
        def get_blobs(self, digests):
            reads.append(list(digests))
            return super().get_blobs(digests)

    store = Watched()
    publish(store, key(0), manifest(), BLOBS)
    publish(store, key(1), manifest(meta=b"other"), BLOBS)
    found = lookup_many(store, [key(0), key(1), key(2)])
    assert set(found) == {key(0), key(1)}
    assert [len(read) for read in reads] == [3]


def test_artifact_without_blobs():
    store = MemoryStore()
    publish(store, key(), manifest({}), {})
    assert lookup(store, key()).blobs == {}
