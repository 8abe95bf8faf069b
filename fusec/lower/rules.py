"""What rules are made of: operands brought to a type, and makers of rules for simple operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from fusec.errors import LoweringError
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr
from fusec.ir.graph import Arg, Node
from fusec.ir.loop import Scalar
from fusec.lower.context import Lowering, Value, compute_type
from fusec.lower.promote import promote
from fusec.lower.view import View

Rule: TypeAlias = Callable[[Lowering, Node], Value]
Body: TypeAlias = Callable[..., Scalar]


def operand(low: Lowering, value: Value, at: Sequence[Expr]) -> Scalar | bool | int | float:
    """A tensor's element, or the number itself (an expression becomes an index scalar)."""
    if isinstance(value, View):
        return low.broadcast(value, at)
    if isinstance(value, Scalar):
        return value
    if isinstance(value, Expr):
        return lp.index(value)
    if isinstance(value, (bool, int, float)):
        return value
    raise LoweringError(f"{low.where()}: {value!r:.60} is no elementwise operand")


def to_type(x: Scalar | bool | int | float, dtype: str) -> Scalar:
    """Bring an operand to the compute type of ``dtype``, a number as eager would."""
    if isinstance(x, Scalar):
        return lp.cast(x, dtype)
    return lp.const(x, dtype)


def kwarg(node: Node, name: str, default: Arg = None) -> Arg:
    for key, value in node.kwargs:
        if key == name:
            return value
    return default


def common_dtype(low: Lowering, values: Sequence[Value]) -> str:
    """The promoted dtype of operands, by torch's rules."""
    tensors = [(v.dtype, len(v.shape)) for v in values if isinstance(v, View)]
    numbers: list[bool | int | float | complex] = [
        v for v in values if isinstance(v, (bool, int, float, complex))
    ]
    numbers += [0 for v in values if isinstance(v, Expr)]
    numbers += [0.0 for v in values if isinstance(v, Scalar)]
    return promote(tensors, numbers)


def arithmetic(body: Body, count: int) -> Rule:
    """Operands converted to the result's compute type, then ``body``."""

    def rule(low: Lowering, node: Node) -> Value:
        values = [low.value(a) for a in node.args[:count]]
        dtype = low.node_type().dtype
        return low.node_pointwise(
            lambda at: body(
                compute_type(dtype), *(to_type(operand(low, v, at), dtype) for v in values)
            )
        )

    return rule


def unary(name: str) -> Rule:
    return arithmetic(lambda t, x: lp.op(name, t, x), 1)


def binary(name: str) -> Rule:
    return arithmetic(lambda t, x, y: lp.op(name, t, x, y), 2)


def comparison(name: str) -> Rule:
    """Operands promoted among themselves; half types compare as the half values they are."""

    def rule(low: Lowering, node: Node) -> Value:
        values = [low.value(a) for a in node.args[:2]]
        dtype = common_dtype(low, values)

        def side(v: Value, at: Sequence[Expr]) -> Scalar:
            x = to_type(operand(low, v, at), dtype)
            if dtype in ("bf16", "f16"):
                # What is in a register may not be rounded yet, and a comparison shows it.
                x = lp.op(f"round_{dtype}", "f32", x)
            return x

        return low.node_pointwise(
            lambda at: lp.op(name, "bool", side(values[0], at), side(values[1], at))
        )

    return rule


def logical(name: str, count: int) -> Rule:
    def rule(low: Lowering, node: Node) -> Value:
        values = [low.value(a) for a in node.args[:count]]
        return low.node_pointwise(
            lambda at: lp.op(name, "bool", *(to_type(operand(low, v, at), "bool") for v in values))
        )

    return rule


def test(name: str) -> Rule:
    """A predicate of one value, such as isnan; false (or trivial) for integers."""

    def rule(low: Lowering, node: Node) -> Value:
        x = low.view(node.args[0])
        dtype = compute_type(x.dtype)
        if dtype not in ("f32", "f64"):
            if name == "signbit" and DTYPES[x.dtype].kind == "int":
                zero = lp.const(0, dtype)
                return low.node_pointwise(
                    lambda at: lp.op("lt", "bool", low.broadcast(x, at), zero)
                )
            return low.node_pointwise(lambda at: lp.const(False, "bool"))
        return low.node_pointwise(lambda at: lp.op(name, "bool", low.broadcast(x, at)))

    return rule


def convert(low: Lowering, x: View, dtype: str, at: Sequence[Expr]) -> Scalar:
    """An explicit cast: rounds where the new type is a half one, as the user asked."""
    value = lp.cast(low.broadcast(x, at), dtype)
    if dtype in ("bf16", "f16") and x.dtype != dtype:
        value = lp.op(f"round_{dtype}", "f32", value)
    return value
