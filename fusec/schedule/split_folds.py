"""Split long reductions into chunks that can run in parallel and in the order of memory.

Before: ``b1[j] = sum[r < 8192] f(r, j)``.
After:  ``p[c, j] = sum[r < 128] f(128·c + r, j)``; ``b1[j] = sum[c < 64] p[c, j]``.

Done where the kept axes alone leave threads idle, and where the folded axes come first in memory,
so that a column is never walked alone. The number of chunks depends on the shape only: results do
not change with the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr, Sym
from fusec.ir.loop import Buffer, Compute, LoopProgram, Reduction, Step

MAX_CHUNKS: Final = 64
MIN_CHUNKS: Final = 4
_MIN_WORK: Final = 65536  # points; a smaller reduction is not worth two kernels
_FEW_ROWS: Final = 16  # kept points that do not occupy the threads of a machine
_SPLIT: Final = frozenset(("sum", "prod", "min", "max", "or", "and"))


def split_folds(program: LoopProgram) -> LoopProgram:
    """See the module docstring. Sizes known only at the call are left alone."""
    buffers = list(program.buffers)
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, Compute) and step.reduction is not None:
            steps += _split(step, step.reduction, buffers)
        else:
            steps.append(step)
    return replace(program, buffers=tuple(buffers), steps=tuple(steps))


def _split(step: Compute, fold: Reduction, buffers: list[Buffer]) -> list[Step]:
    chunks = _chunks(step, fold)
    if chunks is None:
        return [step]
    axis, count = chunks
    assert axis.upper is not None
    chunk = _axis("c0", ex.integer(count))
    rest = _axis(f"{axis.name}s", ex.floordiv(axis.upper, count))
    assert rest.upper is not None
    value = lp.reindex(step.value, {axis: chunk * rest.upper + rest})
    compute = DTYPES[buffers[step.output].dtype].compute
    kept = [a for a in step.axes if a.upper is not None]
    shape = (ex.integer(count), *(a.upper for a in kept if a.upper is not None))
    stride: list[Expr] = []
    size: Expr = ex.ONE
    for extent in reversed(shape):
        stride.append(size)
        size = size * extent
    buffers.append(Buffer(compute, shape, tuple(reversed(stride))))
    partial = len(buffers) - 1
    first = Reduction(
        fold.op,
        tuple(rest if a is axis else a for a in fold.axes),
        _order(fold.order, axis, (chunk, rest)),
    )
    again = _axis("r0", ex.integer(count))
    second = Reduction(fold.op, (again,), (again, *step.axes))
    return [
        Compute(partial, (chunk, *step.axes), value, first, step.origin),
        replace(step, value=lp.load(partial, compute, (again, *step.axes)), reduction=second),
    ]


def _order(order: Sequence[Sym], axis: Sym, pair: tuple[Sym, Sym]) -> tuple[Sym, ...]:
    return tuple(a for old in order for a in (pair if old is axis else (old,)))


def _axis(name: str, upper: Expr) -> Sym:
    made = ex.axis(name, upper)
    assert isinstance(made, Sym)
    return made


def _chunks(step: Compute, fold: Reduction) -> tuple[Sym, int] | None:
    """The folded axis to split and into how many chunks; None where it does not pay."""
    sizes = {a: ex.as_int(a.upper) for a in fold.order if a.upper is not None}
    if fold.op not in _SPLIT or any(size is None for size in sizes.values()):
        return None
    numbers = {a: size for a, size in sizes.items() if size is not None}
    work = 1
    for size in numbers.values():
        work *= size
    rows = 1
    for kept in step.axes:
        rows *= numbers[kept]
    last = next((a for a in reversed(fold.order) if numbers[a] != 1), None)
    columns = last is not None and last not in fold.axes
    if work < _MIN_WORK or rows == 0 or not (rows < _FEW_ROWS or columns):
        return None
    if columns and work // rows < MAX_CHUNKS:
        return None
    best: tuple[int, Sym] | None = None
    for axis in fold.axes:
        size = numbers[axis]
        # A chunk of at least four rows; the outermost axis among equals.
        count = next((c for c in range(min(MAX_CHUNKS, size // 4), 1, -1) if size % c == 0), 1)
        if count >= MIN_CHUNKS and (best is None or count > best[0]):
            best = (count, axis)
    return None if best is None else (best[1], best[0])
