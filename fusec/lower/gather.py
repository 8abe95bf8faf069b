"""Rules that read at places given by index tensors: embedding, gather, index, index_select.

A place out of range never reads wild memory. On a CPU the index is clamped, and a check of the
whole index tensor, an assertion that the program runs beside, raises as eager does (a RuntimeError
here, where eager raises an IndexError or a RuntimeError). On a GPU the kernel itself asserts that
the places it takes are in range (`within`), as eager's kernels do; what no kernel takes is not
checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr, Sym
from fusec.ir.graph import Node, Ref
from fusec.ir.loop import External, Scalar
from fusec.lower.context import Lowering, Value, dense, normalise_dim
from fusec.lower.rules import Rule
from fusec.lower.view import View, as_buffer_view, whole
from fusec.lower.views import reshape

_MESSAGE: Final = "index out of range in {}"


class Place:
    """The element of an index tensor as a coordinate in a dimension of a size.

    wrap: negative indices count from the end. checked: one out of range raises; else it is clamped.
    """

    def __init__(
        self,
        low: Lowering,
        index: View,
        size: Expr,
        number: int,
        *,
        wrap: bool,
        checked: bool = True,
    ) -> None:
        self.low = low
        self.index = index
        self.size = size
        self.wrap = wrap
        self.checked = checked
        # In a dimension of no points nothing is read, so no kernel would see a place in it.
        self.asserted = checked and low.node_type().device == "cuda" and size is not ex.ZERO
        symbol = ex.axis(f"j{number}", size)
        assert isinstance(symbol, Sym)
        self.symbol = symbol

    def value(self, at: Sequence[Expr]) -> Scalar:
        """The coordinate, in range, of the index tensor's element, broadcast to ``at``."""
        size = lp.index(self.size)
        found = lp.cast(self.low.broadcast(self.index, at), "i64")
        if self.wrap:
            below = lp.op("lt", "bool", found, lp.const(0, "i64"))
            found = lp.op("where", "i64", below, lp.op("add", "i64", found, size), found)
        if self.asserted:
            return lp.within(found, self.size)
        last = lp.index(self.size - 1)
        return lp.op("max", "i64", lp.op("min", "i64", found, last), lp.const(0, "i64"))

    def check(self) -> None:
        """Emit the assertion that every index is in range, once for an index (in whatever shape it
        is used) and a size; nothing where the kernels assert it or nobody asks."""
        if self.asserted or not self.checked:
            return
        low, index = self.low, _all_of(self.low, self.index)
        if not low.first_time(
            ("index", index.buffer, index.index, index.shape, self.size, self.wrap)
        ):
            return
        first = lp.index(-self.size) if self.wrap else lp.const(0, "i64")

        def inside(element: Scalar) -> Scalar:
            place = lp.cast(element, "i64")
            return lp.op(
                "and",
                "bool",
                lp.op("ge", "bool", place, first),
                lp.op("lt", "bool", place, lp.index(self.size)),
            )

        dims = range(len(index.shape))
        good = low.reduce("and", index, dims, "bool", inside, keepdim=False)
        packet = ".".join(low.graph.nodes[low.position].target.split(".")[:2])
        low.steps.append(
            External(
                (),
                "aten._assert_async.msg",
                (low.strided(good), _MESSAGE.format(packet)),
                reason="check",
                origin=(low.position,),
            )
        )


def _all_of(low: Lowering, view: View) -> View:
    """The buffer of a view that rearranges all of it and repeats nothing; else the view."""
    memory = low.buffers[view.buffer]
    strides = as_buffer_view(view, memory.stride)
    if strides is None or not (
        dense(strides.shape, strides.stride) and dense(memory.shape, memory.stride)
    ):
        return view
    if strides.offset is not ex.ZERO or ex.product(view.shape) is not ex.product(memory.shape):
        return view
    return whole(view.buffer, view.dtype, memory.shape)


def usable(view: View) -> bool:
    return view.dtype in ("i64", "i32")


