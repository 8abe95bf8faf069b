"""Half-precision products on a GPU, of sizes that the library is slow for, padded with zeros.

Its fast kernels load and store 16 bytes at once: where a matrix has a length, or a distance
between rows, that is no multiple of 8 elements, as a vocabulary of 30522 has, far slower ones run.
Before: a product of such matrices. After: the product of matrices with zeros up to the next
multiple; its value is a view of a wider result, whose rest nobody reads.

What a loop of the graph computes is computed into a padded buffer at once. Inputs and what the
library makes are copied, once for all products, where that costs little beside the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr
from fusec.ir.graph import Node, Ref
from fusec.ir.loop import Compute, External, ExternArg, Index, Load, Scalar, external_reads
from fusec.lower.context import Lowering, Value, dense_stride
from fusec.lower.rules import Rule
from fusec.lower.view import View, as_buffer_view, contiguous_stride, loop_axes, view_axes, whole

ALIGNED: Final = 8  # elements of 2 bytes
_LARGE: Final = 1e9  # operations; a smaller product takes a few microseconds
_OPERATIONS: Final = 600e3  # a nanosecond, of aligned matrices
_COPIED: Final = 1500.0  # bytes a nanosecond that a copy reads, and writes
_SHARE: Final = 0.1  # of a product's time that the copies for it may take


@dataclass(frozen=True, slots=True)
class _Matrix:
    """An operand. ``rows``: its view, transposed where its columns are contiguous (``across``), so
    that the last dimension is; ``ready``: whether every row of it starts on 16 bytes."""

    rows: View
    across: bool
    ready: bool

    def padded(self, low: Lowering, shape: tuple[int, ...]) -> View:
        """The operand with zeros up to ``shape``."""
        full = tuple(ex.integer(n) for n in self._turned(shape))
        if self.ready and full == self.rows.shape:
            found = self.rows
        elif (maker := _maker(low, self.rows, full)) is not None:
            low.once(("padded", self.rows.buffer), lambda: _widen(low, maker, full[-1]))
            found = self.rows.remap(full, view_axes(full))
        else:
            key = ("padded", self.rows, full)
            found = whole(low.once(key, lambda: _copy(low, self.rows, full)), self.rows.dtype, full)
        return _transposed(found) if self.across else found

    def copied(self, low: Lowering, shape: tuple[int, ...]) -> float:
        """Bytes that have to be copied for `padded`."""
        full = tuple(ex.integer(n) for n in self._turned(shape))
        free = (self.ready and full == self.rows.shape) or _maker(low, self.rows, full) is not None
        return 0.0 if free else 2.0 * prod(shape)

    def _turned(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:-2], shape[-1], shape[-2]) if self.across else shape


def padding_pays(sizes: Sequence[int], bytes_copied: float) -> bool:
    """Whether a product of such sizes (rows, columns, and what is summed over) is worth copies of
    its operands."""
    operations = 2.0 * prod(sizes)
    return operations >= _LARGE and bytes_copied / _COPIED <= _SHARE * operations / _OPERATIONS


def _product(first: int) -> Rule:
    """A product of argument ``first`` and the one after it; before them is what is added."""

    def rule(low: Lowering, node: Node) -> Value:
        found = _padded(low, node, first)
        return low.external(node, "library") if found is None else found

    return rule


def _padded(low: Lowering, node: Node, first: int) -> View | None:
    """The product of padded matrices; None where nothing is to be padded or it does not pay."""
    t = low.node_type()
    if t.device != "cuda" or t.dtype not in ("bf16", "f16"):
        return None
    left, right = low.view(node.args[first]), low.view(node.args[first + 1])
    sizes = [ex.as_int(n) for n in (*t.shape, left.shape[-1])]
    known = [n for n in sizes if n is not None]
    if len(known) != len(sizes):
        return None
    if not _plain(low, node):
        return None
    *batch, m, n, k = known
    a, b = _matrix(low, left), _matrix(low, right)
    # Along the contiguous dimension of each of the three matrices.
    m_up = _up(m) if a.across else m
    k_up = k if a.across and not b.across else _up(k)
    n_up = _up(n)
    shapes = (*batch, m_up, k_up), (*batch, k_up, n_up)
    if (m_up, k_up, n_up) == (m, k, n) and a.ready and b.ready:
        return None
    bytes_copied = sum(x.copied(low, shape) for x, shape in zip((a, b), shapes, strict=True))
    if not padding_pays(known, bytes_copied):
        return None
    added: tuple[ExternArg, ...] = ()
    if first:
        bias = low.view(node.args[0])
        if _more_than_a_row(bias):
            return None
        added = (low.strided(_padded_row(low, bias, n_up)),)
    pair = [low.strided(x.padded(low, shape)) for x, shape in zip((a, b), shapes, strict=True)]
    full = tuple(ex.integer(size) for size in (*batch, m_up, n_up))
    out = low.temp(t.dtype, full)
    kwargs = tuple((key, low.extern_arg(value)) for key, value in node.kwargs)
    origin = (low.position,)
    low.steps.append(
        External((out,), node.target, (*added, *pair), kwargs, "library", origin=origin)
    )
    return whole(out, t.dtype, full).remap(t.shape, view_axes(t.shape))


def _plain(low: Lowering, node: Node) -> bool:
    """Whether the operands and the result are of one type, the result in rows, and nothing in the
    graph asks for places in the memory of tensors, which padding changes."""
    t = low.node_type()
    if dense_stride(t) != contiguous_stride(t.shape):
        return False
    if any(low.view(arg).dtype != t.dtype for arg in node.args):
        return False
    return not any(other.target.startswith("aten.as_strided") for other in low.graph.nodes)


def _up(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _matrix(low: Lowering, view: View) -> _Matrix:
    found = as_buffer_view(view, low.buffers[view.buffer].stride)
    if found is None:  # a library call gets a copy anyway
        return _Matrix(view, False, True)
    across = found.stride[-1] is not ex.ONE and found.stride[-2] is ex.ONE
    *apart, last = found.stride
    if across:
        *apart, last = *found.stride[:-2], found.stride[-1], found.stride[-2]
    steps = [ex.as_int(step) for step in (*apart, found.offset)]
    ready = last is ex.ONE and all(step is not None and step % ALIGNED == 0 for step in steps)
    return _Matrix(_transposed(view) if across else view, across, ready)


def _transposed(view: View) -> View:
    shape = (*view.shape[:-2], view.shape[-1], view.shape[-2])
    *batch, column, row = view_axes(shape)
    return view.remap(shape, (*batch, row, column))


def _more_than_a_row(bias: View) -> bool:
    return any(size is not ex.ONE for size in bias.shape[:-1])


def _padded_row(low: Lowering, bias: View, width: int) -> View:
    """What is added to each row of a product, for rows of that width."""
    if not bias.shape or bias.shape[-1] is ex.ONE:
        return bias
    full = (*bias.shape[:-1], ex.integer(width))
    if full == bias.shape:
        return bias
    return whole(low.once(("padded", bias, full), lambda: _copy(low, bias, full)), bias.dtype, full)


def _copy(low: Lowering, view: View, full: tuple[Expr, ...]) -> int:
    """A buffer with the elements of a view and zeros up to the shape ``full``."""

    def body(at: tuple[Expr, ...]) -> Scalar:
        inside: Expr = ex.ONE
        for coordinate, size, new in zip(at, view.shape, full, strict=True):
            if size is not new:
                inside = inside * ex.compare("<", coordinate, size)
        return _or_zero(inside, low.load(view, at, inside))

    return low.pointwise(view.dtype, full, body).buffer


def _or_zero(inside: Expr, value: Scalar) -> Scalar:
    return lp.op("where", value.dtype, lp.condition(inside), value, lp.const(0, value.dtype))


def _maker(low: Lowering, rows: View, full: tuple[Expr, ...]) -> int | None:
    """The step that computes what ``rows`` sees and can as well put zeros beyond its last column,
    or has been made to; None where there is none."""
    column = rows.axes[-1]
    if rows.shape[:-1] != full[:-1] or not rows.index or rows.index[-1] is not column:
        return None
    if any(column in ex.symbols(e) for e in rows.index[:-1]):
        return None
    if low.made(("padded", rows.buffer)):
        return -1 if low.buffers[rows.buffer].shape[-1] is full[-1] else None
    return _wideable(low, rows.buffer, rows.shape[-1])


def _wideable(low: Lowering, number: int, width: Expr) -> int | None:
    """The step that fills a buffer in rows of that width and may as well fill longer ones."""
    buffer = low.buffers[number]
    if buffer.kind != "temp" or not buffer.shape or buffer.shape[-1] is not width:
        return None
    if buffer.stride != contiguous_stride(buffer.shape):
        return None
    for position in reversed(range(len(low.steps))):
        step = low.steps[position]
        if isinstance(step, External):
            if any(view.buffer == number for view in external_reads(step)):
                return None  # by its strides as they are
        elif step.output == number:
            changed = any(other.base == number for other in low.buffers)
            return None if step.reduction is not None or step.scatters or changed else position
    return None


def _widen(low: Lowering, position: int, width: Expr) -> int:
    """Let a step fill rows of that width, with zeros beyond what it computes; its buffer.

    So do the steps that it reads at the same places, with whatever values, that they still fit
    into one loop with it.
    """
    step = low.steps[position]
    assert isinstance(step, Compute)
    old = step.axes[-1]
    assert old.upper is not None
    value = _lengthen(low, position, width)
    inside = ex.compare("<", loop_axes(low.buffers[step.output].shape)[-1], old.upper)
    low.steps[position] = replace(value, value=_or_zero(inside, value.value))
    return step.output


def _lengthen(low: Lowering, position: int, width: Expr) -> Compute:
    """The step with rows of that width in the place of the one that was there."""
    step = low.steps[position]
    assert isinstance(step, Compute)
    buffer = low.buffers[step.output]
    shape = (*buffer.shape[:-1], width)
    old, new = step.axes[-1], loop_axes(shape)[-1]
    inside = ex.compare("<", new, buffer.shape[-1])
    memo: dict[Scalar, Scalar] = {}

    def leaf(node: Scalar) -> Scalar | None:
        if isinstance(node, Index):
            e = ex.substitute(node.expr, {old: new})
            return lp.condition(e) if node.dtype == "bool" else lp.index(e)
        if not isinstance(node, Load):
            return None
        at = tuple(ex.substitute(e, {old: new}) for e in node.index)
        indirect = tuple((s, memo[v]) for s, v in node.indirect)
        guard = None if node.guard is None else ex.substitute(node.guard, {old: new})
        if (at, indirect, guard) == (node.index, node.indirect, node.guard):
            return node
        if guard is None and not indirect and at[-1] is new and at[:-1] == node.index[:-1]:
            maker = _beside(low, node.buffer, old.upper)
            if maker is not None:
                _lengthen(low, maker, width)
            if low.buffers[node.buffer].shape[-1] is width:
                return lp.load(node.buffer, node.dtype, at)
        return lp.load(
            node.buffer, node.dtype, at, indirect, inside if guard is None else guard * inside
        )

    value = lp.rewrite(step.value, leaf, memo)
    low.buffers[step.output] = replace(buffer, shape=shape, stride=contiguous_stride(shape))
    found = replace(step, axes=(*step.axes[:-1], new), value=value)
    low.steps[position] = found
    return found


def _beside(low: Lowering, number: int, width: Expr | None) -> int | None:
    """The step that fills a buffer which is not returned, as `_wideable`."""
    returned = [o.index for o in low.graph.outputs if isinstance(o, Ref)]
    values = [low.values[index] for index in returned if index < len(low.values)]
    if width is None or any(isinstance(v, View) and v.buffer == number for v in values):
        return None
    return _wideable(low, number, width)


GEMM: Final[dict[str, Rule]] = {
    "aten.mm.default": _product(0),
    "aten.addmm.default": _product(1),
    "aten.bmm.default": _product(0),
}
