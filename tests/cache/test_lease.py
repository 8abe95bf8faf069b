"""Leases at rest: one form, and writers whose lease is over are refused by the service."""

from dataclasses import replace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.artifacts import publish
from cache.auth import Grant, hash_token
from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.config import ServiceConfig
from cache.digest import digest
from cache.embedded import serve_in_thread
from cache.errors import CacheError, Fenced, NewerVersion, ProtocolError
from cache.lease import Claim, Lease, lease_of
from cache.memory import MemoryStore
from cache.protocol import MAX_RECORD, pack, unpack
from tests.cache.samples import BLOBS, key, manifest

LEASE = Lease("ab" * 8, "http://10.0.0.1:8701", "0" * 64, 5, 3, 6.0)


@given(
    epoch=st.integers(1, 2**60 - 1),
    beat=st.integers(0, 2**60 - 1),
    term_s=st.floats(0.001, 3600.0),
    released=st.booleans(),
)
def test_round_trip(epoch, beat, term_s, released):
    lease = replace(LEASE, epoch=epoch, beat=beat, term_s=term_s, released=released)
    assert Lease.decode(lease.encode()) == lease
    assert len(lease.encode()) < MAX_RECORD
    assert Claim.parse(lease.claim.header()) == lease.claim


@pytest.mark.parametrize(
    "change",
    [
        {"owner": "x"},
        {"owner": 1},
        {"address": "file:///etc/passwd"},
        {"address": "http://" + "a" * 300},
        {"address": "http://a b"},
        {"proof": ""},
        {"epoch": 0},
        {"epoch": True},
        {"epoch": 2**62},
        {"beat": -1},
        {"term_s": 1},
        {"term_s": float("nan")},
        {"term_s": 1e9},
        {"released": 0},
        {"version": 0},
        {"extra": 1},
    ],
)
def test_odd_leases_are_refused(change):
    body = unpack(LEASE.encode(), max_bytes=MAX_RECORD)
    with pytest.raises(ProtocolError):
        Lease.decode(pack({**body, **change}))


@given(st.binary(max_size=200))
def test_junk_is_refused(data):
    with pytest.raises(CacheError):
        Lease.decode(data)


def test_a_newer_lease_is_named_as_such():
    with pytest.raises(NewerVersion):
        Lease.decode(pack({"version": 2}))


@pytest.mark.parametrize("text", ["", "abc", "ab" * 8, "ab" * 8 + ":-1", "zz" * 8 + ":1"])
def test_odd_claims_are_refused(text):
    with pytest.raises(ProtocolError):
        Claim.parse(text)


def test_the_service_refuses_a_writer_whose_lease_is_over():
    store = MemoryStore()
    with (
        serve_in_thread(ServiceConfig(port=0), store=store) as running,
        CacheClient(running.url, budget=DelayBudget(30.0)) as client,
    ):
        client.swap_record(lease_of(key()), None, LEASE.encode())
        late = client.claiming(LEASE.claim)
        taken = replace(LEASE, owner="cd" * 8, epoch=6)
        client.swap_record(lease_of(key()), digest(LEASE.encode()), taken.encode())
        with pytest.raises(Fenced):
            publish(late, key(), manifest(), BLOBS)
        assert store.get_entry(key()) is None
        with pytest.raises(Fenced):
            late.replace_entry(key(), manifest().encode())
        publish(client.claiming(taken.claim), key(), manifest(), BLOBS)
        with pytest.raises(Fenced):
            late.swap_entry(key(), digest(manifest().encode()), manifest(meta=b"2").encode())
        assert store.get_entry(key()) == manifest().encode()
        text = httpx.get(running.url + "/metrics").text
        assert "fusec_cache_fenced_total 3.0" in text
        odd = httpx.put(
            f"{running.url}/v1/entries/{key()}",
            content=manifest().encode(),
            headers={"x-fusec-claim": "who"},
        )
        assert odd.status_code == 400


def test_records_are_for_writers_under_a_condition():
    tokens = tuple(Grant(role, hash_token(role)) for role in ("read", "submit", "write"))
    with serve_in_thread(ServiceConfig(port=0, tokens=tokens)) as running:
        url = f"{running.url}/v1/records/{lease_of(key())}"

        def headers(role, **more):
            return {"authorization": f"Bearer {role}", **more}

        once = {"if-none-match": "*"}
        for role in ("read", "submit"):
            assert httpx.get(url, headers=headers(role)).status_code == 403
            assert httpx.put(url, content=b"", headers=headers(role, **once)).status_code == 403
        assert httpx.get(url, headers=headers("write")).status_code == 404
        put = {"content": LEASE.encode()}
        assert httpx.put(url, **put, headers=headers("write")).status_code == 400
        assert httpx.put(url, **put, headers=headers("write", **once)).status_code == 200
        assert httpx.put(url, content=b"x", headers=headers("write", **once)).status_code == 412
        big = httpx.put(url, content=bytes(MAX_RECORD + 1), headers=headers("write", **once))
        assert big.status_code == 413
        assert httpx.get(url, headers=headers("write")).content == LEASE.encode()
