"""Rules for views and shape operations: index maps, never loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fusec.errors import LoweringError
from fusec.ir import expr as ex
from fusec.ir.expr import Expr
from fusec.ir.graph import Arg, Node, TensorType
from fusec.lower.context import Lowering, Value, normalise_dim
from fusec.lower.rules import Rule, kwarg
from fusec.lower.view import View, coordinates_for_reshape, view_axes


def _identity(low: Lowering, node: Node) -> Value:
    return low.view(node.args[0])


def _reshape(low: Lowering, node: Node) -> Value:
    """The sizes come from the node's type, where -1 is already resolved."""
    return reshape(low.view(node.args[0]), low.node_type().shape)


def reshape(x: View, shape: tuple[Expr, ...]) -> View:
    axes = view_axes(shape)
    return x.remap(shape, coordinates_for_reshape(x.shape, shape, axes))


def _permute(low: Lowering, node: Node) -> Value:
    x = low.view(node.args[0])
    dims = node.args[1]
    assert isinstance(dims, tuple)
    return permute(x, [normalise_dim(int(d), len(x.shape)) for d in dims])  # type: ignore[arg-type]


def permute(x: View, dims: Sequence[int]) -> View:
    shape = tuple(x.shape[d] for d in dims)
    axes = view_axes(shape)
    at: list[Expr] = [ex.ZERO] * len(dims)
    for position, d in enumerate(dims):
        at[d] = axes[position]
    return x.remap(shape, at)


def _transpose(low: Lowering, node: Node) -> Value:
    x = low.view(node.args[0])
    rank = len(x.shape)
    if rank < 2:
        return x
    first, second = (0, 1) if len(node.args) < 3 else (int(node.args[1]), int(node.args[2]))  # type: ignore[arg-type]
    dims = list(range(rank))
    a, b = normalise_dim(first, rank), normalise_dim(second, rank)
    dims[a], dims[b] = dims[b], dims[a]
    return permute(x, dims)


def _unsqueeze(low: Lowering, node: Node) -> Value:
    x = low.view(node.args[0])
    dim = normalise_dim(_int(low, node.args[1]), len(x.shape) + 1)
    shape = (*x.shape[:dim], ex.ONE, *x.shape[dim:])
    axes = view_axes(shape)
    return x.remap(shape, (*axes[:dim], *axes[dim + 1 :]))


def _squeeze(low: Lowering, node: Node) -> Value:
    """By the node's type: the dimensions of size 1 that were asked for."""
    x = low.view(node.args[0])
    rank = len(x.shape)
    if len(node.args) < 2:
        dims = set(range(rank))
    elif isinstance(node.args[1], tuple):
        dims = {normalise_dim(_int(low, d), rank) for d in node.args[1]}
    else:
        dims = {normalise_dim(_int(low, node.args[1]), rank)}
    gone = {d for d in dims if rank and x.shape[d] is ex.ONE}
    kept = [d for d in range(rank) if d not in gone]
    shape = tuple(x.shape[d] for d in kept)
    at: list[Expr] = [ex.ZERO] * rank
    for axis, d in zip(view_axes(shape), kept, strict=True):
        at[d] = axis
    return x.remap(shape, at)


def _expand(low: Lowering, node: Node) -> Value:
    return expand(low.view(node.args[0]), low.node_type().shape)


def expand(x: View, shape: tuple[Expr, ...]) -> View:
    axes = view_axes(shape)
    lead = len(shape) - len(x.shape)
    at = [
        ex.ZERO if size is ex.ONE and shape[lead + i] is not ex.ONE else axes[lead + i]
        for i, size in enumerate(x.shape)
    ]
    return x.remap(shape, at)


def _slice(low: Lowering, node: Node) -> Value:
    x = low.view(node.args[0])
    args = list(node.args) + [None] * (5 - len(node.args))
    dim = normalise_dim(_int(low, args[1]) if args[1] is not None else 0, len(x.shape))
    start = slice_start(low, args[2], x.shape[dim])
    step = _int(low, args[4]) if args[4] is not None else 1
    shape = low.node_type().shape
    axes: list[Expr] = list(view_axes(shape))
    axes[dim] = axes[dim] * step + start
    return x.remap(shape, axes)


