"""GPU kernels, before and after they are compiled, on the wire."""

from dataclasses import replace

import msgpack
import pytest

from fusec.codegen.gpu_binary import GpuBinary
from fusec.codegen.gpu_source import GpuSource, Variant
from fusec.errors import WireError
from fusec.ir import expr as ex

GRID = (ex.floordiv(ex.symbol("n0") + 1023, ex.integer(1024)), ex.integer(3))
ONE = Variant("def k(b0): pass", (("BLOCK", 1024),), 4, GRID, False, ((16, 4096),))
SOURCE = GpuSource(
    "k", "sm_90", ("*bf16", "*i64", "i64"), (ONE, replace(ONE, warps=8, cooperative=True)), (0, 100)
)
BINARY = GpuBinary("k", b"image", GRID, 128, 48, 2, ("i64",), 40, 8, True)


def test_sources_come_back() -> None:
    assert GpuSource.from_bytes(SOURCE.to_bytes()) == SOURCE
    plain = replace(SOURCE, below=())
    assert GpuSource.from_bytes(plain.to_bytes()) == plain
    assert plain.digest != SOURCE.digest
    assert len(SOURCE.digest) == 64


def test_the_text_of_variants_travels_once() -> None:
    long = replace(ONE, source="#" * 10_000)
    many = replace(SOURCE, variants=tuple(replace(long, warps=w) for w in (1, 2, 4, 8)))
    assert len(many.to_bytes()) < 11_000


def test_binaries_come_back() -> None:
    assert GpuBinary.from_bytes(BINARY.to_bytes()) == BINARY


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, 99), (1, 5), (3, [1]), (5, []), (5, [[0, [], 4, [], False, []]]),
     (5, [[7, [], 4, [3], False, []]]), (5, [[0, [], 4, [3], 1, []]]),
     (5, [[0, [], 4, [3], False, [[1, 2]]]]), (6, ["x"]), (6, [1, 2, 3, 4])],
)  # fmt: skip
def test_malformed_sources_are_refused(place: int, value: object) -> None:
    body = msgpack.unpackb(SOURCE.to_bytes())
    body[place] = value
    with pytest.raises(WireError):
        GpuSource.from_bytes(msgpack.packb(body))
    with pytest.raises(WireError):
        GpuSource.from_bytes(msgpack.packb(body[:place]))


@pytest.mark.parametrize(
    ("field", "value"),
    [("v", 99), ("name", 1), ("image", "text"), ("threads", 0), ("threads", 4096), ("scratch", 5),
     ("grid", []), ("sizes", ["f32"]), ("cooperative", 1), ("shared", -1)],
)  # fmt: skip
def test_malformed_binaries_are_refused(field: str, value: object) -> None:
    body = {**msgpack.unpackb(BINARY.to_bytes()), field: value}
    with pytest.raises(WireError):
        GpuBinary.from_bytes(msgpack.packb(body))
