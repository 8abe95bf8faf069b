"""Records come back from a store; what is no record is none."""

import msgpack
import pytest

from cache.artifacts import publish
from cache.manifest import Manifest
from cache.memory import MemoryStore
from fusec.codegen.gpu_binary import GpuBinary
from fusec.errors import WireError
from fusec.ir.expr import ONE
from fusec.tune.record import Record, find, keep, record_key
from tests.tune.kernels import problem, variant

SOURCE = problem(100, variant(), variant(warps=8)).source
RECORD = Record(
    1, 8, (("BLOCK", 1024),), {0: (1.5, 1.25), 1: (1.0,)}, 0.25, {2: "spills 400 bytes a thread"}
)
BINARY = GpuBinary("triton_poi_scale", b"image", (ONE,), 256, 0, 2)


def test_a_record_comes_back_with_its_binary() -> None:
    store = MemoryStore()
    key = record_key(SOURCE, "NVIDIA H200", "triton 3.6.0", False)
    assert find(store, key) is None
    assert keep(store, key, RECORD, BINARY) == (RECORD, BINARY)
    assert find(store, key) == (RECORD, BINARY)


def test_the_key_is_of_the_kernel_the_device_and_the_compiler() -> None:
    other = problem(100, variant(), variant(warps=16)).source
    keys = {
        record_key(SOURCE, "NVIDIA H200", "triton 3.6.0", False),
        record_key(SOURCE, "NVIDIA H100", "triton 3.6.0", False),
        record_key(SOURCE, "NVIDIA H200", "triton 3.9.0", False),
        record_key(SOURCE, "NVIDIA H200", "triton 3.6.0", True),
        record_key(other, "NVIDIA H200", "triton 3.6.0", False),
    }
    assert len(keys) == 5
    assert all(key.startswith("tuning/") for key in keys)


def test_a_store_without_room_is_told() -> None:
    key = record_key(SOURCE, "NVIDIA H200", "triton 3.6.0", False)
    assert keep(MemoryStore(max_bytes=10), key, RECORD, BINARY) is None


def test_the_first_decision_stands() -> None:
    store = MemoryStore()
    key = record_key(SOURCE, "NVIDIA H200", "triton 3.6.0", False)
    keep(store, key, RECORD, BINARY)
    assert keep(store, key, Record(0, 4, (), {0: (0.5,)}, 0.0, {}), BINARY) == (RECORD, BINARY)
    assert find(store, key) == (RECORD, BINARY)


@pytest.mark.parametrize(
    "change",
    [{"v": 9}, {"variant": 64}, {"warps": None}, {"variant": -1}, {"samples": [[0, "x"]]},
     {"margin": None}, {"more": 1}, {"left_out": 3}, {"constants": 7}],
)  # fmt: skip
def test_malformed_records_are_none(change: dict[str, object]) -> None:
    data = msgpack.packb({**msgpack.unpackb(RECORD.to_bytes()), **change})
    with pytest.raises(WireError):
        Record.from_bytes(data)
    store = MemoryStore()
    key = record_key(SOURCE, "NVIDIA H200", "triton 3.6.0", False)
    blobs = {"record": data, "binary": BINARY.to_bytes()}
    publish(store, key, Manifest.of("tuning", blobs), blobs)
    assert find(store, key) is None
