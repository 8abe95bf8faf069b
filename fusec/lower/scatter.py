"""Rules that write at places given by index tensors: scatters, index_put, gradients of embeddings.

On a GPU they are loops with atomic additions, or sums where they would collide
(`few_places.py`); what has no atomic operation (products, extremes of floats, in which a NaN must
win) is ATen's. On a CPU they are loops, in the order of the indices, where those are quicker than
ATen's: for what is folded, rows that are added, single elements of an index_put, and scatters along
another dimension than the last. A scatter into an input that is overwritten with its result (a
cache that grows by a token) changes the input in place, on every device: nothing is copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr, Sym
from fusec.ir.graph import Node, Ref, TensorType, refs
from fusec.ir.loop import Buffer, Compute, Scalar
from fusec.lower.context import Lowering, Value, dense_stride, normalise_dim
from fusec.lower.few_places import sums_of_few
from fusec.lower.gather import Place, usable
from fusec.lower.rules import Rule, kwarg, operand, to_type
from fusec.lower.view import View, loop_axes, whole

At: TypeAlias = tuple[Expr, ...]
Placed: TypeAlias = "tuple[Sequence[Expr], Sequence[tuple[Place, Sequence[Expr]]]]"
_ADDED: Final = frozenset(("f64", "f32", "bf16", "f16", "i64", "i32"))  # that atomics can add


def _put(
    low: Lowering,
    node: Node,
    t: TensorType,
    base: Value,
    shape: Sequence[Expr],
    place: Callable[[At], Placed],
    value: Callable[[At], Scalar],
    *,
    mode: str,
    quick: bool = False,
) -> Value:
    """``base`` (a tensor or a number) with ``value`` at the places of all points of ``shape``, as
    ``mode`` (`lp.SCATTERS`) says; ``quick``: sooner done by loops on a CPU than by ATen. The result
    has type ``t``, the node's own where ATen may have to do it.

    place: the coordinates in the result, which hold the symbols of index elements, and these with
    their own coordinates.
    """
    axes = loop_axes(shape)
    at, places = place(axes)
    if not _roomy([p for p, _ in places]) or not _in_loops(t, mode):
        return low.external(node, "library")
    dtype = "f32" if mode != "store" and DTYPES[t.dtype].compute == "f32" else t.dtype
    put = lp.cast(value(axes), dtype)
    if dtype in ("bf16", "f16") and low.strict_rounding:
        put = lp.op(f"round_{dtype}", "f32", put)
    indirect = tuple((p.symbol, p.value(where)) for p, where in places)
    if mode == "add" and t.device == "cuda" and len(places) == 1:
        added = sums_of_few(low, axes, at, places[0][0], indirect[0][1], put)
        if added is not None:
            return low.pointwise(
                t.dtype,
                t.shape,
                lambda a: lp.op(
                    "add", put.dtype, to_type(operand(low, base, a), put.dtype), added(a)
                ),
                dense_stride(t),
            )
    target = None
    if mode == "store":
        target = _overwritten(low, node, base, (put, *(v for _, v in indirect)))
    rows = mode == "add" and _whole_rows(axes, at, places)
    if target is None and t.device == "cpu" and not (quick or rows):
        return low.external(node, "library")
    if target is None:
        stride = dense_stride(t) if dtype == t.dtype else None
        target = low.pointwise(
            dtype, t.shape, lambda a: to_type(operand(low, base, a), dtype), stride
        ).buffer
    memory = low.buffers[target]
    alias = low.new_buffer(Buffer(dtype, memory.shape, memory.stride, "alias", target))
    where = lp.load(target, dtype, tuple(at), indirect)
    scattered = lp.scatter(mode, where, put)
    low.steps.append(Compute(alias, axes, scattered, None, (low.position,)))
    for found, _ in places:
        found.check()
    result = whole(alias, dtype, memory.shape)
    if dtype == t.dtype:
        return result
    return low.pointwise(
        t.dtype, t.shape, lambda a: lp.cast(low.load(result, a), t.dtype), dense_stride(t)
    )


def _roomy(places: Sequence[Place]) -> bool:
    """Whether the dimensions of all places are known to have points."""
    return all(ex.as_int(ex.compare(">", p.size, 0)) == 1 for p in places)


def _in_loops(t: TensorType, mode: str) -> bool:
    """Whether loops for a tensor's device can scatter so."""
    if t.device == "cpu" or mode == "store":
        return True
    return mode == "add" and t.dtype in _ADDED


def _whole_rows(
    axes: tuple[Sym, ...], at: Sequence[Expr], places: Sequence[tuple[Place, Sequence[Expr]]]
) -> bool:
    """Whether each place is that of a row, which stays together."""
    if not axes or at[-1] is not axes[-1] or axes[-1].upper is None:
        return False
    width = ex.as_int(axes[-1].upper)
    used = {s for _, where in places for e in where for s in ex.symbols(e)}
    return axes[-1] not in used and (width is None or width >= 16)


