"""Split long reductions into chunks that can run in parallel and in the order of memory.

Before: ``b1[j] = sum[r < 8192] f(r, j)``.
After:  ``p[c, j] = sum[r < 128] f(128·c + r, j)``; ``b1[j] = sum[c < 64] p[c, j]``.

Done where the kept axes alone leave the machine idle, and where the folded axes come first in
memory, so that a column is never walked alone. Outer folded axes may become chunks as a whole.
Where no count divides an axis well the last chunk is shorter: beyond the axis is the neutral
element. The number of chunks depends on the shape and the target only: results do not change with
the number of threads.

Folds that wait for another one's result, of a variance or a softmax, have chunks about what they
have of it themselves (`chunks_about.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr, Sym
from fusec.ir.loop import Compute, LoopProgram, Reduction, Step
from fusec.schedule.chunks import Cut, Fold, split, symbols_of
from fusec.schedule.chunks_about import about_maxima, about_means, pointwise_steps, serves_others
from fusec.schedule.cost import CPU, Machine, points

MIN_CHUNKS: Final = 4
_MIN_WORK: Final = 65536  # points; a smaller reduction is not worth two kernels
_SPLIT: Final = frozenset(("sum", "prod", "min", "max", "or", "and"))


def split_folds(program: LoopProgram, machine: Machine = CPU) -> LoopProgram:
    """See the module docstring. The result computes the same outputs."""
    buffers = list(program.buffers)
    steps: list[Step] = []
    crossed = _row_folds(program)
    contiguous = _contiguous_dimensions(program)
    # Sums in equal chunks, and maxima, with their chunks' buffers.
    cuts: dict[Fold, tuple[Cut, int]] = {}
    pointwise = pointwise_steps(program)
    for step in program.steps:
        if isinstance(step, Compute) and step.reduction is not None:
            fold = step.reduction
            pair = None
            if machine.splits.centred:
                pair = about_means(step, fold, cuts, buffers)
                pair = pair or about_maxima(step, fold, cuts, pointwise, buffers)
            if pair is None:
                last = _contiguous(step, fold.order, contiguous)
                cut = _cut(step, fold, machine, crossed, last in step.axes)
                pair = None if cut is None else split(step, fold, cut, buffers)
                if pair is not None and cut is not None and serves_others(fold, cut):
                    cuts[step.value, step.axes, fold] = cut, pair[0].output
            if pair is not None:
                steps += pair
                continue
        steps.append(step)
    return replace(program, buffers=tuple(buffers), steps=tuple(steps))


def _row_folds(program: LoopProgram) -> set[tuple[float, float]]:
    """(rows, width) of each reduction over last axes: folds over such rows go in one pass."""
    found = set()
    for step in program.steps:
        if isinstance(step, Compute) and step.reduction is not None:
            live = [a for a in step.reduction.order if a.upper is not ex.ONE]
            if live and live[-1] in step.reduction.axes:
                found.add((_points(step.axes), _points(step.reduction.axes)))
    return found


def _points(axes: tuple[Sym, ...]) -> float:
    return points(a.upper for a in axes if a.upper is not None)


def _cut(
    step: Compute,
    fold: Reduction,
    machine: Machine,
    crossed: set[tuple[float, float]],
    columns: bool,
) -> Cut | None:
    """Where to split a reduction, of ``columns`` or of rows; None where it does not pay."""
    rates = machine.splits
    live = [a for a in fold.order if a.upper is not ex.ONE]
    if fold.op not in _SPLIT or not live:
        return None
    known = all(ex.as_int(a.upper) is not None for a in live if a.upper is not None)
    if not known and not rates.ragged:
        return None
    kept, folded = _points(step.axes), _points(fold.axes)
    if kept == 0 or (known and kept * folded < _MIN_WORK):
        return None
    if columns:
        wanted, shortest = float(rates.columns), rates.chunk_rows
        mixed = (folded, kept) in crossed and kept <= machine.carried_values
        if rates.column_programs and not mixed:
            tiles = max(1.0, kept / machine.column_points)
            wanted = min(wanted, rates.column_programs / tiles)
        if known and folded < wanted * (rates.column_programs == 0):
            return None
    elif known and kept < rates.rows and folded >= rates.fold_points:
        wanted, shortest = min(rates.programs / kept, folded / rates.chunk_points), 4
    else:
        return None
    axes = [a for a in live if a in fold.axes]
    best = _even(axes, int(wanted), shortest)
    if best is not None and (not rates.ragged or 4 * best[0] >= min(wanted, folded / shortest)):
        return best[1]
    return _uneven(axes, int(wanted), shortest) if rates.ragged else None


def _contiguous_dimensions(program: LoopProgram) -> dict[int, int | None]:
    """For each buffer the dimension along which its elements are neighbours: of an input by its
    strides, of what is computed by what it is computed from (it may never be stored)."""
    found: dict[int, int | None] = {}
    for number, buffer in enumerate(program.buffers):
        dense = [
            d
            for d, (size, step) in enumerate(zip(buffer.shape, buffer.stride, strict=True))
            if step is ex.ONE and size is not ex.ONE
        ]
        found[number] = dense[-1] if dense else None
    for step in program.steps:
        if isinstance(step, Compute) and step.reduction is None and not step.scatters:
            axis = _contiguous(step, step.axes, found)
            if axis is not None:
                found[step.output] = step.axes.index(axis)
    return found


def _contiguous(
    step: Compute, axes: tuple[Sym, ...], dimensions: dict[int, int | None]
) -> Sym | None:
    """The axis along which most of what is read is contiguous; the last among equals."""
    weight = {a: 0.0 for a in axes if a.upper is not ex.ONE}
    for load in lp.loads(step.value):
        dimension = dimensions[load.buffer]
        if dimension is None:
            continue
        used = set(symbols_of(load))
        for axis in _unit_steps(load.index[dimension]):
            if axis in weight:
                weight[axis] += _points(tuple(a for a in weight if a in used))
    return max(reversed(weight), key=weight.__getitem__, default=None)


def _unit_steps(e: Expr) -> Iterator[Sym]:
    """Axes along which an index moves by one, mostly: those inside a remainder too."""
    for atom, coefficient in ex.linear_terms(e)[1]:
        if coefficient == 1 and isinstance(atom, Sym):
            yield atom
        elif coefficient == 1 and isinstance(atom, ex.Binary) and atom.op == "%":
            yield from _unit_steps(atom.left)


def _even(axes: list[Sym], wanted: int, shortest: int) -> tuple[int, Cut] | None:
    """The cut into most chunks of equal size, at most ``wanted``; the outermost among equals."""
    best: tuple[int, Cut] | None = None
    outer = 1
    for position, axis in enumerate(axes):
        size = None if axis.upper is None else ex.as_int(axis.upper)
        if size is None or outer > wanted:
            break
        limit = min(wanted // outer, size // shortest)
        count = next((c for c in range(limit, 1, -1) if size % c == 0), 1)
        chunks = outer * count
        if chunks >= MIN_CHUNKS and (best is None or chunks > best[0]):
            rows = ex.integer(size // count)
            best = (chunks, Cut(tuple(axes[:position]), axis, count, rows))
        outer *= size
    return best


def _uneven(axes: list[Sym], wanted: int, shortest: int) -> Cut | None:
    """The outermost axis in about as many chunks, the last one shorter."""
    axis = axes[0]
    assert axis.upper is not None
    size = ex.as_int(axis.upper)
    count = wanted if size is None else min(wanted, size // shortest)
    if count < MIN_CHUNKS:
        return None
    rows = ex.floordiv(axis.upper + (count - 1), ex.integer(count))
    return Cut((), axis, count, rows)
