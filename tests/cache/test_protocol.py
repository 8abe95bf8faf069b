"""Bounded msgpack: what travels, and what is refused before it costs much."""

import tracemalloc
from contextlib import suppress

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.errors import CacheError, ProtocolError, TooLarge
from cache.protocol import fields, pack, pack_bytes_map, strings, unpack

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"))
    | st.binary()
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=8), inner)
)


@given(values)
def test_values_survive_the_wire(value):
    assert unpack(pack(value), max_bytes=1 << 20) == value


@given(st.binary(max_size=300))
def test_any_bytes_decode_or_raise_our_error(data):
    with suppress(CacheError):
        unpack(data, max_bytes=1000)


@given(values, st.data())
def test_a_truncated_value_is_refused(value, data):
    packed = pack(value)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(ProtocolError):
        unpack(packed[:cut], max_bytes=1 << 20)


def test_tuples_travel_as_lists():
    assert unpack(pack((1, (2,))), max_bytes=100) == [1, [2]]


@pytest.mark.parametrize(
    "value",
    [{1: 2}, {b"a": 1}, {1, 2}, object(), 2**64, -(2**63) - 1, bytearray(b"x"), "\ud800"],
    ids=["int key", "bytes key", "set", "object", "large", "small", "bytearray", "surrogate"],
)
def test_other_values_do_not_travel(value):
    with pytest.raises(ProtocolError):
        pack(value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x01\x02",
        b"\x81\x01\x02",
        b"\x81\xc4\x01a\x02",
        b"\x82\xa1a\x01\xa1a\x02",
        b"\xd6\xff\x00\x00\x00\x01",
        b"\xc7\x01\x05a",
        b"\xa1\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
    ],
    ids=[
        "nothing",
        "reserved",
        "trailing",
        "int key",
        "bytes key",
        "twice",
        "timestamp",
        "ext",
        "not utf-8",
        "huge list",
        "huge map",
        "huge bytes",
    ],
)
def test_malformed_bytes_are_refused(data):
    with pytest.raises(ProtocolError):
        unpack(data, max_bytes=1000)


def test_size_is_bounded():
    with pytest.raises(TooLarge):
        unpack(pack(b"x" * 100), max_bytes=100)


@pytest.mark.parametrize("levels", [33, 600, 5000, 1_000_000])
def test_depth_is_bounded(levels):
    with pytest.raises(ProtocolError):
        unpack(b"\x91" * levels + b"\xc0", max_bytes=2_000_000)
    with pytest.raises(ProtocolError):
        unpack(b"\x81\xa1a" * levels + b"\xc0", max_bytes=4_000_000)


def test_depth_at_the_limit_passes():
    assert unpack(b"\x91" * 32 + b"\xc0", max_bytes=100)
    with pytest.raises(ProtocolError):
        unpack(b"\x91" * 5 + b"\xc0", max_bytes=100, max_depth=4)


def test_many_empty_containers_cost_little():
    bomb = b"\xdd" + (4 << 20).to_bytes(4, "big") + b"\x90" * (4 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="lists and maps"):
            unpack(bomb, max_bytes=8 << 20)
        assert tracemalloc.get_traced_memory()[1] < 80 << 20
    finally:
        tracemalloc.stop()


def test_deep_value_is_not_packed():
    value: object = None
    for _ in range(2000):
        value = [value]
    with pytest.raises(ProtocolError):
        pack(value)


def test_fields_names_the_odd_one():
    with pytest.raises(ProtocolError, match=r"thing: unknown field 'extra'"):
        fields({"a": 1, "extra": 2}, "thing", ("a",))
    with pytest.raises(ProtocolError, match=r"thing: field 'a' is missing"):
        fields({}, "thing", ("a",))
    assert fields({"a": 1, "b": 2}, "thing", ("a",), ("b",)) == {"a": 1, "b": 2}


def test_strings_are_bounded():
    assert strings(["a"], "list") == ["a"]
    with pytest.raises(TooLarge):
        strings(["a"] * 3, "list", limit=2)
    with pytest.raises(ProtocolError):
        strings([1], "list")


def test_packing_is_plain_msgpack():
    assert msgpack.unpackb(pack({"a": [1, b"x", "y"]})) == {"a": [1, b"x", "y"]}


@given(st.dictionaries(st.text(max_size=40), st.binary(max_size=300)))
def test_a_map_in_parts_is_the_map(items):
    assert b"".join(pack_bytes_map("found", items)) == pack({"found": items})


@pytest.mark.parametrize("size", [255, 256, 65_535, 65_536])
def test_large_values_of_a_map_are_not_copied(size):
    parts = pack_bytes_map("blobs", {"a": (data := bytes(size))})
    assert any(part is data for part in parts)
    assert b"".join(parts) == pack({"blobs": {"a": data}})
