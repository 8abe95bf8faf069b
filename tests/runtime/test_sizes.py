"""Sizes of calls: read once, worked out once."""

from __future__ import annotations

from fusec.ir import expr as ex
from fusec.runtime.sizes import SizeReader, Sizes

_S, _T = ex.symbol("s0"), ex.symbol("s1")


def test_expressions_at_the_sizes_of_a_call() -> None:
    sizes = Sizes({"s0": 5, "s1": 3})
    assert sizes.value(_S * _T + 2) == 17
    assert sizes.row((_S, ex.ONE, _S * _T + 2)) == (5, 1, 17)
    assert sizes.row((_S, ex.ONE, _S * _T + 2)) is sizes.row((_S, ex.ONE, _S * _T + 2))
    assert sizes.row(()) == ()


def test_equal_sizes_are_one_object() -> None:
    read = SizeReader([("s0", lambda inputs: inputs[0]), ("s1", lambda inputs: inputs[1])])
    first = read([1, 2])
    assert first == {"s0": 1, "s1": 2}
    assert read([1, 2]) is first
    assert read([2, 1]).value(_S - _T) == 1
    for n in range(100):
        assert read([n, n]).value(_S + _T) == 2 * n
    assert len(read._known) <= 64
    assert SizeReader([])([3]) == {}
