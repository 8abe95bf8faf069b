"""Rules for elementwise operations: a table from ATen name to arithmetic on scalars."""

from __future__ import annotations

import math
from typing import Final

from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr
from fusec.ir.graph import Node, refs
from fusec.ir.loop import Scalar
from fusec.ir.verify_device import devices_of
from fusec.lower.context import Lowering, Value, compute_type
from fusec.lower.division import DIVISION, square
from fusec.lower.rules import (
    Body,
    Rule,
    arithmetic,
    binary,
    comparison,
    convert,
    kwarg,
    logical,
    operand,
    test,
    to_type,
    unary,
)


def _scaled(name: str) -> Rule:
    """``a ± alpha·b``."""

    def rule(low: Lowering, node: Node) -> Value:
        values = [low.value(a) for a in node.args[:2]]
        alpha = low.value(node.args[2] if len(node.args) > 2 else kwarg(node, "alpha", 1))
        dtype = low.node_type().dtype
        t = compute_type(dtype)

        def body(at: tuple[Expr, ...]) -> Scalar:
            x, y = (to_type(operand(low, v, at), dtype) for v in values)
            if alpha != 1:
                y = _mul_body(t, y, to_type(operand(low, alpha, at), dtype))
            if t == "bool":
                return lp.op("or" if name == "add" else "xor", "bool", x, y)
            return lp.op(name, t, x, y)

        return low.node_pointwise(body)

    return rule


def _mul_body(t: str, x: Scalar, y: Scalar) -> Scalar:
    return lp.op("and" if t == "bool" else "mul", t, x, y)


def _extreme_body(name: str) -> Body:
    def body(t: str, x: Scalar, y: Scalar) -> Scalar:
        if t == "bool":
            return lp.op("or" if name == "max" else "and", t, x, y)
        return lp.op(name, t, x, y)

    return body


def _clamp(low: Lowering, node: Node) -> Value:
    args = list(node.args) + [None] * (3 - len(node.args))
    x = low.value(args[0])
    lower = low.value(args[1] if args[1] is not None else kwarg(node, "min"))
    upper = low.value(args[2] if args[2] is not None else kwarg(node, "max"))
    dtype = low.node_type().dtype
    t = compute_type(dtype)

    def body(at: tuple[Expr, ...]) -> Scalar:
        value = to_type(operand(low, x, at), dtype)
        for bound, name in ((lower, "max"), (upper, "min")):
            if bound is not None:
                value = _extreme_body(name)(t, value, to_type(operand(low, bound, at), dtype))
        return value

    return low.node_pointwise(body)


def _where(low: Lowering, node: Node) -> Value:
    condition, x, y = (low.value(a) for a in node.args[:3])
    dtype = low.node_type().dtype
    t = compute_type(dtype)
    return low.node_pointwise(
        lambda at: lp.op(
            "where",
            t,
            to_type(operand(low, condition, at), "bool"),
            to_type(operand(low, x, at), dtype),
            to_type(operand(low, y, at), dtype),
        )
    )


def _masked_fill(low: Lowering, node: Node) -> Value:
    x, mask, fill = (low.value(a) for a in node.args[:3])
    dtype = low.node_type().dtype
    t = compute_type(dtype)
    return low.node_pointwise(
        lambda at: lp.op(
            "where",
            t,
            to_type(operand(low, mask, at), "bool"),
            to_type(operand(low, fill, at), dtype),
            to_type(operand(low, x, at), dtype),
        )
    )


def _cast(low: Lowering, node: Node) -> Value:
    x = low.view(node.args[0])
    t = low.node_type()
    (source,) = refs(node.args[0])
    moved = devices_of(low.graph.nodes[source].type) != {t.device}
    if moved or (DTYPES[t.dtype].size == 1 and DTYPES[t.dtype].is_float):
        return low.external(node, "fallback")
    return low.node_pointwise(lambda at: convert(low, x, t.dtype, at))


def _copy(low: Lowering, node: Node) -> Value:
    """``copy(self, src)``: the values of src with the type of self."""
    x = low.view(node.args[1])
    dtype = low.node_type().dtype
    return low.node_pointwise(lambda at: convert(low, x, dtype, at))


