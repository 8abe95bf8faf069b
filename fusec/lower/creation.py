"""Rules for tensors made from nothing: constants, ranges, triangles."""

from __future__ import annotations

from typing import Final

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr
from fusec.ir.graph import Node
from fusec.ir.loop import Scalar
from fusec.lower.context import Lowering, Value, compute_type
from fusec.lower.rules import Rule, kwarg, operand, to_type


def _filled(position: int | None, constant: int = 0) -> Rule:
    """A tensor of one value: an argument's, or ``constant``."""

    def rule(low: Lowering, node: Node) -> Value:
        t = low.node_type()
        value: Value = constant if position is None else low.value(node.args[position])
        if isinstance(value, complex):
            return low.external(node, "fallback")
        return low.node_pointwise(lambda at: to_type(operand(low, value, at), t.dtype))

    return rule


def _range(low: Lowering, node: Node) -> Value:
    """``start + i·step`` in the accumulation type that eager uses."""
    t = low.node_type()
    args = [low.value(a) for a in node.args]
    if node.target.endswith(".start_step"):
        start, step = args[0], args[2] if len(args) > 2 else 1
    elif node.target.endswith(".start"):
        start, step = args[0], 1
    else:
        start, step = 0, 1
    work = compute_type(t.dtype)
    if work in ("f32", "f64"):
        return low.node_pointwise(lambda at: _real(low, at, start, step, t.dtype))

    def body(at: tuple[Expr, ...]) -> Scalar:
        first = start if isinstance(start, (Expr, int)) else int(start)  # type: ignore[arg-type]
        stride = step if isinstance(step, (Expr, int)) else int(step)  # type: ignore[arg-type]
        return lp.cast(lp.index(at[0] * stride + first), t.dtype)

    return low.node_pointwise(body)


def _real(low: Lowering, at: tuple[Expr, ...], start: Value, step: Value, dtype: str) -> Scalar:
    """``start + i·step`` in double precision, as eager accumulates it."""
    first, stride = (to_type(operand(low, v, at), "f64") for v in (start, step))
    place = lp.cast(lp.index(at[0]), "f64")
    return lp.cast(lp.op("add", "f64", first, lp.op("mul", "f64", place, stride)), dtype)


def _iota(low: Lowering, node: Node) -> Value:
    t = low.node_type()
    start, step = low.value(kwarg(node, "start", 0)), low.value(kwarg(node, "step", 1))
    assert isinstance(start, (Expr, int))
    assert isinstance(step, (Expr, int))
    return low.node_pointwise(lambda at: lp.cast(lp.index(at[0] * step + start), t.dtype))


def _triangle(lower: bool) -> Rule:
    """tril and triu: zero above or below a diagonal."""

    def rule(low: Lowering, node: Node) -> Value:
        x = low.view(node.args[0])
        diagonal = low.value(node.args[1] if len(node.args) > 1 else kwarg(node, "diagonal", 0))
        assert isinstance(diagonal, (Expr, int))
        t = compute_type(x.dtype)

        def body(at: tuple[Expr, ...]) -> Scalar:
            offset = at[-1] - at[-2]
            keep = (
                ex.compare("<=", offset, diagonal) if lower else ex.compare(">=", offset, diagonal)
            )
            return lp.op("where", t, lp.condition(keep), low.load(x, at), lp.const(0, t))

        return low.node_pointwise(body)

    return rule


CREATION: Final[dict[str, Rule]] = {
    "aten.full.default": _filled(1),
    "aten.full_like": _filled(1),
    "aten.new_full": _filled(2),
    "aten.zeros": _filled(None, 0),
    "aten.ones": _filled(None, 1),
    "aten.zeros_like": _filled(None, 0),
    "aten.ones_like": _filled(None, 1),
    "aten.new_zeros": _filled(None, 0),
    "aten.new_ones": _filled(None, 1),
    "aten.scalar_tensor": _filled(0),
    # What uninitialised memory holds is anybody's choice; zeros fuse away.
    "aten.empty.memory_format": _filled(None, 0),
    "aten.empty_permuted": _filled(None, 0),
    "aten.empty_like": _filled(None, 0),
    "aten.new_empty": _filled(None, 0),
    "aten.empty_strided": _filled(None, 0),
    "aten.new_empty_strided": _filled(None, 0),
    "aten.arange": _range,
    "prims.iota": _iota,
    "aten.tril": _triangle(lower=True),
    "aten.triu": _triangle(lower=False),
}
