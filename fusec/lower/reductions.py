"""Rules for reductions: folds over axes, means and variances as folds and arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from fusec.errors import LoweringError
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr
from fusec.ir.graph import Arg, Node, TensorType
from fusec.ir.loop import Scalar
from fusec.lower.context import Lowering, Value, compute_type, dense_stride, normalise_dim
from fusec.lower.rules import Rule, kwarg
from fusec.lower.view import View
from fusec.lower.views import reshape


def dims_of(arg: Arg, rank: int) -> tuple[int, ...]:
    """Reduction dimensions: None and () mean all."""
    if arg is None or arg == ():
        return tuple(range(rank))
    if isinstance(arg, int):
        arg = (arg,)
    assert isinstance(arg, tuple)
    return tuple(normalise_dim(int(d), rank) for d in arg if isinstance(d, int)) if rank else ()


def _arg(node: Node, position: int, name: str, default: Arg = None) -> Arg:
    if len(node.args) > position:
        return node.args[position]
    return kwarg(node, name, default)


def finish(low: Lowering, x: View, body: Callable[[Scalar], Scalar], t: TensorType) -> View:
    """A reduction's result (``x``, kept in compute precision) mapped into the node's own buffer."""
    shaped = reshape(x, t.shape)
    return low.pointwise(t.dtype, t.shape, lambda at: body(low.load(shaped, at)), dense_stride(t))


def _fold(op: str, accumulate: Callable[[str], str]) -> Rule:
    """A reduction in the type ``accumulate`` gives for the result's dtype."""

    def rule(low: Lowering, node: Node) -> Value:
        x = low.view(node.args[0])
        dims = dims_of(_arg(node, 1, "dim"), len(x.shape))
        keepdim = bool(_arg(node, 2, "keepdim", False))
        return fold(low, x, op, dims, keepdim, accumulate(low.node_type().dtype))

    return rule


def fold(
    low: Lowering, x: View, op: str, dims: tuple[int, ...], keepdim: bool, accumulator: str
) -> View:
    """Reduce and deliver with the type of the node being lowered."""
    t = low.node_type()
    folded = low.reduce(
        op, x, dims, accumulator, lambda value: lp.cast(value, accumulator), keepdim=keepdim
    )
    same = accumulator == t.dtype and low.buffers[folded.buffer].stride == dense_stride(t)
    if same or (accumulator == t.dtype and len(t.shape) <= 1):
        return reshape(folded, t.shape)
    return finish(low, folded, lambda value: lp.cast(value, t.dtype), t)


def accumulator_of(dtype: str) -> str:
    """Small integers are folded as 32-bit ones and unsigned ones as signed ones of 64 bits: there
    are horizontal operations for those, and sums and products agree in the low bits."""
    if dtype in ("i8", "i16", "u8", "u16"):
        return "i32"
    return "i64" if dtype in ("u32", "u64") else compute_type(dtype)


def _sum_all(low: Lowering, node: Node) -> Value:
    x = low.view(node.args[0])
    return fold(
        low, x, "sum", tuple(range(len(x.shape))), False, accumulator_of(low.node_type().dtype)
    )


def _prod(low: Lowering, node: Node) -> Value:
    x = low.view(node.args[0])
    whole = node.target.endswith(".default")
    dims = dims_of(None if whole else node.args[1], len(x.shape))
    keepdim = False if whole else bool(_arg(node, 2, "keepdim", False))
    return fold(low, x, "prod", dims, keepdim, accumulator_of(low.node_type().dtype))


def _predicate(op: str) -> Rule:
    def rule(low: Lowering, node: Node) -> Value:
        x = low.view(node.args[0])
        t = low.node_type()
        whole = node.target.endswith(".default")
        dims = dims_of(None if whole else _arg(node, 1, "dim"), len(x.shape))
        keepdim = False if whole else bool(_arg(node, 2, "keepdim", False))
        folded = low.reduce(op, x, dims, "bool", lambda v: lp.cast(v, "bool"), keepdim=keepdim)
        return finish(low, folded, lambda value: lp.cast(value, t.dtype), t)

    return rule


def count(x: View, dims: tuple[int, ...]) -> Expr:
    return ex.product(x.shape[d] for d in dims)


def number(e: Expr, dtype: str) -> Scalar:
    value = ex.as_int(e)
    return lp.cast(lp.index(e), dtype) if value is None else lp.const(value, dtype)