def slice_start(low: Lowering, start: Arg, size: Expr) -> Expr:
    """The first index a slice takes: negative counts from the end, clamped to the size."""
    if start is None:
        return ex.ZERO
    first = low.size(start)
    number, extent = ex.as_int(first), ex.as_int(size)
    if number is not None and number < 0:
        return (
            ex.maximum(size + number, 0) if extent is None else ex.integer(max(extent + number, 0))
        )
    if number is not None and extent is not None:
        return ex.integer(min(number, extent))
    return first


def _select(low: Lowering, node: Node) -> Value:
    x = low.view(node.args[0])
    dim = normalise_dim(_int(low, node.args[1]), len(x.shape))
    return select(x, dim, low.size(node.args[2]))


def select(x: View, dim: int, position: Expr) -> View:
    number = ex.as_int(position)
    if number is not None and number < 0:
        position = x.shape[dim] + number
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    axes = view_axes(shape)
    return x.remap(shape, (*axes[:dim], position, *axes[dim:]))


def _pieces(low: Lowering, node: Node) -> Value:
    """split, split_with_sizes, chunk: consecutive slices, their sizes from the node's types."""
    x = low.view(node.args[0])
    position = 2 if len(node.args) > 2 else None
    dim_arg = node.args[position] if position else kwarg(node, "dim", 0)
    dim = normalise_dim(_int(low, dim_arg), len(x.shape))
    if not isinstance(node.type, tuple):
        raise LoweringError(f"{low.where()}: expected several results")
    start: Expr = ex.ZERO
    parts: list[Value] = []
    for t in node.type:
        assert isinstance(t, TensorType)
        axes: list[Expr] = list(view_axes(t.shape))
        axes[dim] = axes[dim] + start
        parts.append(x.remap(t.shape, axes))
        start = start + t.shape[dim]
    return tuple(parts)


def _unbind(low: Lowering, node: Node) -> Value:
    x = low.view(node.args[0])
    dim = normalise_dim(_int(low, node.args[1]) if len(node.args) > 1 else 0, len(x.shape))
    count = ex.as_int(x.shape[dim])
    if count is None:
        return low.external(node, "fallback")
    return tuple(select(x, dim, ex.integer(i)) for i in range(count))


def _flip(low: Lowering, node: Node) -> Value:
    """A reversed view; materialised where a caller needs positive strides."""
    x = low.view(node.args[0])
    dims = node.args[1]
    assert isinstance(dims, tuple)
    flipped = {normalise_dim(_int(low, d), len(x.shape)) for d in dims}
    axes = view_axes(x.shape)
    at = [x.shape[i] - 1 - a if i in flipped else a for i, a in enumerate(axes)]
    source = x.remap(x.shape, at)
    return low.node_pointwise(lambda where: low.load(source, where))


def _unfold(low: Lowering, node: Node) -> Value:
    x = low.view(node.args[0])
    if not x.shape:
        return x.remap(low.node_type().shape, ())
    dim = normalise_dim(_int(low, node.args[1]), len(x.shape))
    step = _int(low, node.args[3])
    shape = low.node_type().shape
    axes: list[Expr] = list(view_axes(shape))
    inner = axes.pop()
    axes[dim] = axes[dim] * step + inner
    return x.remap(shape, axes)


def diagonal_place(low: Lowering, node: Node, first: int, rank: int) -> tuple[int, int, int]:
    """``(offset, dim1, dim2)`` of a diagonal; argument ``first`` of the node is the offset."""
    defaults = (0, 0, 1)
    names = ("offset", "dim1", "dim2")
    found = []
    for i, (name, default) in enumerate(zip(names, defaults, strict=True)):
        given = node.args[first + i] if len(node.args) > first + i else kwarg(node, name, default)
        found.append(_int(low, given))
    return found[0], normalise_dim(found[1], rank), normalise_dim(found[2], rank)


