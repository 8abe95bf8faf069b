"""Chunks of folds that wait for another fold's result, about what they have of it themselves.

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

from dataclasses import replace

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.loop import Buffer, Compute, Load, LoopProgram, Op, Reduction, Scalar
from fusec.schedule.chunks import Cut, Fold, split, symbols_of


def serves_others(fold: Reduction, cut: Cut) -> bool:
    """Whether other folds may be about the results of these chunks."""
    return fold.op == "max" or (fold.op == "sum" and not cut.ragged)


def pointwise_steps(program: LoopProgram) -> dict[int, Compute]:
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


def about_means(
    step: Compute, fold: Reduction, cuts: dict[Fold, tuple[Cut, int]], buffers: list[Buffer]
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
    if found is None or any(a in fold.axes for load in lp.loads(m) for a in symbols_of(load)):
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

    first, last = split(step, fold, cut, buffers)
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


def about_maxima(
    step: Compute,
    fold: Reduction,
    cuts: dict[Fold, tuple[Cut, int]],
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
    if found is None or any(a in fold.axes for load in lp.loads(m) for a in symbols_of(load)):
        return None
    cut, maxima = found
    compute = off.dtype
    first, last = split(replace(step, value=value), fold, cut, buffers)
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