def _overwritten(low: Lowering, node: Node, base: Value, values: Sequence[Scalar]) -> int | None:
    """The buffer of the input that the node changes, where the graph then overwrites the input with
    the result, and nothing needs what was there before once the node has run."""
    graph, position = low.graph, low.position
    if graph.nodes[position] is not node or not isinstance(base, View):
        return None
    if low.buffers[base.buffer].kind != "input" or base.index != base.axes:
        return None
    if any(load.buffer == base.buffer for v in values for load in lp.loads(v)):
        return None
    overwrites = 0
    for later in graph.nodes[position + 1 :]:
        used = [i for arg in (*later.args, *(v for _, v in later.kwargs)) for i in refs(arg)]
        old = [i for i in used if i < position and _lies_in(low.values[i], base.buffer)]
        if later.target == "aten.copy_.default" and used[1:] == [position] and old == used[:1]:
            overwrites += 1
        elif old:
            return None
    returned = [i for arg in graph.outputs for i in refs(arg) if i < position]
    if overwrites != 1 or any(_lies_in(low.values[i], base.buffer) for i in returned):
        return None
    return base.buffer


def _lies_in(value: Value, buffer: int) -> bool:
    if isinstance(value, tuple):
        return any(_lies_in(v, buffer) for v in value)
    return isinstance(value, View) and value.buffer == buffer


def _scatter(mode: str) -> Rule:
    """scatter and scatter_add: an element of the source for each one of the index tensor."""

    def rule(low: Lowering, node: Node) -> Value:
        x, index = low.view(node.args[0]), low.view(node.args[2])
        source = low.value(node.args[3])
        if not usable(index) or not x.shape or not isinstance(node.args[1], int):
            return low.external(node, "library")
        dim = normalise_dim(node.args[1], len(x.shape))
        place = Place(low, index, x.shape[dim], 0, wrap=False)
        dtype = low.node_type().dtype

        def element(at: At) -> Scalar:
            if isinstance(source, View):
                return low.load(source, at)
            return to_type(operand(low, source, at), dtype)

        return _put(
            low,
            node,
            low.node_type(),
            x,
            index.shape,
            lambda at: ((*at[:dim], place.symbol, *at[dim + 1 :]), [(place, at)]),
            element,
            mode=mode,
            quick=dim < len(x.shape) - 1,
        )

    return rule


_MODES: Final = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}


def _scatter_reduce(low: Lowering, node: Node) -> Value:
    """Elements of the source folded into the places that the index names, with what is there or,
    without ``include_self``, beginning from nothing at each place that is named."""
    x, index, source = (low.view(node.args[i]) for i in (0, 2, 3))
    reduce, dim, t = node.args[4], node.args[1], low.node_type()
    include = bool(node.args[5] if len(node.args) > 5 else kwarg(node, "include_self", True))
    assert isinstance(reduce, str)
    assert isinstance(dim, int)
    if not usable(index) or not x.shape or not _in_loops(t, _MODES[reduce]):
        return low.external(node, "library")
    dim = normalise_dim(dim, len(x.shape))
    place = Place(low, index, x.shape[dim], 0, wrap=False)
    if not _roomy([place]):
        return low.external(node, "library")

    def fold(t: TensorType, base: Value, element: Callable[[At], Scalar], mode: str) -> View:
        def where(at: At) -> Placed:
            return (*at[:dim], place.symbol, *at[dim + 1 :]), [(place, at)]

        found = _put(low, node, t, base, index.shape, where, element, mode=mode, quick=True)
        assert isinstance(found, View)
        return found

    def count(at: At) -> Scalar:
        return low.load(counts, at)

    if reduce == "mean" or not include:
        counted = TensorType("i64", t.shape, ex.row_major(t.shape), t.device)
        one = lp.const(1, "i64")
        counts = fold(counted, int(include), lambda at: one, "add")
    base = x
    work = DTYPES[t.dtype].compute
    if not include:
        first = lp.const(_neutral(_MODES[reduce], t.dtype), work)
        base = low.pointwise(
            t.dtype,
            t.shape,
            lambda at: lp.op(
                "where",
                work,
                lp.op("eq", "bool", count(at), lp.const(0, "i64")),
                low.load(x, at),
                first,
            ),
        )
    result = fold(t, base, lambda at: low.load(source, at), _MODES[reduce])
    if reduce != "mean":
        return result
    divide = "div" if DTYPES[t.dtype].is_float else "divf"
    return low.node_pointwise(
        lambda at: lp.op(
            divide, work, low.load(result, at), lp.cast(lp.op("max", "i64", count(at), one), work)
        )
    )


def _neutral(mode: str, dtype: str) -> bool | int | float:
    """What changes nothing that is folded with it."""
    if mode in ("add", "mul"):
        return int(mode == "mul")
    low = mode == "max"
    if DTYPES[dtype].is_float:
        return -math.inf if low else math.inf
    if dtype == "bool":
        return not low
    bits = 8 * DTYPES[dtype].size
    if DTYPES[dtype].kind == "uint":
        return 0 if low else (1 << bits) - 1
    return -(1 << (bits - 1)) if low else (1 << (bits - 1)) - 1


