"""Rules for scans: cumulative sums, products, extremes and logarithms of sums of exponentials along
a dimension."""

from __future__ import annotations

from typing import Final

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.graph import Node, TensorType
from fusec.ir.loop import Compute, Reduction, Scalar
from fusec.lower.context import Lowering, Value, compute_type, dense_stride, normalise_dim
from fusec.lower.reductions import accumulator_of
from fusec.lower.rules import Rule, kwarg, to_type
from fusec.lower.view import View, loop_axes, whole

# On a GPU few long rows are for a library, which shares one row among all processors.
_FEW_ROWS: Final = 16
_LONG_ROW: Final = 65536


def _accumulator(t: TensorType) -> str:
    """The type that eager accumulates in."""
    work = compute_type(t.dtype)
    if work not in ("f32", "f64"):
        return "i64"
    return "f64" if t.dtype == "f32" and t.device == "cpu" else work


def _dim(node: Node, x: View) -> int:
    dim = node.args[1] if len(node.args) > 1 else kwarg(node, "dim")
    assert isinstance(dim, int)
    return normalise_dim(dim, len(x.shape))


def _scan(op: str) -> Rule:
    def rule(low: Lowering, node: Node) -> Value:
        x = low.view(node.args[0])
        t = low.node_type()
        if not x.shape:
            return low.node_pointwise(lambda at: to_type(low.load(x, at), t.dtype))
        dim = _dim(node, x)
        if DTYPES[t.dtype].kind == "bool" or (t.device != "cpu" and _for_library(t, dim)):
            return low.external(node, "library")
        dtype = _accumulator(t)
        axes = loop_axes(x.shape)
        # Values are brought to the result's type first, as eager does.
        value = to_type(low.load(x, axes), t.dtype)
        if op == "logcumsumexp":
            value = _rounded(value, t)
        scanned = _scanned(low, op, lp.cast(value, dtype), dim, dtype, t)
        if dtype == t.dtype:
            return scanned
        if op != "logcumsumexp":
            return _converted(low, scanned, t)
        return low.node_pointwise(lambda at: _rounded(lp.cast(low.load(scanned, at), t.dtype), t))

    return rule


def _rounded(value: Scalar, t: TensorType) -> Scalar:
    """Rounded to a half type where the result has one. Gradients of logarithms take them off again
    and raise what is left to a power: it has to be rounded on both sides or on none, as in eager.
    """
    return lp.op(f"round_{t.dtype}", "f32", value) if t.dtype in ("bf16", "f16") else value


def _extreme(op: str) -> Rule:
    """cummax and cummin: values, and the place of the last element that was the extreme when it
    came, or of the last NaN: the largest place up to here of an element that equals the extreme up
    to and with itself."""

    def rule(low: Lowering, node: Node) -> Value:
        x = low.view(node.args[0])
        assert isinstance(node.type, tuple)
        kind, index_kind = node.type
        assert isinstance(kind, TensorType)
        assert isinstance(index_kind, TensorType)
        if not x.shape:
            place = low.pointwise("i64", (), lambda at: lp.const(0, "i64"))
            return low.pointwise(x.dtype, (), lambda at: low.load(x, at)), place
        dim = _dim(node, x)
        if x.dtype == "u64" or (kind.device != "cpu" and _for_library(kind, dim)):
            return low.external(node, "library")
        # Of masks as of the numbers 0 and 1.
        work = "i32" if x.dtype == "bool" else accumulator_of(x.dtype)
        axes = loop_axes(x.shape)
        value = lp.cast(low.load(x, axes), work)
        extremes = _scanned(low, op, value, dim, work, kind)
        counts = lp.op("eq", "bool", value, low.load(extremes, axes))
        if work in ("f32", "f64"):
            counts = lp.op("or", "bool", counts, lp.op("isnan", "bool", value))
        here = lp.op("where", "i64", counts, lp.index(axes[dim]), lp.const(0, "i64"))
        places = _scanned(low, "cummax", here, dim, "i64", index_kind)
        return extremes if work == kind.dtype else _converted(low, extremes, kind), places

    return rule


def _scanned(low: Lowering, op: str, value: Scalar, dim: int, dtype: str, t: TensorType) -> View:
    """The scan of a value over the points of ``t``, in a buffer of ``dtype``."""
    axes = loop_axes(t.shape)
    out = low.temp(dtype, t.shape, dense_stride(t) if dtype == t.dtype else None)
    fold = Reduction(op, (axes[dim],), axes)
    low.steps.append(Compute(out, axes, value, fold, (low.position,)))
    return whole(out, dtype, t.shape)


def _converted(low: Lowering, scanned: View, t: TensorType) -> View:
    """In the type of a result."""
    return low.pointwise(
        t.dtype, t.shape, lambda at: lp.cast(low.load(scanned, at), t.dtype), dense_stride(t)
    )


def _for_library(t: TensorType, dim: int) -> bool:
    length = ex.as_int(t.shape[dim])
    rows = ex.as_int(ex.product(n for d, n in enumerate(t.shape) if d != dim))
    few = rows is not None and rows < _FEW_ROWS
    return few and (length is None or length >= _LONG_ROW)


SCANNING: Final[dict[str, Rule]] = {
    "aten.cumsum": _scan("cumsum"),
    "aten.cumprod": _scan("cumprod"),
    "aten.logcumsumexp": _scan("logcumsumexp"),
    "aten.cummax": _extreme("cummax"),
    "aten.cummin": _extreme("cummin"),
}