def _diagonal(low: Lowering, node: Node) -> Value:
    x = low.view(node.args[0])
    offset, dim1, dim2 = diagonal_place(low, node, 1, len(x.shape))
    shape = low.node_type().shape
    (*rest, along) = view_axes(shape)
    at: list[Expr] = [ex.ZERO] * len(x.shape)
    for d in range(len(x.shape)):
        if d == dim1:
            at[d] = along + max(-offset, 0)
        elif d == dim2:
            at[d] = along + max(offset, 0)
        else:
            at[d] = rest.pop(0)
    return x.remap(shape, at)


def _narrow_copy(low: Lowering, node: Node) -> Value:
    x = low.view(node.args[0])
    dim = normalise_dim(_int(low, node.args[1]), len(x.shape))
    start = slice_start(low, node.args[2], x.shape[dim])
    shape = low.node_type().shape
    axes: list[Expr] = list(view_axes(shape))
    axes[dim] = axes[dim] + start
    return x.remap(shape, axes)


def _copied(rule: Rule) -> Rule:
    """The rule of a view, its result copied."""

    def copy(low: Lowering, node: Node) -> Value:
        found = rule(low, node)
        if not isinstance(found, View):
            return found
        return low.node_pointwise(lambda at: low.load(found, at))

    return copy


def _repeat(low: Lowering, node: Node) -> Value:
    x = low.view(node.args[0])
    lead = len(low.node_type().shape) - len(x.shape)

    def at_source(at: tuple[Expr, ...]) -> list[Expr]:
        return [
            ex.mod(a, s) if s is not ex.ZERO else ex.ZERO
            for a, s in zip(at[lead:], x.shape, strict=True)
        ]

    return low.node_pointwise(lambda at: low.load(x, at_source(at)))


def _int(low: Lowering, arg: Arg) -> int:
    found = low.value(arg)
    if isinstance(found, int):
        return found
    raise LoweringError(f"{low.where()}: expected a constant integer, got {found!r:.60}")


# Of the rules below, these make loops: an element type that loops cannot hold is left to ATen.
_COPIES: Final = (
    "alias detach diagonal expand permute select slice squeeze t transpose unfold unsqueeze view"
).split()
MOVING: Final = frozenset(
    (
        "aten.flip",
        "prims.rev",
        "aten.repeat",
        "aten.narrow_copy",
        *(f"aten.{n}_copy" for n in _COPIES),
    )
)

LOOKING: Final = frozenset(
    (
        "py.getitem",  # of the pieces that `split` and its kin return
        *(f"aten.{n}" for n in _COPIES if n not in ("slice", "select", "view")),
        *("aten.slice.Tensor", "aten.select.int", "aten.view.default"),
        *("aten.split", "aten.split_with_sizes", "aten.unbind"),
    )
)
"""Operations whose results are parts of their argument's memory, whatever that is."""

_VIEWS: Final[dict[str, Rule]] = {
    "aten.alias": _identity,
    "aten.detach": _identity,
    "aten.lift_fresh": _identity,
    "aten.view.default": _reshape,
    "aten._unsafe_view": _reshape,
    "aten.reshape": _reshape,
    "aten.permute": _permute,
    "aten.transpose": _transpose,
    "aten.t": _transpose,
    "aten.unsqueeze": _unsqueeze,
    "aten.squeeze": _squeeze,
    "aten.expand": _expand,
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.split": _pieces,
    "aten.split_with_sizes": _pieces,
    "aten.unbind": _unbind,
    "aten.flip": _flip,
    "prims.rev": _flip,
    "aten.unfold": _unfold,
    "aten.diagonal": _diagonal,
    "aten.repeat": _repeat,
}


def _rule_of(name: str) -> Rule:
    return next(_VIEWS[k] for k in (f"aten.{name}", f"aten.{name}.default", f"aten.{name}.Tensor",
                                    f"aten.{name}.int") if k in _VIEWS)  # fmt: skip


VIEWS: Final[dict[str, Rule]] = {
    **_VIEWS,
    "aten.narrow_copy": _copied(_narrow_copy),
    **{f"aten.{name}_copy": _copied(_rule_of(name)) for name in _COPIES},
}
