"""sympy to Expr and back to numbers: conversions, numbering, and reading symbols off inputs."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch
from torch.utils._sympy.functions import CeilDiv, FloorDiv, ModularIndexing, PythonMod

from fusec.capture.symbols import SymbolTable, bindings, read_symbols
from fusec.errors import CaptureUnsupported
from fusec.ir import expr as ex
from fusec.ir.graph import Graph, Node, ScalarType, SymbolRange, TensorType

A, B = (sympy.Symbol(n, integer=True, positive=True) for n in "ab")


def unbounded(_: Any) -> tuple[None, None]:
    return None, None


@pytest.mark.parametrize(
    "e",
    [
        A + 2 * B - 3,
        A * B**2,
        FloorDiv(A * 3, 4),
        CeilDiv(A, 3),
        PythonMod(A + B, 5),
        ModularIndexing(A, 2, 3),
        sympy.Max(A, 7),
        sympy.Min(A, B),
        sympy.Lt(A, B),
        sympy.Ge(A, 4),
        sympy.Ne(A, B),
        sympy.Integer(5),
    ],
    ids=str,
)
@pytest.mark.parametrize(("a", "b"), [(2, 9), (7, 3), (5, 5)])
def test_values_are_kept(e: Any, a: int, b: int) -> None:
    table = SymbolTable(unbounded)
    table.number_plain([A, B])
    expected = e.subs({A: a, B: b})
    value = ex.evaluate(table.to_expr(e), {"s0": a, "s1": b})
    assert value == int(bool(expected) if expected in (True, False) else expected)


@pytest.mark.parametrize("e", [A / 2, sympy.sin(A), sympy.sqrt(A), sympy.Float(0.5)], ids=str)
def test_what_is_not_whole_is_refused(e: Any) -> None:
    with pytest.raises(CaptureUnsupported):
        SymbolTable(unbounded).to_expr(e)


def test_symbolic_floats_are_refused() -> None:
    with pytest.raises(CaptureUnsupported, match="float"):
        SymbolTable(unbounded).to_expr(sympy.Symbol("zf0", real=True))


def test_symbols_are_numbered_by_first_use_whatever_their_names() -> None:
    x, y = (sympy.Symbol(n, integer=True, positive=True) for n in ("z9", "a1"))
    table = SymbolTable(lambda s: (2, 64) if s is x else (2, None))
    table.number_plain([4, x, x + y, y])
    assert str(table.to_expr(x)) == "s0"
    assert str(table.to_expr(x + y)) == "s0 + s1"
    assert table.ranges == (SymbolRange("s0", 2, 64), SymbolRange("s1", 2, None))


def test_plain_numbers_pass() -> None:
    assert SymbolTable(unbounded).to_expr(7) is ex.integer(7)


def tensor(*shape: ex.Expr) -> TensorType:
    return TensorType("f32", shape, tuple(ex.ONE for _ in shape))


def test_symbols_are_read_off_the_inputs() -> None:
    s0, s1, s2 = (ex.symbol(f"s{i}") for i in range(3))
    graph = Graph(
        (
            Node("input", "", type=tensor(s0 * 4 + 2, ex.integer(3))),
            Node("input", "", type=TensorType("f32", (s1,), (s1,))),
            Node("input", "", type=ScalarType("int", s2)),
        ),
        (),
        tuple(SymbolRange(f"s{i}", 0, None) for i in range(3)),
    )
    values = read_symbols(bindings(graph), [torch.empty(22, 3), torch.empty(5), 11])
    assert values == {"s0": 5, "s1": 5, "s2": 11}


def test_a_symbol_that_no_input_tells_is_refused() -> None:
    s0, s1 = ex.symbol("s0"), ex.symbol("s1")
    graph = Graph(
        (Node("input", "", type=tensor(s0 * s1)), Node("input", "", type=tensor(s0))),
        (),
        (SymbolRange("s0", 0, None), SymbolRange("s1", 0, None)),
    )
    with pytest.raises(CaptureUnsupported, match="s1"):
        bindings(graph)
