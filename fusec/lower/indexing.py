"""Rules that place or pick by index: concatenation, padding, slice scatters, mutation of inputs."""

from __future__ import annotations

from typing import Final

from fusec.errors import LoweringError
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr
from fusec.ir.graph import Node
from fusec.ir.loop import Buffer, Compute, Scalar
from fusec.lower.context import Lowering, Value, compute_type, normalise_dim
from fusec.lower.rules import Rule, convert, kwarg, operand, to_type
from fusec.lower.view import View, loop_axes, overlaps, whole
from fusec.lower.views import diagonal_place, slice_start


def both(a: Expr, b: Expr) -> Expr:
    """Conjunction of two conditions given as 0/1 expressions."""
    return a * b


def _cat(low: Lowering, node: Node) -> Value:
    """Element by element: which piece, and where in it."""
    parts = node.args[0]
    assert isinstance(parts, tuple)
    t = low.node_type()
    views = [v for v in (low.view(p) for p in parts) if len(v.shape) == len(t.shape)]
    dim_arg = node.args[1] if len(node.args) > 1 else kwarg(node, "dim", 0)
    assert isinstance(dim_arg, int)
    dim = normalise_dim(dim_arg, len(t.shape))
    work = compute_type(t.dtype)

    def body(at: tuple[Expr, ...]) -> Scalar:
        start: Expr = ex.ZERO
        pieces: list[tuple[Expr, Scalar]] = []  # (end, value), value guarded to its own range
        for v in views:
            end = start + v.shape[dim]
            inside = both(ex.compare(">=", at[dim], start), ex.compare("<", at[dim], end))
            place = list(at)
            place[dim] = at[dim] - start
            pieces.append((end, lp.cast(low.load(v, place, inside), t.dtype)))
            start = end
        result = pieces[-1][1]
        for end, value in reversed(pieces[:-1]):
            result = lp.op(
                "where", work, lp.condition(ex.compare("<", at[dim], end)), value, result
            )
        return result

    if len(views) > 16:
        return low.external(node, "fallback")  # a chain that long is cheaper as copies
    return low.node_pointwise(body)


