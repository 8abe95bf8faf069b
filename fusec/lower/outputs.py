"""What a graph returns: tensors with exactly the strides that capture promised, and numbers."""

from __future__ import annotations

from fusec.errors import LoweringError
from fusec.ir import expr as ex
from fusec.ir.expr import Expr
from fusec.ir.graph import Node, Ref, TensorType
from fusec.ir.loop import BufferView, Output
from fusec.lower.context import Lowering, dense_stride
from fusec.lower.view import View, as_buffer_view, view_axes, whole
from fusec.lower.views import LOOKING


def output(low: Lowering, arg: object) -> Output:
    """An output of the graph, whose nodes have their values. Raises LoweringError."""
    if not isinstance(arg, Ref):
        if arg is None or isinstance(arg, (bool, int, float)):
            return arg
        value = getattr(arg, "value", None)
        if isinstance(value, Expr):
            return value
        raise LoweringError(f"output {arg!r:.60} is neither a tensor nor a number")
    low.position = arg.index
    found = low.values[arg.index]
    if isinstance(found, View):
        t = low.graph.nodes[arg.index].type
        assert isinstance(t, TensorType)
        return _output_view(low, found, t)
    if found is None or isinstance(found, (Expr, bool, int, float)):
        return found
    raise LoweringError(f"{low.where()}: output {found!r:.60} is neither a tensor nor a number")


def _output_view(low: Lowering, view: View, t: TensorType) -> BufferView:
    """The output with exactly the strides that capture promised its readers."""
    found = as_buffer_view(view, low.buffers[view.buffer].stride)
    if found is not None and all(
        size is ex.ONE or have is want
        for size, have, want in zip(t.shape, found.stride, t.stride, strict=True)
    ):
        return BufferView(found.buffer, found.shape, t.stride, found.offset)
    shared = _shared(low, view, t)
    if shared is not None:
        return shared
    if _repeats(view, t):
        return _expanded_output(low, view, t)
    stride = t.stride if _apart(t) else dense_stride(t)
    copy = low.copy(view, stride)
    again = as_buffer_view(copy, low.buffers[copy.buffer].stride)
    assert again is not None
    return again


def _shared(low: Lowering, view: View, t: TensorType) -> BufferView | None:
    """The output of a node that only looks at the memory of another one, by what capture says of
    it; None where it computes something, or that memory is not as capture says.

    With sizes as symbols that may be all there is: every second column, reshaped to a row, is a
    view where the number of columns is even, which capture has asked for and no expression tells. A
    copy would not do: who takes an output for a view of an input asks for its strides and offset.
    """
    base = low.position
    while (source := _looked_at(low.graph.nodes[base])) is not None:
        base = source
    memory, value, buffer = low.graph.nodes[base].type, low.values[base], low.buffers[view.buffer]
    if (
        base == low.position
        or not isinstance(memory, TensorType)
        or not isinstance(value, View)
        or value != whole(view.buffer, view.dtype, buffer.shape)
        or (memory.shape, memory.stride) != (buffer.shape, buffer.stride)
    ):
        return None
    place = ex.total(e * step for e, step in zip(view.index, buffer.stride, strict=True))
    first = ex.substitute(place, dict.fromkeys(view.axes, ex.ZERO))
    return BufferView(view.buffer, t.shape, t.stride, first)


def _looked_at(node: Node) -> int | None:
    """The node whose memory a node's result always is a part of."""
    packet = ".".join(node.target.split(".")[:2])
    if node.target not in LOOKING and packet not in LOOKING:
        return None
    return node.args[0].index if isinstance(node.args[0], Ref) else None


def _repeats(view: View, t: TensorType) -> bool:
    """Whether the type has dimensions of stride 0 along which the value really is the same.

    (Some operators' types have such strides for values that differ along them.)
    """
    dims = [
        axis
        for axis, step, n in zip(view.axes, t.stride, t.shape, strict=True)
        if step is ex.ZERO and n is not ex.ONE
    ]
    used = {s for e in view.index for s in ex.symbols(e)}
    return bool(dims) and not used.intersection(dims)


def _expanded_output(low: Lowering, view: View, t: TensorType) -> BufferView:
    """An output that repeats along some dimensions: one copy of what is repeated, expanded."""
    repeats = [step is ex.ZERO for step in t.stride]
    shape = tuple(ex.ONE if r else n for n, r in zip(t.shape, repeats, strict=True))
    at = [ex.ZERO if r else axis for axis, r in zip(view_axes(shape), repeats, strict=True)]
    once = TensorType(t.dtype, shape, t.stride, t.device)
    found = _output_view(low, view.remap(shape, at), once)
    return BufferView(found.buffer, t.shape, t.stride, found.offset)


def _apart(t: TensorType) -> bool:
    """Whether no two elements of a tensor of known strides share memory, gaps allowed."""
    numbers = [(ex.as_int(s), ex.as_int(n)) for s, n in zip(t.stride, t.shape, strict=True)]
    if any(s is None or n is None for s, n in numbers):
        return False
    reach = 0
    for step, size in sorted((s, n) for s, n in numbers if s is not None and n is not None):
        if size > 1:
            if step <= reach:
                return False
            reach += step * (size - 1)
    return True
