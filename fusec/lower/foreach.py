"""Rules for the foreach families: the rule of the single operation, tensor by tensor."""

from __future__ import annotations

from typing import Final

from fusec.errors import LoweringError
from fusec.ir.graph import Node, TensorType
from fusec.lower.context import Lowering, Value
from fusec.lower.pointwise import POINTWISE
from fusec.lower.rules import Rule

# Foreach overload → the overload of the single operation.
_OVERLOADS: Final = {
    "List": "Tensor",
    "Scalar": "Scalar",
    "ScalarList": "Scalar",
    "Tensor": "Tensor",
    "default": "default",
}
_POW: Final = {
    "List": "Tensor_Tensor",
    "Scalar": "Tensor_Scalar",
    "ScalarList": "Tensor_Scalar",
    "ScalarAndTensor": "Scalar",
}
_NAMES: Final = (
    "add sub mul div abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac log log10 "
    "log1p log2 neg reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc lerp"
).split()


def _each(low: Lowering, node: Node, target: str, rule: Rule) -> Value:
    """Item ``i`` of every list argument goes to call ``i``; other arguments go to all."""
    kinds = node.type
    if not isinstance(kinds, tuple):
        raise LoweringError(f"{low.where()}: expected several results")
    results: list[Value] = []
    for i, kind in enumerate(kinds):
        assert isinstance(kind, TensorType)
        args = tuple(a[i] if isinstance(a, tuple) else a for a in node.args)
        kwargs = tuple((k, v[i] if isinstance(v, tuple) else v) for k, v in node.kwargs)
        single = Node("call", target, args, kwargs, kind)
        with low.lowering(single):
            results.append(rule(low, single))
    return tuple(results)


def _rule(target: str, rule: Rule) -> Rule:
    return lambda low, node: _each(low, node, target, rule)


def _table() -> dict[str, Rule]:
    made: dict[str, Rule] = {}

    def put(family: str, overload: str, target: str) -> None:
        packet = ".".join(target.split(".")[:2])
        rule = POINTWISE.get(target) or POINTWISE.get(packet)
        if rule is not None:
            made[f"aten._foreach_{family}.{overload}"] = _rule(target, rule)

    for name in _NAMES:
        for overload, single in _OVERLOADS.items():
            put(name, overload, f"aten.{name}.{single}")
    for overload, single in _POW.items():
        put("pow", overload, f"aten.pow.{single}")
    for overload in ("Scalar", "ScalarList"):
        for name in ("addcmul", "addcdiv"):
            put(name, overload, f"aten.{name}.default")
        for name in ("clamp_min", "clamp_max"):
            put(name, overload, f"aten.{name}.default")
        put("maximum", overload, "aten.clamp_min.default")
        put("minimum", overload, "aten.clamp_max.default")
    for name, single in {"maximum": "maximum", "minimum": "minimum"}.items():
        put(name, "List", f"aten.{single}.default")
    for name in ("clamp_min", "clamp_max"):
        put(name, "List", f"aten.{name}.Tensor")
    put("lerp", "Scalar", "aten.lerp.Scalar")
    return made


FOREACH: Final[dict[str, Rule]] = _table()