def _mean(low: Lowering, node: Node) -> Value:
    x = low.view(node.args[0])
    t = low.node_type()
    dims = dims_of(None if node.target.endswith(".default") else node.args[1], len(x.shape))
    keepdim = bool(_arg(node, 2, "keepdim", False)) if node.target.endswith(".dim") else False
    work = compute_type(t.dtype)
    folded = low.reduce("sum", x, dims, work, lambda v: lp.cast(v, work), keepdim=keepdim)
    size = number(count(x, dims), work)
    return finish(low, folded, lambda value: lp.op("div", work, value, size), t)


def moments(low: Lowering, x: View, dims: tuple[int, ...], correction: float) -> tuple[View, View]:
    """Mean and variance over ``dims`` (kept as size 1), in the compute type of ``x``.

    Two passes, the second over deviations from the first one's mean: no cancellation for large
    means. What the deviations add up to is that mean's rounding error, which corrects both.
    """
    work = compute_type(x.dtype)
    folded = low.reduce("sum", x, dims, work, lambda v: v, keepdim=True)
    size = number(count(x, dims), work)
    rough = low.pointwise(
        work, folded.shape, lambda at: lp.op("div", work, low.load(folded, at), size)
    )

    def deviation(at: tuple[Expr, ...]) -> Scalar:
        return lp.op("sub", work, low.load(x, at), low.broadcast(rough, at))

    centred = low.pointwise(work, x.shape, deviation)
    sums = low.reduce("sum", centred, dims, work, lambda v: v, keepdim=True)
    squares = low.reduce(
        "sum", centred, dims, work, lambda v: lp.op("mul", work, v, v), keepdim=True
    )
    free = lp.op(
        "max", work, lp.op("sub", work, size, lp.const(correction, work)), lp.const(0, work)
    )
    mean = low.pointwise(
        work,
        folded.shape,
        lambda at: lp.op(
            "add", work, low.load(rough, at), lp.op("div", work, low.load(sums, at), size)
        ),
    )

    def spread(at: tuple[Expr, ...]) -> Scalar:
        left = low.load(sums, at)
        excess = lp.op("mul", work, left, lp.op("div", work, left, size))
        rest = lp.op("sub", work, low.load(squares, at), excess)
        # Rounding must not make it negative: of equal values there is a root, too.
        return lp.op("div", work, lp.op("max", work, rest, lp.const(0, work)), free)

    return mean, low.pointwise(work, squares.shape, spread)


def _correction(node: Node) -> float:
    given = kwarg(node, "correction")
    return 1.0 if given is None else float(given)  # type: ignore[arg-type]


def _var_mean(low: Lowering, node: Node) -> Value:
    x = low.view(node.args[0])
    dims = dims_of(_arg(node, 1, "dim"), len(x.shape))
    mean, variance = moments(low, x, dims, _correction(node))
    assert isinstance(node.type, tuple)
    results = []
    for source, t in ((variance, node.type[0]), (mean, node.type[1])):
        assert isinstance(t, TensorType)
        results.append(finish(low, source, lambda v: v, t))
    return tuple(results)


def _var(root: bool) -> Rule:
    def rule(low: Lowering, node: Node) -> Value:
        x = low.view(node.args[0])
        dims = dims_of(_arg(node, 1, "dim"), len(x.shape))
        _, variance = moments(low, x, dims, _correction(node))
        work = compute_type(x.dtype)
        return finish(
            low, variance, lambda v: lp.op("sqrt", work, v) if root else v, low.node_type()
        )

    return rule


def _extreme_index(op: str) -> Rule:
    """argmax/argmin: the first index of the extreme; NaN counts as the extreme."""

    def rule(low: Lowering, node: Node) -> Value:
        x = low.view(node.args[0])
        dim = _arg(node, 1, "dim")
        keepdim = bool(_arg(node, 2, "keepdim", False))
        if dim is None:
            flat = reshape(x, (count(x, tuple(range(len(x.shape)))),))
            return _index_fold(low, flat, op, (0,), False)
        return _index_fold(low, x, op, dims_of(dim, len(x.shape)), keepdim)

    return rule


def _index_fold(low: Lowering, x: View, op: str, dims: tuple[int, ...], keepdim: bool) -> View:
    t = low.node_type()
    if not x.shape:
        return low.node_pointwise(lambda at: lp.const(0, "i64"))
    folded = low.reduce(op, x, dims, "i64", lambda v: v, keepdim=keepdim)
    return reshape(folded, t.shape)