def _constant_pad(low: Lowering, node: Node) -> Value:
    x = low.view(node.args[0])
    pads = low.sizes(node.args[1])
    fill = low.value(node.args[2]) if len(node.args) > 2 else 0
    t = low.node_type()
    work = compute_type(t.dtype)

    def body(at: tuple[Expr, ...]) -> Scalar:
        inside: Expr = ex.ONE
        place = list(at)
        for k in range(len(pads) // 2):
            dim = len(at) - 1 - k
            place[dim] = at[dim] - pads[2 * k]
            inside = both(inside, ex.compare(">=", place[dim], 0))
            inside = both(inside, ex.compare("<", place[dim], x.shape[dim]))
        value = lp.cast(low.load(x, place, inside), t.dtype)
        return lp.op(
            "where", work, lp.condition(inside), value, to_type(operand(low, fill, at), t.dtype)
        )

    return low.node_pointwise(body)


def _onto_itself(low: Lowering) -> bool:
    """Whether the result keeps strides by which its places lie on one another: what is put at one
    of them then shows at others too, as the library does it."""
    t = low.node_type()
    return overlaps(t.shape, t.stride)


def _slice_scatter(low: Lowering, node: Node) -> Value:
    if _onto_itself(low):
        return low.external(node, "fallback")
    base, source = low.view(node.args[0]), low.view(node.args[1])
    args = list(node.args) + [None] * (6 - len(node.args))
    dim_arg = args[2] if args[2] is not None else kwarg(node, "dim", 0)
    start_arg = args[3] if args[3] is not None else kwarg(node, "start")
    step_arg = args[5] if args[5] is not None else kwarg(node, "step", 1)
    assert isinstance(dim_arg, int)
    dim = normalise_dim(dim_arg, len(base.shape))
    start = slice_start(low, start_arg, base.shape[dim])
    step = low.size(step_arg)
    return _place(low, base, source, dim, start, step)


def _place(low: Lowering, base: View, source: View, dim: int, start: Expr, step: Expr) -> View:
    """``base`` with ``source`` at ``start``, ``start + step``, … of dimension ``dim``."""
    t = low.node_type()
    work = compute_type(t.dtype)

    def body(at: tuple[Expr, ...]) -> Scalar:
        offset = at[dim] - start
        place = list(at)
        place[dim] = ex.floordiv(offset, step)
        inside = both(ex.compare(">=", offset, 0), ex.compare("<", place[dim], source.shape[dim]))
        if step is not ex.ONE:
            inside = both(inside, ex.compare("==", ex.mod(offset, step), 0))
        value = lp.cast(low.load(source, place, inside), t.dtype)
        return lp.op("where", work, lp.condition(inside), value, low.load(base, at))

    return low.node_pointwise(body)


def _select_scatter(low: Lowering, node: Node) -> Value:
    if _onto_itself(low):
        return low.external(node, "fallback")
    base, source = low.view(node.args[0]), low.view(node.args[1])
    assert isinstance(node.args[2], int)
    dim = normalise_dim(node.args[2], len(base.shape))
    position = low.size(node.args[3])
    number = ex.as_int(position)
    if number is not None and number < 0:
        position = base.shape[dim] + number
    t = low.node_type()
    work = compute_type(t.dtype)

    def body(at: tuple[Expr, ...]) -> Scalar:
        here = ex.compare("==", at[dim], position)
        value = lp.cast(low.load(source, (*at[:dim], *at[dim + 1 :]), here), t.dtype)
        return lp.op("where", work, lp.condition(here), value, low.load(base, at))

    return low.node_pointwise(body)


def _diagonal_scatter(low: Lowering, node: Node) -> Value:
    if _onto_itself(low):
        return low.external(node, "fallback")
    base, source = low.view(node.args[0]), low.view(node.args[1])
    offset, dim1, dim2 = diagonal_place(low, node, 2, len(base.shape))
    t = low.node_type()

    def body(at: tuple[Expr, ...]) -> Scalar:
        here = ex.compare("==", at[dim2] - at[dim1], offset)
        rest = [a for d, a in enumerate(at) if d not in (dim1, dim2)]
        place = (*rest, at[dim1] - max(-offset, 0))
        value = lp.cast(low.load(source, place, here), t.dtype)
        return lp.op("where", compute_type(t.dtype), lp.condition(here), value, low.load(base, at))

    return low.node_pointwise(body)


def _copy_into_input(low: Lowering, node: Node) -> Value:
    """``copy_(input, source)``: overwrite the memory of an input."""
    target = low.view(node.args[0])
    source = low.view(node.args[1])
    buffer = low.buffers[target.buffer]
    if (
        buffer.kind not in ("input", "alias")
        or target.index != target.axes
        or target.shape != buffer.shape
    ):
        raise LoweringError(
            f"{low.where()}: overwrites something that is not a whole input",
            hint="this graph runs in eager",
        )
    base = target.buffer if buffer.kind == "input" else buffer.base
    made = low.buffers[source.buffer]
    if made.kind == "alias" and made.base == base and source.index == source.axes:
        return source  # a scatter has changed it in place
    if source.buffer == base and source.index != source.axes:
        # Reads and writes of one memory in different orders: through a copy.
        moved = source
        source = low.pointwise(source.dtype, source.shape, lambda at: low.load(moved, at))
    alias = low.new_buffer(Buffer(buffer.dtype, buffer.shape, buffer.stride, "alias", base))
    axes = loop_axes(buffer.shape)
    value = convert(low, source, buffer.dtype, axes)
    low.steps.append(Compute(alias, axes, value, None, (low.position,)))
    return whole(alias, buffer.dtype, buffer.shape)


INDEXING: Final[dict[str, Rule]] = {
    "aten.cat": _cat,
    "aten.constant_pad_nd": _constant_pad,
    "aten.slice_scatter": _slice_scatter,
    "aten.select_scatter": _select_scatter,
    "aten.diagonal_scatter": _diagonal_scatter,
    "aten.copy_": _copy_into_input,
}