def _clone(low: Lowering, node: Node) -> Value:
    x = low.view(node.args[0])
    return low.node_pointwise(lambda at: low.broadcast(x, at))


def _relu(t: str, x: Scalar) -> Scalar:
    return lp.op("max", t, x, lp.const(0, t))


def _sign(t: str, x: Scalar) -> Scalar:
    return x if t == "bool" else lp.op("sign", t, x)


def _abs(t: str, x: Scalar) -> Scalar:
    return x if t in ("bool",) or t.startswith("u") else lp.op("abs", t, x)


def _rounding(name: str) -> Body:
    def body(t: str, x: Scalar) -> Scalar:
        return lp.op(name, t, x) if t in ("f32", "f64") else x

    return body


def _number_of(name: str) -> Body:
    """fmax and fmin: of a number and a NaN the number."""

    def body(t: str, x: Scalar, y: Scalar) -> Scalar:
        both = _extreme_body(name)(t, x, y)
        if t not in ("f32", "f64"):
            return both
        other = lp.op("where", t, lp.op("isnan", "bool", x), y, both)
        return lp.op("where", t, lp.op("isnan", "bool", y), x, other)

    return body


def _leaky(t: str, x: Scalar, slope: Scalar) -> Scalar:
    zero = lp.const(0, t)
    return lp.op("where", t, lp.op("gt", "bool", x, zero), x, lp.op("mul", t, x, slope))


def _rsub(low: Lowering, node: Node) -> Value:
    flipped = Node(node.op, node.target, (node.args[1], node.args[0]), node.kwargs, node.type)
    if kwarg(node, "alpha", 1) != 1 or len(node.args) > 2:
        return low.external(node, "fallback")
    return _scaled("sub")(low, flipped)


def _square_rule(t: str, x: Scalar) -> Scalar:
    return square(t, x)


def _threshold_backward(low: Lowering, node: Node) -> Value:
    grad, x, threshold = (low.value(a) for a in node.args[:3])
    dtype = low.node_type().dtype
    t = compute_type(dtype)

    def body(at: tuple[Expr, ...]) -> Scalar:
        g, value = (to_type(operand(low, v, at), dtype) for v in (grad, x))
        stop = lp.op("le", "bool", value, to_type(operand(low, threshold, at), dtype))
        return lp.op("where", t, stop, lp.const(0, t), g)

    return low.node_pointwise(body)


def _bitwise(name: str) -> Rule:
    def rule(low: Lowering, node: Node) -> Value:
        values = [low.value(a) for a in node.args[: 1 if name == "not" else 2]]
        dtype = low.node_type().dtype
        return low.node_pointwise(
            lambda at: lp.op(
                name, compute_type(dtype), *(to_type(operand(low, v, at), dtype) for v in values)
            )
        )

    return rule


def _shift(name: str) -> Rule:
    """Of integers; what eager's operators `<<` and `>>` do to floats is ATen's."""
    of_integers = _bitwise(name)

    def rule(low: Lowering, node: Node) -> Value:
        if not DTYPES[low.node_type().dtype].is_integer:
            return low.external(node, "fallback")
        return of_integers(low, node)

    return rule


def _angle(t: str, x: Scalar) -> Scalar:
    """Of real numbers: pi for those below zero, a NaN as it is."""
    zero, pi = lp.const(0.0, t), lp.const(math.pi, t)
    turned = lp.op("where", t, lp.op("lt", "bool", x, zero), pi, zero)
    return lp.op("where", t, lp.op("isnan", "bool", x), x, turned)


