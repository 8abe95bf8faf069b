"""Additions at one of few places: a sum for each place, instead of additions that meet.

Before: ``b1[j[r], d] += v[r, d]`` for ``j < 2``.
After:  ``s0[d] = sum[r] where(j[r] == 0, v[r, d], 0)``, ``s1[d]`` likewise;
        ``b2[k, d] = b1[k, d] + where(k == 0, s0[d], s1[d])``.

On a GPU additions to one address wait for each other. The sums read what is added once, together,
and their order does not change from run to run: the gradient of an embedding of two kinds of
tokens, what each of a few experts is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr, Sym
from fusec.ir.loop import Compute, Reduction, Scalar
from fusec.lower.context import Lowering
from fusec.lower.gather import Place

_MOST: Final = 4  # places: so many partial results at each point of a tile fit into registers
_FEWEST: Final = 64  # additions a place that are worth two more kernels


def sums_of_few(
    low: Lowering,
    axes: tuple[Sym, ...],
    at: Sequence[Expr],
    place: Place,
    number: Scalar,
    put: Scalar,
) -> Callable[[Sequence[Expr]], Scalar] | None:
    """What is added at the coordinates of a result, given what is ``put`` at all points of ``axes``
    at coordinates ``at``, of which one is the symbol of ``place``, whose value there is ``number``;
    None where the places may be many, or few points meet."""
    count = ex.as_int(place.size)
    kept = tuple(c for c in at if isinstance(c, Sym) and c is not place.symbol)
    folded = tuple(a for a in axes if a not in kept)
    if count is None or not 0 < count <= _MOST or len(kept) != len(at) - 1:
        return None
    if not set(kept) <= set(axes) or len(set(kept)) != len(kept):
        return None
    points = ex.as_int(ex.product(a.upper for a in folded if a.upper is not None))
    if not folded or (points is not None and points < _FEWEST * count):
        return None
    dtype = put.dtype
    zero = lp.const(0, dtype)
    shape = [a.upper for a in kept if a.upper is not None]
    sums: list[int] = []
    for k in range(count):
        here = lp.op("eq", "bool", number, lp.const(k, "i64"))
        sums.append(low.temp(dtype, shape))
        value = lp.op("where", dtype, here, put, zero)
        fold = Reduction("sum", folded, axes)
        low.steps.append(Compute(sums[-1], kept, value, fold, (low.position,)))
    dim = list(at).index(place.symbol)

    def added(where: Sequence[Expr]) -> Scalar:
        rest = (*where[:dim], *where[dim + 1 :])
        value = lp.load(sums[-1], dtype, rest)
        for k in reversed(range(count - 1)):
            here = lp.condition(ex.compare("==", where[dim], k))
            value = lp.op("where", dtype, here, lp.load(sums[k], dtype, rest), value)
        return value

    return added
