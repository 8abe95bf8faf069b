"""Split long reductions into chunks that can run in parallel and in the order of memory.

Before: ``b1[j] = sum[r < 8192] f(r, j)``.
After:  ``p[c, j] = sum[r < 128] f(128·c + r, j)``; ``b1[j] = sum[c < 64] p[c, j]``.

Done where the kept axes alone leave the machine idle, and where the folded axes come first in
memory, so that a column is never walked alone. Outer folded axes may become chunks as a whole.
Where no count divides an axis well the last chunk is shorter: beyond the axis is the neutral
element. The number of chunks depends on the shape and the target only: results do not change with
the number of threads.

A variance folds ``v`` and then ``v - m`` and its square. Where a chunk of the first fold is
``p[c]`` of ``n`` points, chunks of the others are about its own mean ``a = p[c] / n``, and

    sum (v - m)   = sum[c] (d[c] + n·e),              d[c] = sum (v - a),  e = a - m
    sum (v - m)²  = sum[c] (q[c] + (2·d[c] + n·e)·e), q[c] = sum (v - a)²

(T. F. Chan, G. H. Golub and R. J. LeVeque, 1979): one kernel reads ``v`` once for all three.

A softmax folds ``m = max(v)`` and then ``exp(v - m)``. Chunks of the sum are about the maximum
``p[c]`` of their own (M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax",
2018):

    sum exp(v - m) = sum[c] q[c] · exp(p[c] - m),     q[c] = sum exp(v - p[c])
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr, Sym
from fusec.ir.loop import Buffer, Compute, Load, LoopProgram, Op, Reduction, Scalar, Step
from fusec.schedule.cost import CPU, Machine, points

MIN_CHUNKS: Final = 4
_MIN_WORK: Final = 65536  # points; a smaller reduction is not worth two kernels
_SPLIT: Final = frozenset(("sum", "prod", "min", "max", "or", "and"))
_BITS: Final = {"i64": 64, "i32": 32, "i16": 16, "i8": 8, "u64": 64, "u32": 32, "u16": 16, "u8": 8}

_Fold: TypeAlias = tuple[Scalar, tuple[Sym, ...], Reduction]


@dataclass(frozen=True, slots=True)
class _Cut:
    """``whole``: outer folded axes whose every point is a chunk; ``axis``: the next one, in
    ``count`` chunks of ``rows`` points each."""

    whole: tuple[Sym, ...]
    axis: Sym
    count: int
    rows: Expr

    @property
    def ragged(self) -> bool:
        return self.rows * self.count is not self.axis.upper


def split_folds(program: LoopProgram, machine: Machine = CPU) -> LoopProgram:
    """See the module docstring. The result computes the same outputs."""
    buffers = list(program.buffers)
    steps: list[Step] = []
    crossed = _row_folds(program)
    contiguous = _contiguous_dimensions(program)
    # Sums in equal chunks, and maxima, with their chunks' buffers.
    cuts: dict[_Fold, tuple[_Cut, int]] = {}
    pointwise = _pointwise(program)
    for step in program.steps:
        if isinstance(step, Compute) and step.reduction is not None:
            fold = step.reduction
            pair = None
            if machine.splits.centred:
                pair = _about_means(step, fold, cuts, buffers)
                pair = pair or _about_maxima(step, fold, cuts, pointwise, buffers)
            if pair is None:
                last = _contiguous(step, fold.order, contiguous)
                cut = _cut(step, fold, machine, crossed, last in step.axes)
                pair = None if cut is None else _split(step, fold, cut, buffers)
                if pair is not None and cut is not None and _is_kept(fold, cut):
                    cuts[step.value, step.axes, fold] = cut, pair[0].output
            if pair is not None:
                steps += pair
                continue
        steps.append(step)
    return replace(program, buffers=tuple(buffers), steps=tuple(steps))


def _pointwise(program: LoopProgram) -> dict[int, Compute]:
    """What is computed point by point of memory that keeps its content, by buffer."""
    changed = {b.base for b in program.buffers if b.kind == "alias"}
    return {
        step.output: step
        for step in program.steps
        if isinstance(step, Compute)
        and step.reduction is None
        and not step.scatters
        and changed.isdisjoint(load.buffer for load in lp.loads(step.value))
    }


def _is_kept(fold: Reduction, cut: _Cut) -> bool:
    """Whether other folds may be about the results of these chunks."""
    return fold.op == "max" or (fold.op == "sum" and not cut.ragged)


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


def _about_means(
    step: Compute, fold: Reduction, cuts: dict[_Fold, tuple[_Cut, int]], buffers: list[Buffer]
) -> tuple[Compute, Compute] | None:
    """The fold of ``v - m`` or of its square in chunks like those of ``v``, each about its own
    mean; None for another fold."""
    value = step.value
    square = isinstance(value, Op) and value.name == "mul" and value.args[0] is value.args[1]
    off = value.args[0] if square and isinstance(value, Op) else value
    if not isinstance(off, Op) or off.name != "sub" or off.dtype not in ("f32", "f64"):
        return None
    v, m = off.args
    found = cuts.get((v, step.axes, fold))
    if found is None or any(a in fold.axes for load in lp.loads(m) for a in _symbols(load)):
        return None
    cut, sums = found
    if square and (off, step.axes, fold) not in cuts:
        return None
    compute = off.dtype
    count = ex.as_int(ex.product(a.upper for a in fold.axes if a.upper is not None))
    chunks = len(buffers[sums].shape) - len(step.axes)
    parts = ex.as_int(ex.product(buffers[sums].shape[:chunks]))
    if count is None or parts is None:
        return None
    n = lp.const(count // parts, compute)

    def mean(first: Compute) -> Scalar:
        return lp.op("div", compute, lp.load(sums, compute, first.axes), n)

    first, last = _split(step, fold, cut, buffers)
    # Only `m` is replaced: `v` is what the split made of it.
    inner = first.value.args[0] if square and isinstance(first.value, Op) else first.value
    assert isinstance(inner, Op)
    near = lp.op("sub", compute, inner.args[0], mean(first))
    first = replace(first, value=lp.op("mul", compute, near, near) if square else near)
    assert isinstance(last.value, Load)
    at = last.value.index
    e = lp.op("sub", compute, lp.op("div", compute, lp.load(sums, compute, at), n), m)
    moved = lp.op("mul", compute, n, e)
    if square:
        d = lp.load(cuts[off, step.axes, fold][1], compute, at)
        both = lp.op("add", compute, lp.op("mul", compute, lp.const(2, compute), d), moved)
        moved = lp.op("mul", compute, both, e)
    else:
        cuts[off, step.axes, fold] = cut, first.output
    return first, replace(last, value=lp.op("add", compute, last.value, moved))


def _about_maxima(
    step: Compute,
    fold: Reduction,
    cuts: dict[_Fold, tuple[_Cut, int]],
    pointwise: dict[int, Compute],
    buffers: list[Buffer],
) -> tuple[Compute, Compute] | None:
    """The sum of ``exp(v - m)`` in chunks like those of the maximum of ``v``, each about its own;
    None for another fold."""
    value = _written_out(step.value, pointwise)
    if fold.op != "sum" or not isinstance(value, Op) or value.name != "exp":
        return None
    off = value.args[0]
    if not isinstance(off, Op) or off.name != "sub" or off.dtype not in ("f32", "f64"):
        return None
    v, m = off.args
    found = cuts.get((v, step.axes, replace(fold, op="max")))
    if found is None or any(a in fold.axes for load in lp.loads(m) for a in _symbols(load)):
        return None
    cut, maxima = found
    compute = off.dtype
    first, last = _split(replace(step, value=value), fold, cut, buffers)
    guards = first.value.args if cut.ragged and isinstance(first.value, Op) else ()
    inner = guards[1] if guards else first.value
    assert isinstance(inner, Op)
    (near,) = inner.args
    assert isinstance(near, Op)
    top = lp.load(maxima, compute, first.axes)
    # Of a chunk of nothing but -inf nothing is taken off: its powers are 0, not NaN.
    lowest = lp.op("eq", "bool", top, lp.const(float("-inf"), compute))
    base = lp.op("where", compute, lowest, lp.const(0, compute), top)
    power = lp.op("exp", compute, lp.op("sub", compute, near.args[0], base))
    if guards:
        power = lp.op("where", compute, guards[0], power, guards[2])
    assert isinstance(last.value, Load)
    moved = lp.op("sub", compute, lp.load(maxima, compute, last.value.index), m)
    value = lp.op("mul", compute, last.value, lp.op("exp", compute, moved))
    return replace(first, value=power), replace(last, value=value)


def _written_out(value: Scalar, pointwise: dict[int, Compute]) -> Scalar:
    """For a loaded value that a step before computes point by point: what it computes."""
    if not isinstance(value, Load) or value.indirect or value.guard is not None:
        return value
    maker = pointwise.get(value.buffer)
    if maker is None or maker.value.dtype != value.dtype:
        return value
    return lp.reindex(maker.value, dict(zip(maker.axes, value.index, strict=True)))


def _split(
    step: Compute, fold: Reduction, cut: _Cut, buffers: list[Buffer]
) -> tuple[Compute, Compute]:
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


def _cut(
    step: Compute,
    fold: Reduction,
    machine: Machine,
    crossed: set[tuple[float, float]],
    columns: bool,
) -> _Cut | None:
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
        used = set(_symbols(load))
        for axis in _unit_steps(load.index[dimension]):
            if axis in weight:
                weight[axis] += _points(tuple(a for a in weight if a in used))
    return max(reversed(weight), key=weight.__getitem__, default=None)


def _symbols(load: Load) -> Iterator[Sym]:
    """The symbols that a place depends on, also through values that are loaded for it."""
    for e in load.index:
        yield from ex.symbols(e)
    for _, value in load.indirect:
        for inner in lp.loads(value):
            yield from _symbols(inner)


def _unit_steps(e: Expr) -> Iterator[Sym]:
    """Axes along which an index moves by one, mostly: those inside a remainder too."""
    for atom, coefficient in ex.linear_terms(e)[1]:
        if coefficient == 1 and isinstance(atom, Sym):
            yield atom
        elif coefficient == 1 and isinstance(atom, ex.Binary) and atom.op == "%":
            yield from _unit_steps(atom.left)


def _even(axes: list[Sym], wanted: int, shortest: int) -> tuple[int, _Cut] | None:
    """The cut into most chunks of equal size, at most ``wanted``; the outermost among equals."""
    best: tuple[int, _Cut] | None = None
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
            best = (chunks, _Cut(tuple(axes[:position]), axis, count, rows))
        outer *= size
    return best


def _uneven(axes: list[Sym], wanted: int, shortest: int) -> _Cut | None:
    """The outermost axis in about as many chunks, the last one shorter."""
    axis = axes[0]
    assert axis.upper is not None
    size = ex.as_int(axis.upper)
    count = wanted if size is None else min(wanted, size // shortest)
    if count < MIN_CHUNKS:
        return None
    rows = ex.floordiv(axis.upper + (count - 1), ex.integer(count))
    return _Cut((), axis, count, rows)