def _nan_to_num(low: Lowering, node: Node) -> Value:
    x = low.view(node.args[0])
    dtype = low.node_type().dtype
    t = compute_type(dtype)
    if t not in ("f32", "f64"):
        return _clone(low, node)
    args = list(node.args[1:]) + [None] * 3
    largest = {
        "f64": 1.7976931348623157e308,
        "f32": 3.4028234663852886e38,
        "bf16": 3.3895313892515355e38,
        "f16": 65504.0,
    }[dtype]
    names = ("nan", "posinf", "neginf")
    given = [
        low.value(args[i] if args[i] is not None else kwarg(node, n)) for i, n in enumerate(names)
    ]
    nan, high, low_value = (
        float(g) if isinstance(g, (int, float)) else d
        for g, d in zip(given, (0.0, largest, -largest), strict=True)
    )

    def body(at: tuple[Expr, ...]) -> Scalar:
        value = low.broadcast(x, at)
        inf = lp.const(math.inf, t)
        result = lp.op("where", t, lp.op("eq", "bool", value, inf), lp.const(high, t), value)
        minus = lp.op("eq", "bool", value, lp.const(-math.inf, t))
        result = lp.op("where", t, minus, lp.const(low_value, t), result)
        return lp.op("where", t, lp.op("isnan", "bool", value), lp.const(nan, t), result)

    return low.node_pointwise(body)


def _fill(low: Lowering, node: Node) -> Value:
    value = low.value(node.args[1])
    dtype = low.node_type().dtype
    return low.node_pointwise(lambda at: to_type(operand(low, value, at), dtype))


_UNARY_FLOAT: Final = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh asin acos atan asinh acosh "
    "atanh erf erfc sqrt rsqrt sigmoid reciprocal lgamma"
).split()

POINTWISE: Final[dict[str, Rule]] = {
    **DIVISION,
    **{f"aten.{name}": unary(name) for name in _UNARY_FLOAT},
    "aten.neg": unary("neg"),
    "aten.abs": arithmetic(_abs, 1),
    "aten.sign": arithmetic(_sign, 1),
    "aten.floor": arithmetic(_rounding("floor"), 1),
    "aten.ceil": arithmetic(_rounding("ceil"), 1),
    "aten.trunc": arithmetic(_rounding("trunc"), 1),
    "aten.round.default": arithmetic(_rounding("rint"), 1),
    "aten.fmax": arithmetic(_number_of("max"), 2),
    "aten.fmin": arithmetic(_number_of("min"), 2),
    "aten.relu": arithmetic(_relu, 1),
    "aten.square": arithmetic(_square_rule, 1),
    "aten.add": _scaled("add"),
    "aten.sub": _scaled("sub"),
    "aten.rsub": _rsub,
    "aten.mul": arithmetic(_mul_body, 2),
    "aten.atan2": binary("atan2"),
    "aten.copysign": binary("copysign"),
    "aten.maximum": arithmetic(_extreme_body("max"), 2),
    "aten.minimum": arithmetic(_extreme_body("min"), 2),
    "aten.clamp": _clamp,
    "aten.clamp_min": arithmetic(_extreme_body("max"), 2),
    "aten.clamp_max": arithmetic(_extreme_body("min"), 2),
    **{f"aten.{name}": comparison(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{f"aten.logical_{name}": logical(name, 2) for name in ("and", "or", "xor")},
    "aten.logical_not": logical("not", 1),
    **{f"aten.bitwise_{name}": _bitwise(name) for name in ("and", "or", "xor", "not")},
    "aten.bitwise_left_shift": _shift("shl"),
    "aten.bitwise_right_shift": _shift("shr"),
    "aten.__lshift__": _shift("shl"),
    "aten.__rshift__": _shift("shr"),
    "aten.angle": arithmetic(_angle, 1),
    "aten.isnan": test("isnan"),
    "aten.isinf": test("isinf"),
    "aten.signbit": test("signbit"),
    "aten.where.self": _where,
    "aten.where.ScalarOther": _where,
    "aten.where.ScalarSelf": _where,
    "aten.where.Scalar": _where,
    "aten.masked_fill": _masked_fill,
    "aten._to_copy": _cast,
    "prims.convert_element_type": _cast,
    "aten.copy.default": _copy,
    "aten.clone": _clone,
    "aten.contiguous": _clone,
    "aten.lift_fresh_copy": _clone,
    "aten.leaky_relu": arithmetic(_leaky, 2),
    "aten.threshold_backward": _threshold_backward,
    "aten.nan_to_num": _nan_to_num,
    "aten.fill.Scalar": _fill,
    "aten.fill.Tensor": _fill,
}
