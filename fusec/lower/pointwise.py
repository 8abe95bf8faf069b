"""Rules for elementwise operations: a table from ATen name to arithmetic on scalars."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

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
            lambda at: body(compute_type(dtype), *(to_type(operand(low, v, at), dtype) for v in values))
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
            if dtype in ("bf16", "f16") and not (isinstance(v, View) and v.dtype == dtype):
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
                return low.node_pointwise(lambda at: lp.op("lt", "bool", low.broadcast(x, at), zero))
            return low.node_pointwise(lambda at: lp.const(False, "bool"))
        return low.node_pointwise(lambda at: lp.op(name, "bool", low.broadcast(x, at)))

    return rule


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


def _pow(low: Lowering, node: Node) -> Value:
    base, exponent = (low.value(a) for a in node.args[:2])
    dtype = low.node_type().dtype
    t = compute_type(dtype)
    if t not in ("f32", "f64"):
        if exponent == 2:
            return low.node_pointwise(lambda at: _square(t, to_type(operand(low, base, at), dtype)))
        return low.external(node, "fallback")

    def body(at: tuple[Expr, ...]) -> Scalar:
        x = to_type(operand(low, base, at), dtype)
        if isinstance(exponent, (int, float)) and not isinstance(exponent, bool):
            special = _constant_power(t, x, float(exponent))
            if special is not None:
                return special
        return lp.op("pow", t, x, to_type(operand(low, exponent, at), dtype))

    return low.node_pointwise(body)


def _square(t: str, x: Scalar) -> Scalar:
    return lp.op("mul", t, x, x)


def _constant_power(t: str, x: Scalar, exponent: float) -> Scalar | None:
    """The exponents that eager computes without pow."""
    if exponent == 1.0:
        return x
    if exponent == 2.0:
        return _square(t, x)
    if exponent == 3.0:
        return lp.op("mul", t, _square(t, x), x)
    if exponent == 0.5:
        return lp.op("sqrt", t, x)
    one = lp.const(1.0, t)
    if exponent == -0.5:
        return lp.op("div", t, one, lp.op("sqrt", t, x))
    if exponent == -1.0:
        return lp.op("div", t, one, x)
    if exponent == -2.0:
        return lp.op("div", t, one, _square(t, x))
    return None


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


def convert(low: Lowering, x: View, dtype: str, at: Sequence[Expr]) -> Scalar:
    """An explicit cast: rounds where the new type is a half one, as the user asked."""
    value = lp.cast(low.broadcast(x, at), dtype)
    if dtype in ("bf16", "f16") and x.dtype != dtype:
        value = lp.op(f"round_{dtype}", "f32", value)
    return value


def _cast(low: Lowering, node: Node) -> Value:
    x = low.view(node.args[0])
    t = low.node_type()
    if t.device != "cpu" or DTYPES[t.dtype].size == 1 and DTYPES[t.dtype].is_float:
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


def _leaky(t: str, x: Scalar, slope: Scalar) -> Scalar:
    zero = lp.const(0, t)
    return lp.op("where", t, lp.op("gt", "bool", x, zero), x, lp.op("mul", t, x, slope))


def _rsub(low: Lowering, node: Node) -> Value:
    flipped = Node(node.op, node.target, (node.args[1], node.args[0]), node.kwargs, node.type)
    if kwarg(node, "alpha", 1) != 1 or len(node.args) > 2:
        return low.external(node, "fallback")
    return _scaled("sub")(low, flipped)


def _square_rule(t: str, x: Scalar) -> Scalar:
    return _square(t, x)


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


def _remainder(name: str) -> Rule:
    """Native where eager does not raise: for floats, and for a number that is not zero."""
    native = binary(name)

    def rule(low: Lowering, node: Node) -> Value:
        real = compute_type(low.node_type().dtype) in ("f32", "f64")
        if not real and not _divides(low.value(node.args[1])):
            return low.external(node, "fallback")
        return native(low, node)

    return rule


def _nan_to_num(low: Lowering, node: Node) -> Value:
    x = low.view(node.args[0])
    dtype = low.node_type().dtype
    t = compute_type(dtype)
    if t not in ("f32", "f64"):
        return _clone(low, node)
    args = list(node.args[1:]) + [None] * 3
    largest = {"f64": 1.7976931348623157e308, "f32": 3.4028234663852886e38,
               "bf16": 3.3895313892515355e38, "f16": 65504.0}[dtype]
    names = ("nan", "posinf", "neginf")
    given = [low.value(args[i] if args[i] is not None else kwarg(node, n)) for i, n in enumerate(names)]
    nan, high, low_value = (
        float(g) if isinstance(g, (int, float)) else d for g, d in zip(given, (0.0, largest, -largest), strict=True)
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
    "exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh "
    "erf erfc sqrt rsqrt sigmoid reciprocal lgamma"
).split()

POINTWISE: Final[dict[str, Rule]] = {
    **{f"aten.{name}": unary(name) for name in _UNARY_FLOAT},
    "aten.neg": unary("neg"),
    "aten.abs": arithmetic(_abs, 1),
    "aten.sign": arithmetic(_sign, 1),
    "aten.floor": arithmetic(_rounding("floor"), 1),
    "aten.ceil": arithmetic(_rounding("ceil"), 1),
    "aten.trunc": arithmetic(_rounding("trunc"), 1),
    "aten.round.default": arithmetic(_rounding("rint"), 1),
    "aten.round.decimals": _round_decimals,
    "aten.fmax": arithmetic(_number_of("max"), 2),
    "aten.fmin": arithmetic(_number_of("min"), 2),
    "aten.relu": arithmetic(_relu, 1),
    "aten.square": arithmetic(_square_rule, 1),
    "aten.add": _scaled("add"),
    "aten.sub": _scaled("sub"),
    "aten.rsub": _rsub,
    "aten.mul": arithmetic(_mul_body, 2),
    "aten.div.Tensor": binary("div"),
    "aten.div.Scalar": binary("div"),
    "aten.div.Tensor_mode": _div_mode,
    "aten.div.Scalar_mode": _div_mode,
    "aten.true_divide": binary("div"),
    "aten.floor_divide": _floor_divide,
    "aten.remainder": _remainder("rem"),
    "aten.fmod": _remainder("fmod"),
    "aten.atan2": binary("atan2"),
    "aten.copysign": binary("copysign"),
    "aten.pow": _pow,
    "aten.maximum": arithmetic(_extreme_body("max"), 2),
    "aten.minimum": arithmetic(_extreme_body("min"), 2),
    "aten.clamp": _clamp,
    "aten.clamp_min": arithmetic(_extreme_body("max"), 2),
    "aten.clamp_max": arithmetic(_extreme_body("min"), 2),
    **{f"aten.{name}": comparison(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{f"aten.logical_{name}": logical(name, 2) for name in ("and", "or", "xor")},
    "aten.logical_not": logical("not", 1),
    **{f"aten.bitwise_{name}": _bitwise(name) for name in ("and", "or", "xor", "not")},
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
    "aten.addcmul": _addc("mul"),
    "aten.addcdiv": _addc("div"),
    "aten.lerp": _lerp,
    "aten.leaky_relu": arithmetic(_leaky, 2),
    "aten.threshold_backward": _threshold_backward,
    "aten.nan_to_num": _nan_to_num,
    "aten.fill.Scalar": _fill,
    "aten.fill.Tensor": _fill,
}