def _extreme_pair(op: str) -> Rule:
    """max.dim/min.dim: values and indices."""

    def rule(low: Lowering, node: Node) -> Value:
        x = low.view(node.args[0])
        dims = dims_of(node.args[1], len(x.shape))
        keepdim = bool(_arg(node, 2, "keepdim", False))
        assert isinstance(node.type, tuple)
        value_type, index_type = node.type
        assert isinstance(value_type, TensorType)
        assert isinstance(index_type, TensorType)
        if not x.shape:
            return low.external(node, "fallback")
        if x.dtype == "u64":
            return low.external(node, "fallback")
        # Of masks as of the numbers 0 and 1.
        work = "i32" if x.dtype == "bool" else accumulator_of(x.dtype)
        values = low.reduce(op, x, dims, work, lambda v: lp.cast(v, work), keepdim=keepdim)
        searched = work if x.dtype == "bool" else x.dtype
        indices = low.reduce(
            f"arg{op}", x, dims, "i64", lambda v: lp.cast(v, searched), keepdim=keepdim
        )
        return (
            finish(low, values, lambda v: lp.cast(v, value_type.dtype), value_type),
            finish(low, indices, lambda v: v, index_type),
        )

    return rule


def _extreme(op: str) -> Rule:
    """amax/amin and max/min over everything."""

    def rule(low: Lowering, node: Node) -> Value:
        x = low.view(node.args[0])
        if x.dtype == "u64":
            return low.external(node, "fallback")
        if DTYPES[x.dtype].kind == "bool":
            return _fold("or" if op == "max" else "and", lambda d: d)(low, node)
        return _fold(op, accumulator_of)(low, node)

    return rule


def _vector_norm(low: Lowering, node: Node) -> Value:
    """The p-norm over dimensions, in the compute type of the result."""
    x = low.view(node.args[0])
    order = low.value(_arg(node, 1, "ord", 2))
    dims = dims_of(_arg(node, 2, "dim"), len(x.shape))
    keepdim = bool(_arg(node, 3, "keepdim", False))
    t = low.node_type()
    if len(t.shape) != len(x.shape) - (0 if keepdim else len(set(dims))):
        raise LoweringError(
            f"{low.where()}: this torch gives its result a wrong rank", hint="it runs in eager"
        )
    work = compute_type(t.dtype)
    if not isinstance(order, (int, float)) or compute_type(x.dtype) not in ("f32", "f64"):
        return low.external(node, "fallback")
    p = float(order)
    if math.isinf(p) and any(ex.as_int(x.shape[d]) in (0, None) for d in dims):
        return low.external(node, "fallback")  # eager raises for nothing to compare

    def term(v: Scalar) -> Scalar:
        v = lp.cast(v, work)
        if p == 0:
            return lp.cast(lp.op("ne", "bool", v, lp.const(0, work)), work)
        if p == 2:
            return lp.op("mul", work, v, v)
        size = lp.op("abs", work, v)
        return size if p == 1 or math.isinf(p) else lp.op("pow", work, size, lp.const(p, work))

    def root(v: Scalar) -> Scalar:
        if p == 2:
            return lp.op("sqrt", work, v)
        return v if p in (0, 1) or math.isinf(p) else lp.op("pow", work, v, lp.const(1 / p, work))

    op = "max" if p == math.inf else "min" if p == -math.inf else "sum"
    return finish(low, low.reduce(op, x, dims, work, term, keepdim=keepdim), root, t)


REDUCTIONS: Final[dict[str, Rule]] = {
    "aten.sum.default": _sum_all,
    "aten.sum.dim_IntList": _fold("sum", accumulator_of),
    "aten.prod.default": _prod,
    "aten.prod.dim_int": _prod,
    "aten.amax": _extreme("max"),
    "aten.amin": _extreme("min"),
    "aten.max.default": _extreme("max"),
    "aten.min.default": _extreme("min"),
    "aten.max.dim": _extreme_pair("max"),
    "aten.min.dim": _extreme_pair("min"),
    "aten.argmax": _extreme_index("argmax"),
    "aten.argmin": _extreme_index("argmin"),
    "aten.any": _predicate("or"),
    "aten.all": _predicate("and"),
    "aten.linalg_vector_norm": _vector_norm,
    "aten.mean": _mean,
    "aten.var_mean.correction": _var_mean,
    "aten.var.correction": _var(root=False),
    "aten.std.correction": _var(root=True),
}
