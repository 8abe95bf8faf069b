"""Index expressions as C."""

from __future__ import annotations

from collections.abc import Callable

from fusec.ir import expr as ex
from fusec.ir.expr import Expr, Sym

# C's / and % truncate; these floor. Used only where a negative value is possible.
FLOOR_HELPERS = (
    "static inline long floordiv(long a, long b) "
    "{ long q = a / b; return q - ((a % b != 0) & ((a < 0) != (b < 0))); }\n"
    "static inline long floormod(long a, long b) { return a - floordiv(a, b) * b; }\n"
    "static inline long minl(long a, long b) { return a < b ? a : b; }\n"
    "static inline long maxl(long a, long b) { return a > b ? a : b; }\n"
)


def c_expr(e: Expr, name: Callable[[Sym], str]) -> str:
    """C text of type long; ``name`` gives the C name of a symbol."""
    if isinstance(e, ex.Int):
        return f"{e.value}L"
    if isinstance(e, ex.Sym):
        return name(e)
    if isinstance(e, ex.Sum):
        parts = [f"{c}L * {c_expr(a, name)}" if c != 1 else c_expr(a, name) for a, c in e.terms]
        if e.const:
            parts.append(f"{e.const}L")
        return "(" + " + ".join(parts) + ")"
    if isinstance(e, ex.Product):
        return "(" + " * ".join(c_expr(f, name) for f in e.factors) + ")"
    if isinstance(e, ex.Binary):
        left, right = c_expr(e.left, name), c_expr(e.right, name)
        if e.op in ("//", "%"):
            low = ex.bounds(e.left)[0]
            divisor = ex.as_int(e.right)
            if low is not None and low >= 0 and (divisor is None or divisor > 0):
                return f"({left} {'/' if e.op == '//' else '%'} {right})"
            return f"{'floordiv' if e.op == '//' else 'floormod'}({left}, {right})"
        return f"({left} {e.op} {right})"
    assert isinstance(e, ex.Extremum)
    text = c_expr(e.args[0], name)
    for arg in e.args[1:]:
        text = f"{e.op}l({text}, {c_expr(arg, name)})"
    return text
