"""Near copies of a far truth."""

import pytest

from cache.artifacts import lookup, publish
from cache.digest import digest
from cache.errors import NotReachable, Refused, StoreFull
from cache.memory import MemoryStore
from cache.tiered import TieredStore
from tests.cache.samples import BLOBS, key, manifest, noise, put


class Switched(MemoryStore):
    """A store that can be off."""

    off = False
    reads = 0

    def check(self):
        if self.off:
            raise NotReachable("off")

    def get_blobs(self, digests):
        self.check()
        self.reads += 1
        return super().get_blobs(digests)

    def get_entry(self, key):
        self.check()
        return super().get_entry(key)

    def has_blobs(self, digests):
        self.check()
        return super().has_blobs(digests)

    def put_blob(self, digest, data):
        self.check()
        super().put_blob(digest, data)

    def replace_entry(self, key, manifest_bytes):
        self.check()
        super().replace_entry(key, manifest_bytes)

    def put_entry(self, key, manifest_bytes):
        self.check()
        return super().put_entry(key, manifest_bytes)


@pytest.fixture
def near():
    return Switched()


@pytest.fixture
def far():
    return Switched()


@pytest.fixture
def store(near, far):
    return TieredStore(near, far)


def test_far_blobs_are_read_once(store, far):
    name = put(far, b"x")
    assert [store.get_blob(name) for _ in range(3)] == [b"x"] * 3
    assert far.reads == 1


def test_hits_go_on_while_the_far_store_is_gone(store, far):
    publish(far, key(), manifest(), BLOBS)
    assert lookup(store, key()) is not None
    far.off = True
    assert lookup(store, key()).blobs == BLOBS
    assert store.counters.get("far_errors") == 1
    with pytest.raises(NotReachable):
        store.get_entry(key(1))
    with pytest.raises(NotReachable):
        store.get_blob(digest(b"elsewhere"))


def test_writes_fail_while_the_far_store_is_gone(store, far, near):
    far.off = True
    with pytest.raises(NotReachable):
        put(store, b"x")
    with pytest.raises(NotReachable):
        store.put_entry(key(), b"x")
    assert near.describe()["entries"] == near.describe()["blobs"] == 0


def test_near_store_that_is_gone_does_not_matter(store, far, near):
    near.off = True
    publish(store, key(), manifest(), BLOBS)
    assert lookup(store, key()).blobs == BLOBS
    assert store.counters.get("near_errors") > 0


def test_full_near_store_does_not_matter(far):
    store = TieredStore(MemoryStore(max_bytes=10), far)
    name = put(store, noise(1000))
    assert store.get_blob(name) == noise(1000)
    with pytest.raises(StoreFull):
        put(store.near, noise(1000))


def test_replaced_entry_is_seen_though_the_old_one_is_near(store, far, near):
    far.put_entry(key(), b"old")
    assert store.get_entry(key()) == b"old"
    far.replace_entry(key(), b"new")
    assert store.get_entry(key()) == b"new"
    assert near.get_entry(key()) == b"new"
    far.delete_entry(key())
    assert store.get_entry(key()) is None
    assert near.get_entry(key()) is None


def test_blob_that_is_only_near_does_not_count_as_stored(store, near):
    name = put(near, b"x")
    assert store.has_blobs([name]) == set()
    assert store.get_blob(name) == b"x"


@pytest.mark.parametrize("error", [NotReachable, Refused])
def test_near_entries_stand_in_while_the_far_store_does_not_answer_us(store, far, near, error):
    """Credentials that have expired are an outage like any other."""
    far.put_entry(key(), b"kept")
    assert store.get_entry(key()) == b"kept"

    def fails(name):
        raise error("far")

    far.get_entry = fails
    assert store.get_entry(key()) == b"kept"
    assert store.counters.get("far_errors") == 1
    near.get_entry = fails
    with pytest.raises(error, match="far"):
        store.get_entry(key())
    assert store.counters.get("near_errors") == 1
