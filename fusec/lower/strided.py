"""Rules for as_strided and its kin: places given by strides over the memory under a tensor.

Their offset counts from the start of the storage. A temporary has a storage of its own, which our
buffers are, so the places are worked out here; a tensor that the caller owns is left to ATen.
"""

from __future__ import annotations

from typing import Final

from fusec.errors import LoweringError
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr
from fusec.ir.graph import Node
from fusec.ir.loop import Scalar
from fusec.lower.context import Lowering, Value, compute_type
from fusec.lower.rules import Rule, kwarg
from fusec.lower.view import View, contiguous_stride, delinearise, linearise, view_axes


def _layout(low: Lowering, node: Node, first: int) -> tuple[tuple[Expr, ...], Expr]:
    """The strides and the offset, in elements; size is argument ``first`` of the node."""
    given = node.args[first + 2] if len(node.args) > first + 2 else kwarg(node, "storage_offset")
    return low.sizes(node.args[first + 1]), ex.ZERO if given is None else low.size(given)


def _owned(low: Lowering, x: View) -> bool:
    """Whether the memory is the caller's."""
    return low.buffers[x.buffer].kind != "temp"


def _as_strided(low: Lowering, node: Node) -> Value:
    x = low.view(node.args[0])
    if _owned(low, x):
        return low.external(node, "fallback")
    stride, offset = _layout(low, node, 1)
    buffer = low.buffers[x.buffer]
    shape = low.node_type().shape
    axes = view_axes(shape)
    place = ex.total([offset, *(a * s for a, s in zip(axes, stride, strict=True))])
    order = _by_stride(low, buffer.shape, buffer.stride)
    found = delinearise(place, [buffer.shape[d] for d in order])
    index: list[Expr] = [ex.ZERO] * len(order)
    for d, e in zip(order, found, strict=True):
        index[d] = e
    return View(x.buffer, x.dtype, shape, axes, tuple(index))


def _by_stride(low: Lowering, shape: tuple[Expr, ...], stride: tuple[Expr, ...]) -> list[int]:
    """The dimensions of a dense buffer from the slowest to the fastest."""
    left = [d for d, n in enumerate(shape) if n is not ex.ONE]
    order: list[int] = []
    step: Expr = ex.ONE
    while left:
        found = next((d for d in left if stride[d] is step), None)
        if found is None:
            raise LoweringError(f"{low.where()}: strides over memory with gaps")
        order.append(found)
        left.remove(found)
        step = step * ex.maximum(shape[found], 1)
    order += [d for d, n in enumerate(shape) if n is ex.ONE]
    return order[::-1]


def _as_strided_copy(low: Lowering, node: Node) -> Value:
    source = _as_strided(low, node)
    if not isinstance(source, View):
        return source
    return low.node_pointwise(lambda at: low.load(source, at))


def _as_strided_scatter(low: Lowering, node: Node) -> Value:
    """``self`` with ``src`` at the places that the strides name; they must not overlap."""
    base, source = low.view(node.args[0]), low.view(node.args[1])
    if _owned(low, base):
        return low.external(node, "fallback")
    stride, offset = _layout(low, node, 2)
    t = low.node_type()
    if t.stride != contiguous_stride(t.shape):
        raise LoweringError(f"{low.where()}: scatters by strides into a tensor of another order")
    dims = _nested(low, stride, source.shape)
    work = compute_type(t.dtype)

    def body(at: tuple[Expr, ...]) -> Scalar:
        rest = linearise(t.shape, at) - offset
        inside = ex.compare(">=", rest, 0)
        place: list[Expr] = [ex.ZERO] * len(source.shape)
        for d in dims:
            place[d] = ex.floordiv(rest, stride[d])
            inside = inside * ex.compare("<", place[d], source.shape[d])
            rest = ex.mod(rest, stride[d])
        inside = inside * ex.compare("==", rest, 0)
        value = lp.cast(low.load(source, place, inside), t.dtype)
        return lp.op("where", work, lp.condition(inside), value, low.load(base, at))

    return low.node_pointwise(body)


def _nested(low: Lowering, stride: tuple[Expr, ...], shape: tuple[Expr, ...]) -> list[int]:
    """The dimensions of two elements and more by falling stride, each beyond the next's reach."""
    numbers = [(ex.as_int(s), ex.as_int(n)) for s, n in zip(stride, shape, strict=True)]
    dims = [d for d, n in enumerate(shape) if n is not ex.ONE]
    reach = 0
    for d in sorted(dims, key=lambda d: numbers[d][0] or 0):
        step, size = numbers[d]
        if step is None or size is None or step <= reach:
            raise LoweringError(f"{low.where()}: scatters to places that overlap or are not known")
        reach += step * (size - 1)
    return sorted(dims, key=lambda d: -(numbers[d][0] or 0))


STRIDED: Final[dict[str, Rule]] = {
    "aten.as_strided": _as_strided,
    "aten.as_strided_copy": _as_strided_copy,
    "aten.as_strided_scatter": _as_strided_scatter,
}
