"""Chunks of a reduction: where it is cut, and the two reductions that come of it.

Before: ``b1[j] = sum[r < 8192] f(r, j)``.
After:  ``p[c, j] = sum[r < 128] f(128·c + r, j)``; ``b1[j] = sum[c < 64] p[c, j]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr, Sym
from fusec.ir.loop import Buffer, Compute, Load, Reduction, Scalar

_BITS: Final = {"i64": 64, "i32": 32, "i16": 16, "i8": 8, "u64": 64, "u32": 32, "u16": 16, "u8": 8}

Fold: TypeAlias = tuple[Scalar, tuple[Sym, ...], Reduction]
"""Its value, its kept axes, the reduction."""


@dataclass(frozen=True, slots=True)
class Cut:
    """``whole``: outer folded axes whose every point is a chunk; ``axis``: the next one, in
    ``count`` chunks of ``rows`` points each."""

    whole: tuple[Sym, ...]
    axis: Sym
    count: int
    rows: Expr

    @property
    def ragged(self) -> bool:
        return self.rows * self.count is not self.axis.upper


def split(
    step: Compute, fold: Reduction, cut: Cut, buffers: list[Buffer]
) -> tuple[Compute, Compute]:
    """The fold in chunks, and the fold of those; adds the buffer between them to ``buffers``."""
    assert cut.axis.upper is not None
    rest = _axis(f"{cut.axis.name}s", cut.rows)
    pair = (rest,) if cut.count == 1 else (_axis("c0", ex.integer(cut.count)), rest)
    place = pair[0] * cut.rows + rest if cut.count > 1 else rest
    compute = DTYPES[buffers[step.output].dtype].compute
    if cut.ragged:
        inside = ex.compare("<", place, cut.axis.upper)
        value = lp.reindex(step.value, {cut.axis: place}, inside)
        neutral = lp.const(_neutral(fold.op, value.dtype), value.dtype)
        value = lp.op("where", value.dtype, lp.condition(inside), value, neutral)
    else:
        value = lp.reindex(step.value, {cut.axis: place})
    chunks = (*cut.whole, *pair[:-1])
    shape = tuple(a.upper for a in (*chunks, *step.axes) if a.upper is not None)
    stride: list[Expr] = []
    size: Expr = ex.ONE
    for extent in reversed(shape):
        stride.append(size)
        size = size * extent
    buffers.append(Buffer(compute, shape, tuple(reversed(stride))))
    partial = len(buffers) - 1
    first = Reduction(
        fold.op,
        tuple(rest if a is cut.axis else a for a in fold.axes if a not in cut.whole),
        tuple(a for old in fold.order for a in (pair if old is cut.axis else (old,))),
    )
    again = tuple(_axis(f"k{i}", a.upper) for i, a in enumerate(chunks) if a.upper is not None)
    second = Reduction(fold.op, again, (*again, *step.axes))
    return (
        Compute(partial, (*chunks, *step.axes), value, first, step.origin),
        replace(step, value=lp.load(partial, compute, (*again, *step.axes)), reduction=second),
    )


def _neutral(fold: str, dtype: str) -> bool | int | float:
    """What changes no result of a reduction."""
    if fold in ("sum", "or"):
        return 0
    if fold in ("prod", "and"):
        return 1
    if dtype not in _BITS:
        return float("inf") if fold == "min" else float("-inf")
    unsigned = dtype[0] == "u"
    top = (1 << (_BITS[dtype] - (not unsigned))) - 1
    return top if fold == "min" else 0 if unsigned else -top - 1


def _axis(name: str, upper: Expr) -> Sym:
    made = ex.axis(name, upper)
    assert isinstance(made, Sym)
    return made


def symbols_of(load: Load) -> Iterator[Sym]:
    """The symbols that a place depends on, also through values that are loaded for it."""
    for e in load.index:
        yield from ex.symbols(e)
    for _, value in load.indirect:
        for inner in lp.loads(value):
            yield from symbols_of(inner)
