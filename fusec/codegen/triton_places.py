"""Which integers a kernel takes for places in a buffer, and how large they may be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Sym
from fusec.ir.kernel import KernelLoop
from fusec.ir.loop import Load, Op, Scalar

_PASSED_ON: Final = {"cast": 0, "within": 0, "where": 1, "min": 0, "max": 0}
"""Operations that give operands from that one on as they are."""


def places_below(loop: KernelLoop) -> tuple[int, ...]:
    """For each buffer of the kernel, in order: the bound that its integers are below where they are
    places in another one, 0 where they are not, or the bound is known only at the call, or places
    are computed from them."""
    found: dict[int, int] = {}

    def bound(indirect: Iterable[tuple[Sym, Scalar]]) -> None:
        for symbol, value in indirect:
            size = ex.as_int(symbol.upper) if symbol.upper is not None else None
            for load in _loaded(value):
                if size and DTYPES[loop.buffers[load.buffer].dtype].is_integer:
                    found[load.buffer] = min(size, found.get(load.buffer, size))

    for statement in loop.statements:
        bound(statement.indirect)
        for node in lp.walk(statement.scalars):
            if isinstance(node, Load):
                bound(node.indirect)
    return tuple(found.get(number, 0) for number in loop.buffers)


def _loaded(value: Scalar) -> Iterator[Load]:
    """The loads whose element a value can be, one that counts from the end included."""
    if isinstance(value, Load):
        yield value
    elif isinstance(value, Op):
        for operand in value.args[_PASSED_ON.get(value.name, len(value.args)) :]:
            yield from _loaded(operand)
