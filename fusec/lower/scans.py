"""Rules for scans: cumulative sums and products along a dimension."""

from __future__ import annotations

from typing import Final

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.graph import Node, TensorType
from fusec.ir.loop import Compute, Reduction
from fusec.lower.context import Lowering, Value, compute_type, dense_stride, normalise_dim
from fusec.lower.rules import Rule, kwarg, to_type
from fusec.lower.view import loop_axes, whole

# On a GPU few long rows are for a library, which shares one row among all processors.
_FEW_ROWS: Final = 16
_LONG_ROW: Final = 65536


def _accumulator(t: TensorType) -> str:
    """The type that eager accumulates in."""
    work = compute_type(t.dtype)
    if work not in ("f32", "f64"):
        return "i64"
    return "f64" if t.dtype == "f32" and t.device == "cpu" else work


def _scan(op: str) -> Rule:
    def rule(low: Lowering, node: Node) -> Value:
        x = low.view(node.args[0])
        t = low.node_type()
        dim = node.args[1] if len(node.args) > 1 else kwarg(node, "dim")
        assert isinstance(dim, int)
        if not x.shape:
            return low.node_pointwise(lambda at: to_type(low.load(x, at), t.dtype))
        dim = normalise_dim(dim, len(x.shape))
        if DTYPES[t.dtype].kind == "bool" or (t.device != "cpu" and _for_library(t, dim)):
            return low.external(node, "library")
        dtype = _accumulator(t)
        axes = loop_axes(x.shape)
        # Values are brought to the result's type first, as eager does.
        value = lp.cast(to_type(low.load(x, axes), t.dtype), dtype)
        same = dtype == t.dtype
        out = low.temp(dtype, x.shape, dense_stride(t) if same else None)
        fold = Reduction(op, (axes[dim],), axes)
        low.steps.append(Compute(out, axes, value, fold, (low.position,)))
        scanned = whole(out, dtype, x.shape)
        if same:
            return scanned
        return low.node_pointwise(lambda at: lp.cast(low.load(scanned, at), t.dtype))

    return rule


def _for_library(t: TensorType, dim: int) -> bool:
    length = ex.as_int(t.shape[dim])
    rows = ex.as_int(ex.product(n for d, n in enumerate(t.shape) if d != dim))
    few = rows is not None and rows < _FEW_ROWS
    return few and (length is None or length >= _LONG_ROW)


SCANNING: Final[dict[str, Rule]] = {
    "aten.cumsum": _scan("cumsum"),
    "aten.cumprod": _scan("cumprod"),
}
