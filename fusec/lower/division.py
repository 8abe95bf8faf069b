"""Rules for division, remainders, powers and their compounds: where eager takes special paths."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from fusec.ir import loop as lp
from fusec.ir.expr import Expr
from fusec.ir.graph import Node
from fusec.ir.loop import Scalar
from fusec.lower.context import Lowering, Value, compute_type
from fusec.lower.rules import Rule, binary, kwarg, operand, to_type


def _div_mode(low: Lowering, node: Node) -> Value:
    mode = kwarg(node, "rounding_mode", node.args[2] if len(node.args) > 2 else None)
    values = [low.value(a) for a in node.args[:2]]
    dtype = low.node_type().dtype
    t = compute_type(dtype)

    if t not in ("f32", "f64") and not _divides(values[1]):
        return low.external(node, "fallback")
    name = {None: "div", "trunc": "divt", "floor": "divf"}[mode]  # type: ignore[index]
    return low.node_pointwise(
        lambda at: lp.op(name, t, *(to_type(operand(low, v, at), dtype) for v in values))
    )


def _floor_divide(low: Lowering, node: Node) -> Value:
    return _div_mode(low, replace(node, kwargs=(("rounding_mode", "floor"),)))


def _divides(divisor: Value) -> bool:
    """Whether an integer divisor is certainly not zero in any type: eager raises for a zero."""
    return isinstance(divisor, int) and not isinstance(divisor, bool) and 0 < abs(divisor) < 128


def _remainder(name: str) -> Rule:
    """Native where eager does not raise: for floats, and for a number that is not zero."""
    native = binary(name)

    def rule(low: Lowering, node: Node) -> Value:
        real = compute_type(low.node_type().dtype) in ("f32", "f64")
        if not real and not _divides(low.value(node.args[1])):
            return low.external(node, "fallback")
        return native(low, node)

    return rule


def _pow(low: Lowering, node: Node) -> Value:
    base, exponent = (low.value(a) for a in node.args[:2])
    dtype = low.node_type().dtype
    t = compute_type(dtype)
    if t not in ("f32", "f64"):
        if exponent == 2:
            return low.node_pointwise(lambda at: square(t, to_type(operand(low, base, at), dtype)))
        return low.external(node, "fallback")

    def body(at: tuple[Expr, ...]) -> Scalar:
        x = to_type(operand(low, base, at), dtype)
        if isinstance(exponent, (int, float)) and not isinstance(exponent, bool):
            special = _constant_power(t, x, float(exponent))
            if special is not None:
                return special
        return lp.op("pow", t, x, to_type(operand(low, exponent, at), dtype))

    return low.node_pointwise(body)


def square(t: str, x: Scalar) -> Scalar:
    return lp.op("mul", t, x, x)


def _constant_power(t: str, x: Scalar, exponent: float) -> Scalar | None:
    """The exponents that eager computes without pow."""
    if exponent == 1.0:
        return x
    if exponent == 2.0:
        return square(t, x)
    if exponent == 3.0:
        return lp.op("mul", t, square(t, x), x)
    if exponent == 0.5:
        return lp.op("sqrt", t, x)
    one = lp.const(1.0, t)
    if exponent == -0.5:
        return lp.op("div", t, one, lp.op("sqrt", t, x))
    if exponent == -1.0:
        return lp.op("div", t, one, x)
    if exponent == -2.0:
        return lp.op("div", t, one, square(t, x))
    return None


def _round_decimals(low: Lowering, node: Node) -> Value:
    x = low.view(node.args[0])
    decimals = low.value(kwarg(node, "decimals", 0))
    dtype = low.node_type().dtype
    t = compute_type(dtype)
    if t not in ("f32", "f64") or not isinstance(decimals, int):
        return low.external(node, "fallback")
    power = lp.const(10.0 ** abs(decimals), t)
    there, back = ("mul", "div") if decimals > 0 else ("div", "mul")

    def body(at: tuple[Expr, ...]) -> Scalar:
        scaled = lp.op(there, t, low.broadcast(x, at), power)
        return lp.op(back, t, lp.op("rint", t, scaled), power)

    return low.node_pointwise(body)


def _addc(name: str) -> Rule:
    """``self + value · a (·|/) b``."""

    def rule(low: Lowering, node: Node) -> Value:
        values = [low.value(a) for a in node.args[:3]]
        factor = low.value(kwarg(node, "value", node.args[3] if len(node.args) > 3 else 1))
        dtype = low.node_type().dtype
        t = compute_type(dtype)

        def body(at: tuple[Expr, ...]) -> Scalar:
            x, a, b = (to_type(operand(low, v, at), dtype) for v in values)
            if factor != 1:
                a = lp.op("mul", t, to_type(operand(low, factor, at), dtype), a)
            return lp.op("add", t, x, lp.op(name, t, a, b))

        return low.node_pointwise(body)

    return rule


def _lerp(low: Lowering, node: Node) -> Value:
    values = [low.value(a) for a in node.args[:3]]
    dtype = low.node_type().dtype
    t = compute_type(dtype)

    def body(at: tuple[Expr, ...]) -> Scalar:
        a, b, w = (to_type(operand(low, v, at), dtype) for v in values)
        difference = lp.op("sub", t, b, a)
        small = lp.op("lt", "bool", lp.op("abs", t, w), lp.const(0.5, t))
        near = lp.op("add", t, a, lp.op("mul", t, w, difference))
        rest = lp.op("sub", t, lp.const(1.0, t), w)
        far = lp.op("sub", t, b, lp.op("mul", t, difference, rest))
        return lp.op("where", t, small, near, far)

    return low.node_pointwise(body)


DIVISION: Final[dict[str, Rule]] = {
    "aten.div.Tensor": binary("div"),
    "aten.div.Scalar": binary("div"),
    "aten.div.Tensor_mode": _div_mode,
    "aten.div.Scalar_mode": _div_mode,
    "aten.true_divide": binary("div"),
    "aten.floor_divide": _floor_divide,
    "aten.remainder": _remainder("rem"),
    "aten.fmod": _remainder("fmod"),
    "aten.pow": _pow,
    "aten.round.decimals": _round_decimals,
    "aten.addcmul": _addc("mul"),
    "aten.addcdiv": _addc("div"),
    "aten.lerp": _lerp,
}
