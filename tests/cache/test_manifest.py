"""Manifests: one encoding each, verified before they are decoded."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.digest import digest
from cache.errors import CacheError, Corrupt, NewerVersion, ProtocolError, TooLarge
from cache.manifest import MAX_ARTIFACT, Manifest
from cache.protocol import MAX_BLOB, pack, unpack
from tests.cache.samples import BLOBS, manifest

A, B = digest(b"a"), digest(b"b")


def envelope(body: object, version: object = 1, **more: object) -> bytes:
    packed = pack(body)
    return pack(
        {"version": version, "sha256": hashlib.sha256(packed).digest(), "body": packed, **more}
    )


def test_round_trip_and_order_do_not_matter():
    made = manifest()
    assert Manifest.decode(made.encode()) == made
    backwards = Manifest("graph", tuple(reversed(made.blobs)), b"meta")
    assert backwards == made
    assert backwards.encode() == made.encode()


@given(
    st.dictionaries(st.from_regex(r"[a-z0-9_]{1,8}(/[a-z]{1,4})?", fullmatch=True), st.binary()),
    st.binary(max_size=200),
)
def test_any_manifest_round_trips(blobs, meta):
    made = Manifest.of("kernel", blobs, meta)
    assert Manifest.decode(made.encode()) == made


def test_the_last_tier_is_left_out_of_the_bytes():
    assert Manifest.of("graph", {}, tier=9) == Manifest.of("graph", {})
    assert b"tier" not in Manifest.of("graph", {}).encode()
    quick = Manifest.of("graph", {}, tier=0)
    assert not quick.is_final
    assert Manifest.decode(quick.encode()) == quick


@pytest.mark.parametrize("tier", [-1, 10, True, "0", None, 9])
def test_odd_tiers_are_refused(tier):
    body = {"kind": "graph", "blobs": [], "meta": b"", "tier": tier}
    with pytest.raises(ProtocolError):
        Manifest.decode(envelope(body))


def test_every_flipped_byte_and_every_truncation_is_noticed():
    data = manifest({"program": b"x", "kernel/0": b"y"}).encode()
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            with pytest.raises(CacheError):
                Manifest.decode(bytes(flipped))
        with pytest.raises(CacheError):
            Manifest.decode(data[:at])
    with pytest.raises(CacheError):
        Manifest.decode(data + b"\x00")


def test_flipped_byte_of_the_body_is_corrupt():
    data = bytearray(manifest().encode())
    data[-1] ^= 1
    with pytest.raises(Corrupt):
        Manifest.decode(bytes(data))


def test_newer_version_is_named_as_such_whatever_it_holds():
    with pytest.raises(NewerVersion, match="version 2") as caught:
        Manifest.decode(pack({"version": 2, "signature": b"new", "body": {"x": 1}}))
    assert "upgrade" in caught.value.hint


@pytest.mark.parametrize("version", [0, -1, None, "1", True, 1.0])
def test_odd_versions_are_refused(version):
    data = envelope({"kind": "graph", "blobs": [], "meta": b""}, version)
    with pytest.raises(ProtocolError):
        Manifest.decode(data)


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "graph", "blobs": [], "meta": b"", "extra": 1},
        {"kind": "graph", "blobs": []},
        {"kind": "other", "blobs": [], "meta": b""},
        {"kind": "graph", "blobs": [["a", A]], "meta": b""},
        {"kind": "graph", "blobs": [["a", A, "1"]], "meta": b""},
        {"kind": "graph", "blobs": [["a", A, True]], "meta": b""},
        {"kind": "graph", "blobs": [["a", A, -1]], "meta": b""},
        {"kind": "graph", "blobs": [["a", "A" * 64, 1]], "meta": b""},
        {"kind": "graph", "blobs": [["b", A, 1], ["a", B, 1]], "meta": b""},
        {"kind": "graph", "blobs": [["a", A, 1], ["a", B, 1]], "meta": b""},
        {"kind": "graph", "blobs": [], "meta": "text"},
        {"blobs": [], "kind": "graph", "meta": b""},
        [],
    ],
)
def test_other_bodies_are_refused(body):
    with pytest.raises(CacheError):
        Manifest.decode(envelope(body))


def test_unknown_field_of_the_envelope_is_refused():
    body = {"kind": "graph", "blobs": [], "meta": b""}
    Manifest.decode(envelope(body))
    with pytest.raises(ProtocolError, match="unknown field"):
        Manifest.decode(envelope(body, extra=1))


def test_second_encoding_of_the_same_manifest_is_refused():
    data = manifest({}).encode()
    assert data[0] == 0x83
    longer = b"\xde\x00\x03" + data[1:]
    assert unpack(longer, max_bytes=1000) == unpack(data, max_bytes=1000)
    with pytest.raises(ProtocolError, match="canonical"):
        Manifest.decode(longer)


@pytest.mark.parametrize(
    "name", ["", "/etc/passwd", "../x", "a/../b", ".hidden", "a//b", "a b", "a/", "ä", "a" * 201]
)
def test_names_that_are_not_plain_are_refused(name):
    with pytest.raises(ProtocolError):
        Manifest("graph", ((name, A, 1),), b"")


def test_sizes_are_bounded():
    with pytest.raises(TooLarge):
        Manifest("graph", (("a", A, MAX_BLOB + 1),), b"")
    many = tuple((f"b{i}", A, MAX_BLOB) for i in range(MAX_ARTIFACT // MAX_BLOB + 1))
    with pytest.raises(TooLarge):
        Manifest("graph", many, b"")
    with pytest.raises(TooLarge):
        Manifest("graph", (), bytes(5 << 20)).encode()


def test_size_and_digests():
    made = manifest({"a": b"xx", "b": b"xx", "c": b"y"})
    assert made.size() == 5
    assert made.digests() == [digest(b"xx"), digest(b"y")]
    assert manifest().size() == sum(len(data) for data in BLOBS.values())