def load_at(
    low: Lowering, source: View, at: Sequence[Expr], places: Sequence[tuple[Place, Sequence[Expr]]]
) -> Scalar:
    """The source's element at ``at``, which holds the places' symbols, each place's index at its
    own coordinates. Nothing is read where a dimension that is indexed is empty."""
    guard: Expr = ex.ONE
    for place, _ in places:
        guard = guard * ex.compare(">", place.size, 0)
    indirect = tuple((place.symbol, place.value(where)) for place, where in places)
    if ex.as_int(guard) == 0:
        return lp.const(0, source.dtype)
    return lp.load(source.buffer, source.dtype, source.at(at), indirect, guard)


def _embedding(low: Lowering, node: Node) -> Value:
    weight, index = low.view(node.args[0]), low.view(node.args[1])
    if not usable(index):
        return low.external(node, "fallback")
    place = Place(low, index, weight.shape[0], 0, wrap=False)
    place.check()
    rank = len(index.shape)
    return low.node_pointwise(
        lambda at: load_at(low, weight, (place.symbol, at[rank]), [(place, at[:rank])])
    )


def _gather(low: Lowering, node: Node) -> Value:
    x, index = low.view(node.args[0]), low.view(node.args[2])
    if not usable(index) or not x.shape:
        return low.external(node, "fallback")
    assert isinstance(node.args[1], int)
    dim = normalise_dim(node.args[1], len(x.shape))
    place = Place(low, index, x.shape[dim], 0, wrap=False)
    place.check()
    return low.node_pointwise(
        lambda at: load_at(low, x, (*at[:dim], place.symbol, *at[dim + 1 :]), [(place, at)])
    )


def _index_select(low: Lowering, node: Node) -> Value:
    x, index = low.view(node.args[0]), low.view(node.args[2])
    if not usable(index) or not x.shape or len(index.shape) != 1:
        return low.external(node, "fallback")
    assert isinstance(node.args[1], int)
    dim = normalise_dim(node.args[1], len(x.shape))
    place = Place(low, index, x.shape[dim], 0, wrap=False)
    place.check()
    return low.node_pointwise(
        lambda at: load_at(low, x, (*at[:dim], place.symbol, *at[dim + 1 :]), [(place, (at[dim],))])
    )


def _index(low: Lowering, node: Node) -> Value:
    """Advanced indexing: index tensors broadcast together stand where the first of them does,
    or in front where others lie between."""
    x = low.view(node.args[0])
    given = node.args[1]
    assert isinstance(given, tuple)
    indices = [low.view(i) if isinstance(i, Ref) else None for i in given]
    found = [v for v in indices if v is not None]
    if not found or not all(usable(v) for v in found):
        return low.external(node, "fallback")
    at_dims = [d for d, v in enumerate(indices) if v is not None]
    together = at_dims == list(range(at_dims[0], at_dims[-1] + 1))
    first = at_dims[0] if together else 0
    rank = max(len(v.shape) for v in found)
    checked = not node.target.startswith("aten._unsafe_index")
    places: dict[int, Place] = {}
    for dim in at_dims:
        view = indices[dim]
        assert view is not None
        places[dim] = Place(low, view, x.shape[dim], dim, wrap=True, checked=checked)
        places[dim].check()

    def body(at: tuple[Expr, ...]) -> Scalar:
        where = at[first : first + rank]
        rest = [*at[:first], *at[first + rank :]]
        coordinates: list[Expr] = []
        for dim in range(len(x.shape)):
            coordinates.append(places[dim].symbol if dim in places else rest.pop(0))
        return load_at(low, x, coordinates, [(p, where) for p in places.values()])

    return low.node_pointwise(body)


def _take(low: Lowering, node: Node) -> Value:
    x, index = low.view(node.args[0]), low.view(node.args[1])
    if not usable(index):
        return low.external(node, "fallback")
    flat = reshape(x, (ex.product(x.shape),))
    place = Place(low, index, flat.shape[0], 0, wrap=True)
    place.check()
    return low.node_pointwise(lambda at: load_at(low, flat, (place.symbol,), [(place, at)]))


GATHER: Final[dict[str, Rule]] = {
    "aten.embedding": _embedding,
    "aten.gather": _gather,
    "aten.index_select": _index_select,
    "aten.index.Tensor": _index,
    "aten._unsafe_index.Tensor": _index,
    "aten.take": _take,
}
