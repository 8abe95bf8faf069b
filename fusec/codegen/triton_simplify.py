"""What a kernel need not compute: arithmetic on constants, a reduction that another one makes,
what happens along axes of no points.

Before: ``max(sub(4096.0, 0.0), 0.0)``; ``b4 = sum(v)`` and ``b5 = sum(v)``. After: ``4096.0``; b4
serves both. Constants are f32, rounded as the GPU rounds.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.kernel import KernelLoop, Statement
from fusec.ir.loop import Const, Op, Reduced, Scalar

_ARITHMETIC: Final[dict[str, Callable[[float, float], float]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "min": min,
    "max": max,
}


def simplify(loop: KernelLoop) -> KernelLoop:
    """See the module docstring."""
    first: dict[tuple[object, ...], int] = {}  # a reduction → the result that it is kept in
    same: dict[int, int] = {}  # a result → the one that serves for it
    memo: dict[Scalar, Scalar] = {}
    statements: list[Statement] = []
    for s in _without_points(loop):
        value = lp.rewrite(s.value, lambda n: _simpler(n, memo, same), memo)
        if s.fold is not None and s.fold not in lp.SCANS:
            key = (s.fold, value, s.stage, s.across, loop.results[s.buffer])
            kept = first.setdefault(key, s.buffer)
            if kept != s.buffer:
                same[s.buffer] = kept
                continue
        indirect = tuple(
            (symbol, lp.rewrite(v, lambda n: _simpler(n, memo, same), memo))
            for symbol, v in s.indirect
        )
        statements.append(replace(s, value=value, indirect=indirect))
    results = {b: dtype for b, dtype in loop.results.items() if b not in same}
    return replace(loop, statements=tuple(statements), results=results)


def _without_points(loop: KernelLoop) -> tuple[Statement, ...]:
    """Statements of a kernel whose folded axes have no points: nothing is loaded or stored along
    them (there may be no memory to load from), and their folds are of nothing."""
    if not any(ex.as_int(a.upper) == 0 for a in loop.folded if a.upper is not None):
        return loop.statements
    return tuple(
        s if not s.inner else replace(s, value=lp.const(0, s.value.dtype))
        for s in loop.statements
        if not s.inner or (s.fold is not None and s.fold not in lp.SCANS)
    )


def _simpler(node: Scalar, memo: dict[Scalar, Scalar], same: dict[int, int]) -> Scalar | None:
    if isinstance(node, Reduced) and node.buffer in same:
        return lp.reduced(same[node.buffer], node.dtype)
    if not isinstance(node, Op) or node.name not in _ARITHMETIC or node.dtype != "f32":
        return None
    # f64 holds sums, products and quotients of f32 well enough that rounding twice is harmless.
    values = [float(a.value) for a in (memo[a] for a in node.args) if isinstance(a, Const)]
    if len(values) != len(node.args):
        return None
    try:
        single = [_single(v) for v in values]
        return lp.const(_single(_ARITHMETIC[node.name](*single)), "f32")
    except (ArithmeticError, struct.error):
        return None


def _single(value: float) -> float:
    """Rounded to f32. Raises OverflowError where that is infinite."""
    return float(struct.unpack("f", struct.pack("f", value))[0])
