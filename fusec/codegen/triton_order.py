"""The order of a kernel's axes for a GPU: as memory lies, and which axes are contiguous in it.

Before: axes in the order of the computations. After: kept and folded axes each ordered by how far
apart in memory their neighbours are, so that one linear index over them walks through memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr, Sym
from fusec.ir.kernel import KernelLoop, linear
from fusec.ir.loop import Load
from fusec.schedule.axes import simplify_axes

_FAR: Final = 1 << 60  # a stride known only at the call
_IN_ORDER: Final = ("argmax", "argmin", *lp.SCANS)


def order_axes(loop: KernelLoop) -> KernelLoop:
    """See the module docstring."""
    kept = _ordered(loop, loop.kept)
    inner = loop.inner
    if not any(s.fold in _IN_ORDER for s in loop.statements):
        inner = _ordered(loop, inner)
    return simplify_axes(replace(loop, axes=(*kept, *inner)))


def accesses(loop: KernelLoop) -> Iterator[tuple[Expr, int]]:
    """Element offset and bytes an element of every store and load at inner points; stores first."""
    inner = [s for s in loop.statements if s.inner]
    for s in inner:
        if s.fold is None:
            argument = loop.buffers[s.buffer]
            yield linear(s.index, argument.stride), DTYPES[argument.dtype].size
    for load in {n: None for s in inner for n in lp.walk(s.scalars) if isinstance(n, Load)}:
        argument = loop.buffers[load.buffer]
        yield linear(load.index, argument.stride), DTYPES[argument.dtype].size


def contiguous_bytes(loop: KernelLoop, axis: Sym) -> int:
    """How many bytes are accessed that lie side by side along an axis, roughly."""
    return sum(size * _points(at) for at, size in accesses(loop) if ex.step(at, axis) == 1)


def _ordered(loop: KernelLoop, axes: tuple[Sym, ...]) -> tuple[Sym, ...]:
    """Far axes first, by the access that reaches most of memory through them."""
    reached = sorted(accesses(loop), key=lambda a: -a[1] * _points(a[0]))
    fastest = max(axes, key=lambda a: (contiguous_bytes(loop, a), axes.index(a)), default=None)

    def distance(axis: Sym) -> int:
        if axis is fastest:
            return 0
        for offset, _ in reached:
            found = ex.step(offset, axis)
            if found != 0:
                return _FAR if found is None else abs(found)
        return _FAR

    return tuple(sorted(axes, key=lambda a: -distance(a)))


def _points(offset: Expr) -> int:
    """How many elements an access reaches, roughly."""
    count = 1
    for s in set(ex.symbols(offset)):
        if s.upper is not None:
            count *= ex.as_int(s.upper) or 1024
    return count