def _along(mode: str) -> Rule:
    """index_add and index_copy: slices of the source to places along a dimension."""

    def rule(low: Lowering, node: Node) -> Value:
        x, index, source = (low.view(node.args[i]) for i in (0, 2, 3))
        alpha = low.value(node.args[4] if len(node.args) > 4 else kwarg(node, "alpha", 1))
        assert isinstance(node.args[1], int)
        ranks = len(index.shape) == 1 and len(source.shape) == len(x.shape) > 0
        if not usable(index) or not ranks:
            return low.external(node, "library")
        dim = normalise_dim(node.args[1], len(x.shape))
        place = Place(low, index, x.shape[dim], 0, wrap=False)
        dtype = low.node_type().dtype

        def element(at: At) -> Scalar:
            found = low.load(source, at)
            if alpha == 1:
                return found
            return lp.op("mul", found.dtype, found, to_type(operand(low, alpha, at), dtype))

        return _put(
            low,
            node,
            low.node_type(),
            x,
            source.shape,
            lambda at: ((*at[:dim], place.symbol, *at[dim + 1 :]), [(place, (at[dim],))]),
            element,
            mode=mode,
        )

    return rule


def _index_put(low: Lowering, node: Node) -> Value:
    """Index tensors broadcast together; they stand where the first of them does, or in front where
    others lie between (as `fusec.lower.gather` reads)."""
    x, values = low.view(node.args[0]), low.view(node.args[2])
    given = node.args[1]
    assert isinstance(given, tuple)
    indices = [low.view(i) if isinstance(i, Ref) else None for i in given]
    found = [v for v in indices if v is not None]
    add = bool(node.args[3] if len(node.args) > 3 else kwarg(node, "accumulate", False))
    if not found or not all(usable(v) for v in found):
        return low.external(node, "library")
    dims = [d for d, v in enumerate(indices) if v is not None]
    together = dims == list(range(dims[0], dims[-1] + 1))
    first = dims[0] if together else 0
    rank = max(len(v.shape) for v in found)
    common = _broadcast([v.shape for v in found], rank)
    rest_shape = [n for d, n in enumerate(x.shape) if d not in dims]
    shape = (*rest_shape[:first], *common, *rest_shape[first:])
    checked = not node.target.startswith("aten._unsafe")
    places: dict[int, Place] = {}
    for d in dims:
        view = indices[d]
        assert view is not None
        places[d] = Place(low, view, x.shape[d], d, wrap=True, checked=checked)

    def place(at: At) -> Placed:
        where = at[first : first + rank]
        rest = [*at[:first], *at[first + rank :]]
        coordinates = [
            places[d].symbol if d in places else rest.pop(0) for d in range(len(x.shape))
        ]
        return coordinates, [(p, where) for p in places.values()]

    return _put(
        low,
        node,
        low.node_type(),
        x,
        shape,
        place,
        lambda at: low.broadcast(values, at),
        mode="add" if add else "store",
        quick=first + rank == len(shape),
    )


def _broadcast(shapes: Sequence[Sequence[Expr]], rank: int) -> list[Expr]:
    result: list[Expr] = [ex.ONE] * rank
    for shape in shapes:
        for i, size in enumerate(shape):
            place = rank - len(shape) + i
            if result[place] is ex.ONE:
                result[place] = size
    return result


def _embedding_dense_backward(low: Lowering, node: Node) -> Value:
    """Rows of the gradient added up for each word; those of the padding word are left out. The
    forward has checked the words."""
    grad, index = low.view(node.args[0]), low.view(node.args[1])
    padding, by_frequency = low.value(node.args[3]), low.value(node.args[4])
    t = low.node_type()
    if not usable(index) or by_frequency is not False or not isinstance(padding, int):
        return low.external(node, "library")
    word = Place(low, index, t.shape[0], 0, wrap=False, checked=False)
    rank = len(index.shape)

    def element(at: At) -> Scalar:
        found = low.load(grad, at)
        if padding < 0:
            return found
        own = word.value(at[:rank])
        counts = lp.op("ne", "bool", own, lp.const(padding, "i64"))
        return lp.op("where", found.dtype, counts, found, lp.const(0, found.dtype))

    return _put(
        low,
        node,
        t,
        0,
        grad.shape,
        lambda at: ((word.symbol, at[rank]), [(word, at[:rank])]),
        element,
        mode="add",
    )


SCATTER: Final[dict[str, Rule]] = {
    "aten.scatter.src": _scatter("store"),
    "aten.scatter.value": _scatter("store"),
    "aten.scatter_add": _scatter("add"),
    "aten.scatter_reduce.two": _scatter_reduce,
    "aten.index_add": _along("add"),
    "aten.index_copy": _along("store"),
    "aten.index_put": _index_put,
    "aten._unsafe_index_put": _index_put,
    "aten.embedding_dense_backward": _embedding_dense_backward,
}
