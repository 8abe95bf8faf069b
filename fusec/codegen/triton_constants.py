"""Arithmetic on constants, done while compiling: what is left of sizes and options in a loop.

Before: ``max(sub(4096.0, 0.0), 0.0)``. After: ``4096.0``. f32 only, rounded as the GPU rounds.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from fusec.ir import loop as lp
from fusec.ir.kernel import KernelLoop
from fusec.ir.loop import Const, Op, Scalar

_FOLDED: Final[dict[str, Callable[[float, float], float]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "min": min,
    "max": max,
}


def fold_constants(loop: KernelLoop) -> KernelLoop:
    """See the module docstring."""
    memo: dict[Scalar, Scalar] = {}
    return replace(
        loop,
        statements=tuple(
            replace(s, value=lp.rewrite(s.value, lambda n: _folded(n, memo), memo))
            for s in loop.statements
        ),
    )


def _folded(node: Scalar, memo: dict[Scalar, Scalar]) -> Scalar | None:
    if not isinstance(node, Op) or node.name not in _FOLDED or node.dtype != "f32":
        return None
    args = [memo[a] for a in node.args]
    if not all(isinstance(a, Const) for a in args):
        return None
    # f64 holds sums, products and quotients of f32 well enough that rounding twice is harmless.
    values = [_single(float(a.value)) for a in args if isinstance(a, Const)]
    try:
        return lp.const(_single(_FOLDED[node.name](*values)), "f32")
    except (ArithmeticError, struct.error):
        return None


def _single(value: float) -> float:
    """Rounded to f32. Raises OverflowError where that is infinite."""
    return float(struct.unpack("f", struct.pack("f", value))[0])
