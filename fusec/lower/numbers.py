"""Numbers that Python computes from sizes: what is no whole number becomes a scalar of the loops.

Whole numbers are expressions already (`fusec.ir.expr`). A mean's ``1 / n`` over a size known only
at the call is not: it is computed in double precision inside the kernels that use it, as Python
computes it before the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fusec.errors import LoweringError
from fusec.ir import loop as lp
from fusec.ir.expr import Expr
from fusec.ir.graph import Node
from fusec.ir.loop import Scalar
from fusec.lower.context import Lowering, Value

_FLOAT: Final = "f64"


def _arithmetic(name: str) -> Callable[..., Scalar]:
    return lambda *args: lp.op(name, _FLOAT, *args)


def _comparison(name: str) -> Callable[..., Scalar]:
    return lambda a, b: lp.op(name, "bool", a, b)


RULES: Final[Mapping[str, Callable[..., Scalar]]] = {
    "py.add": _arithmetic("add"),
    "py.sub": _arithmetic("sub"),
    "py.mul": _arithmetic("mul"),
    "py.truediv": _arithmetic("div"),
    "py.neg": _arithmetic("neg"),
    "py.pow": _arithmetic("pow"),
    "py.lt": _comparison("lt"),
    "py.le": _comparison("le"),
    "py.gt": _comparison("gt"),
    "py.ge": _comparison("ge"),
    "py.eq": _comparison("eq"),
    "py.ne": _comparison("ne"),
    "sym.float": lambda x: x,
    "sym.max": _arithmetic("max"),
    "sym.min": _arithmetic("min"),
}


def symbolic_number(low: Lowering, node: Node) -> Value:
    """The value of a call that makes a number which is no expression.

    Raises LoweringError where it depends on tensor data, or has no form in a loop.
    """
    rule = RULES.get(node.target)
    if rule is None:
        raise LoweringError(
            f"{low.where()}: a number that depends on tensor data", hint="this graph runs in eager"
        )
    return rule(*(_double(low, low.value(arg)) for arg in node.args))


def _double(low: Lowering, value: Value) -> Scalar:
    if isinstance(value, Scalar):
        return lp.cast(value, _FLOAT)
    if isinstance(value, Expr):
        return lp.cast(lp.index(value), _FLOAT)
    if isinstance(value, (bool, int, float)):
        return lp.const(value, _FLOAT)
    raise LoweringError(f"{low.where()}: {value!r:.60} is no number")
