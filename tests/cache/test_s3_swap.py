"""A server whose conditions cannot be relied on: found out before anything rests on them."""

import pytest

from cache.__main__ import main
from cache.artifacts import lookup, publish, replace
from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.config import ServiceConfig
from cache.digest import digest
from cache.embedded import serve_in_thread
from cache.errors import NoSwap, NotReachable
from cache.manifest import Manifest
from cache.s3 import S3Store
from tests.cache.mini_s3 import mini_s3
from tests.cache.samples import BLOBS, key, manifest

RECORD = f"lease/{7:064x}"


@pytest.fixture
def s3():
    """One that does not look at If-Match."""
    with mini_s3() as server:
        server.matches = False
        yield server


@pytest.fixture
def store(s3):
    with S3Store("bucket", "p", endpoint=s3.url, access_key="k", secret_key="s") as made:
        yield made


def test_what_rests_on_if_match_is_refused_and_says_why(store):
    quick = Manifest.of("graph", BLOBS, tier=0)
    publish(store, key(), quick, BLOBS)
    seen = lookup(store, key())
    for ask in (
        lambda: store.swap_record(RECORD, None, b"lease"),
        lambda: store.swap_entry(key(), digest(quick.encode()), manifest().encode()),
        lambda: replace(store, key(), manifest(), BLOBS, seen.version),
        lambda: store.touch_entry(key()),
    ):
        with pytest.raises(NoSwap, match="in spite of an If-Match that does not hold") as caught:
            ask()
        assert "one gateway only" in caught.value.hint
    assert store.get_record(RECORD) is None
    assert lookup(store, key()).manifest == quick


def test_the_server_is_asked_once_and_nothing_is_left_there(s3, store):
    for _ in range(3):
        with pytest.raises(NoSwap):
            store.swap_record(RECORD, None, b"lease")
    assert s3.requests < 10
    assert s3.objects == {}


def test_a_server_that_was_away_is_asked_again(s3, store):
    s3.matches = True
    s3.fault = lambda method, path: (500, "InternalError")
    with pytest.raises(NotReachable):
        store.swap_record(RECORD, None, b"lease")
    s3.fault = None
    assert store.swap_record(RECORD, None, b"lease")
    assert store.swap_record(RECORD, digest(b"lease"), b"renewed")
    assert store.get_record(RECORD) == b"renewed"


def test_a_service_over_it_answers_and_the_check_says_what_it_cannot(store, capsys):
    config = ServiceConfig(port=0, gc_max_age_s=1e6)  # it would write down what is in use
    with (
        serve_in_thread(config, store=store) as running,
        CacheClient(running.url, budget=DelayBudget(30.0)) as client,
    ):
        publish(client, key(), manifest(), BLOBS)
        assert lookup(client, key()).blobs == BLOBS
        with pytest.raises(NoSwap, match="If-Match"):
            client.swap_record(RECORD, None, b"lease")
        assert client.metrics.get("errors") == 0, "the service is well"
        assert main(["check", running.url]) == 1
    out, err = capsys.readouterr()
    assert "bytes put in" in out
    assert "overwrites in spite of an If-Match that does not hold" in err
    assert "FUSEC_FARM_LEASE_S=0" in err.splitlines()[-1]
