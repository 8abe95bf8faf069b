"""Bytes from outside: damage is a WireError, never another exception, never much memory or time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import msgpack
import pytest

from fusec.codegen.kernel_source import KernelSource
from fusec.errors import WireError
from fusec.ir import expr as ex
from fusec.ir.program_wire import program_from_bytes, program_to_bytes
from fusec.ir.wire import (
    arg_from_wire,
    expr_from_wire,
    expr_to_wire,
    graph_from_bytes,
    graph_to_bytes,
)
from fusec.pipeline import Plan
from tests.ir.expressions import build, random_tree
from tests.ir.graphs import random_graph
from tests.ir.programs import sample_plan, sample_program


def damaged(rng: random.Random, data: bytes) -> bytes:
    """A few bytes changed, or a piece cut off, doubled or moved."""
    kind = rng.randrange(5)
    at = rng.randrange(len(data))
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + data[at + rng.randrange(1, 9) :]
    if kind == 2:
        return data[:at] + data[rng.randrange(len(data)) :]
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        changed[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(changed)


def _survives(read: Callable[[bytes], object], data: bytes) -> None:
    try:
        read(data)
    except WireError:
        return


def test_damaged_graphs() -> None:
    rng = random.Random(1)
    for seed in range(150):
        data = graph_to_bytes(random_graph(seed))
        for _ in range(20):
            _survives(graph_from_bytes, damaged(rng, data))


def test_a_damaged_graph_that_still_reads_is_a_graph() -> None:
    """What is accepted has one encoding, which reads back as the same."""
    rng = random.Random(2)
    accepted = 0
    for seed in range(200):
        data = graph_to_bytes(random_graph(seed))
        for _ in range(10):
            try:
                graph = graph_from_bytes(damaged(rng, data))
            except WireError:
                continue
            canonical = graph_to_bytes(graph)
            assert graph_to_bytes(graph_from_bytes(canonical)) == canonical
            accepted += 1
    assert accepted


def test_damaged_programs() -> None:
    rng = random.Random(3)
    data = program_to_bytes(sample_program())
    assert program_to_bytes(program_from_bytes(data)) == data
    for _ in range(4000):
        _survives(program_from_bytes, damaged(rng, data))


def test_damaged_plans_and_kernels() -> None:
    rng = random.Random(4)
    plan = sample_plan()
    data = plan.to_bytes()
    assert Plan.from_bytes(data).to_bytes() == data
    kernel = plan.kernels[0].to_bytes()
    assert KernelSource.from_bytes(kernel) == plan.kernels[0]
    for _ in range(1500):
        _survives(Plan.from_bytes, damaged(rng, data))
        _survives(KernelSource.from_bytes, damaged(rng, kernel))


def test_expressions_round_trip() -> None:
    rng = random.Random(12)
    for _ in range(4000):
        try:
            made = build(random_tree(rng, 4))
        except ZeroDivisionError:
            continue
        packed = msgpack.unpackb(msgpack.packb(expr_to_wire(made)))
        assert expr_from_wire(packed) is made


@pytest.mark.parametrize(
    "data",
    [
        True,
        "s0",
        [],
        ["?", 1],
        ["s", "s0"],
        ["s", "not a name", 0],
        ["s", "s" * 65, 0],
        ["s", "s0", True],
        ["*", 2, ["s", "s0", 0]],
        ["+", True],
        ["+", 0, [1]],
        ["+", 0, [1, 2, 3]],
        ["+", "12x"],
        ["+", "9" * 70],
        ["i", "9" * 70],
        ["//", 1, 0],
        ["%", ["s", "s0", 0], 0],
        ["min"],
        ["<", 1],
        ["<", 1, 2, 3],
        {"a": 1},
        1.5,
        None,
    ],
)
def test_what_is_no_expression(data: object) -> None:
    with pytest.raises(WireError):
        expr_from_wire(data)


def test_a_deep_expression_is_refused() -> None:
    deep: object = ["s", "s0", 0]
    for _ in range(100):
        deep = ["//", deep, 7]
    with pytest.raises(WireError, match="deep"):
        expr_from_wire(deep)
    nested: object = 1
    for _ in range(100):
        nested = [nested]
    with pytest.raises(WireError, match="deep"):
        arg_from_wire(nested)


def test_deep_bytes_are_refused() -> None:
    for byte in (0x91, 0x81):
        _survives(graph_from_bytes, bytes([byte]) * 100_000)
        with pytest.raises(WireError):
            graph_from_bytes(bytes([byte]) * 100_000)
        with pytest.raises(WireError):
            program_from_bytes(bytes([byte]) * 100_000)
    tuples: object = None
    for _ in range(400):
        tuples = ["L", tuples]
    body = {"v": 1, "nodes": [[0, "x", [], [], tuples]], "outputs": [], "symbols": []}
    with pytest.raises(WireError):
        graph_from_bytes(msgpack.packb(body))


def test_a_product_of_sums_does_not_explode() -> None:
    """No encoding of ours multiplies sums; read as one, it would take time beyond all bounds."""
    factor = ["+", 1, *([1, ["s", f"s{i}", 0]] for i in range(20))]
    start = time.monotonic()
    with pytest.raises(WireError):
        expr_from_wire(["*", *([factor] * 60)])
    with pytest.raises(WireError):
        expr_from_wire(["+", 0, [2, factor]])
    assert time.monotonic() - start < 5


def test_numbers_beyond_64_bits_keep_their_value() -> None:
    s = ex.symbol("s0", 2)
    for e in (s * (1 << 70) + (1 << 66), ex.integer(-(1 << 90)), s + (1 << 63)):
        packed = msgpack.unpackb(msgpack.packb(expr_to_wire(e)))
        assert expr_from_wire(packed) is e


def test_a_constant_given_as_a_number_allocates_nothing() -> None:
    body = msgpack.unpackb(program_to_bytes(sample_program()))
    body["constants"] = [[0, 1 << 40]]
    with pytest.raises(WireError):
        program_from_bytes(msgpack.packb(body))


@pytest.mark.parametrize("field", ["v", "slots", "steps", "arena"])
def test_a_program_without_a_field(field: str) -> None:
    body = msgpack.unpackb(program_to_bytes(sample_program()))
    del body[field]
    with pytest.raises(WireError, match="fields"):
        program_from_bytes(msgpack.packb(body))


def test_another_version_says_what_to_do() -> None:
    for write, read in (
        (graph_to_bytes(random_graph(1)), graph_from_bytes),
        (program_to_bytes(sample_program()), program_from_bytes),
    ):
        body = msgpack.unpackb(write)
        body["v"] = 99
        with pytest.raises(WireError) as caught:
            read(msgpack.packb(body))
        assert caught.value.hint
