"""Which integers a kernel takes for places in a buffer, and how large they may be."""

from __future__ import annotations

from collections.abc import Iterable

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Sym
from fusec.ir.kernel import KernelLoop
from fusec.ir.loop import Load, Scalar


def places_below(loop: KernelLoop) -> tuple[int, ...]:
    """For each buffer of the kernel, in order: the bound that its integers are below where they are
    places in another one, 0 where they are not, or the bound is known only at the call."""
    found: dict[int, int] = {}

    def bound(indirect: Iterable[tuple[Sym, Scalar]]) -> None:
        for symbol, value in indirect:
            size = ex.as_int(symbol.upper) if symbol.upper is not None else None
            for load in lp.loads(value):
                if size and DTYPES[loop.buffers[load.buffer].dtype].is_integer:
                    found[load.buffer] = min(size, found.get(load.buffer, size))

    for statement in loop.statements:
        bound(statement.indirect)
        for node in lp.walk(statement.scalars):
            if isinstance(node, Load):
                bound(node.indirect)
    return tuple(found.get(number, 0) for number in loop.buffers)
