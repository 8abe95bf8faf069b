"""Rules for pooling: windows over the last dimensions, forwards and backwards.

A small window is written out: its elements are loads of one point, and the pooling fuses with what
stands around it as any elementwise operation does. A large one of an average is folded. Gradients
gather: a point adds up what the windows over it send, in the order of the windows, so that no two
points write one place.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr
from fusec.ir.graph import Arg, Node, TensorType
from fusec.ir.loop import Compute, Reduction, Scalar
from fusec.lower.context import Lowering, Value, compute_type, dense_stride
from fusec.lower.rules import Rule
from fusec.lower.view import View, loop_axes, whole

_WRITTEN_OUT: Final = 25  # points of a window; larger ones are folded
_MAX_COVER: Final = 9  # windows over one point that a gradient asks


@dataclass(frozen=True, slots=True)
class _Window:
    """The windows along one dimension of ``size``: ``count`` of them, ``kernel`` points each, from
    ``stride·o - pad`` on. cut: some may reach beyond the size and its padding (ceil mode)."""

    size: Expr
    count: Expr
    kernel: int
    stride: int
    pad: int
    cut: bool

    def start(self, o: Expr) -> Expr:
        return o * self.stride - self.pad

    def inside(self, place: Expr) -> Expr:
        """Whether a place that a window may name lies in the dimension."""
        if self.pad == 0 and not self.cut:
            return ex.ONE
        below = ex.compare("<", place, self.size)
        return below * ex.compare(">=", place, 0) if self.pad else below

    def clamped(self, place: Expr) -> Expr:
        if self.pad == 0 and not self.cut:
            return place
        high = ex.minimum(place, self.size - 1)
        return ex.maximum(high, 0) if self.pad else high

    def points(self, o: Expr, *, padded: bool) -> Expr:
        """How many points window ``o`` has, those of the padding counted or not."""
        if not self.cut and (padded or not self.pad):
            return ex.integer(self.kernel)
        start, end = self.start(o), self.start(o) + self.kernel
        if padded:
            return ex.minimum(end, self.size + self.pad) - start
        return ex.minimum(end, self.size) - ex.maximum(start, 0)

    @property
    def cover(self) -> int:
        """How many windows can lie over one point."""
        return -(-self.kernel // self.stride)

    def over(self, place: Expr) -> Iterator[tuple[Expr, Expr]]:
        """The windows that can lie over a place, in order: (window, whether it does)."""
        last = ex.floordiv(place + self.pad, self.stride)
        for back in range(self.cover - 1, -1, -1):
            o = last - back
            does = ex.compare(">=", o, 0) * ex.compare("<", o, self.count)
            if self.kernel % self.stride:
                does = does * ex.compare("<", place - self.start(o), self.kernel)
            yield o, does


def _numbers(arg: Arg, rank: int, default: Sequence[int]) -> list[int] | None:
    """One number a dimension; None where they are not known."""
    given = (arg,) if isinstance(arg, int) else default if arg is None or arg == () else arg
    assert isinstance(given, Sequence)
    if not all(isinstance(n, int) for n in given):
        return None
    found = [int(n) for n in given]  # type: ignore[arg-type]
    return found * rank if len(found) == 1 else found


def _at(node: Node, position: int) -> Arg:
    return node.args[position] if len(node.args) > position else None


def _windows(
    node: Node, first: int, sizes: Sequence[Expr], counts: Sequence[Expr], ceil: bool
) -> list[_Window] | None:
    """From kernel, stride and padding, arguments ``first`` and on; None where not known."""
    rank = len(sizes)
    kernel = _numbers(_at(node, first), rank, ())
    if kernel is None:
        return None
    stride = _numbers(_at(node, first + 1), rank, kernel)
    pad = _numbers(_at(node, first + 2), rank, (0,))
    if stride is None or pad is None:
        return None
    parts = zip(sizes, counts, kernel, stride, pad, strict=True)
    return [_Window(n, o, k, s, p, ceil) for n, o, k, s, p in parts]


def _points(windows: Sequence[_Window]) -> int:
    result = 1
    for w in windows:
        result *= w.kernel
    return result


def _real(t: TensorType) -> bool:
    return compute_type(t.dtype) in ("f32", "f64")


def _average(rank: int) -> Rule:
    def rule(low: Lowering, node: Node) -> Value:
        x, t = low.view(node.args[0]), low.node_type()
        ceil, include = bool(_at(node, 4) or False), _at(node, 5)
        windows = _windows(node, 1, x.shape[-rank:], t.shape[-rank:], ceil)
        if windows is None or not _real(t):
            return low.external(node, "library")
        divisor = _Divisor(_at(node, 6), padded=include is None or bool(include))
        return _averaged(low, x, windows, divisor)

    return rule


@dataclass(frozen=True, slots=True)
class _Divisor:
    """What the sum of a window is divided by: a number, or its points."""

    given: Arg
    padded: bool

    def of(self, windows: Sequence[_Window], at: Sequence[Expr], dtype: str) -> Scalar:
        if isinstance(self.given, int):
            return lp.const(self.given, dtype)
        size = ex.product(w.points(o, padded=self.padded) for w, o in zip(windows, at, strict=True))
        number = ex.as_int(size)
        if number is not None:
            return lp.const(number, dtype)
        return lp.cast(lp.index(ex.maximum(size, 1)), dtype)


def _averaged(low: Lowering, x: View, windows: Sequence[_Window], divisor: _Divisor) -> Value:
    t = low.node_type()
    work, rank = compute_type(t.dtype), len(windows)
    if _points(windows) > _WRITTEN_OUT:
        sums = _folded(low, x, windows, work)
        return low.node_pointwise(
            lambda at: lp.op("div", work, low.load(sums, at), divisor.of(windows, at[-rank:], work))
        )

    def body(at: tuple[Expr, ...]) -> Scalar:
        total: Scalar | None = None
        for place, inside in _each(windows, at[-rank:]):
            value = lp.cast(low.load(x, (*at[:-rank], *place), inside), work)
            total = value if total is None else lp.op("add", work, total, value)
        assert total is not None
        return lp.op("div", work, total, divisor.of(windows, at[-rank:], work))

    return low.node_pointwise(body)


def _each(windows: Sequence[_Window], at: Sequence[Expr]) -> Iterator[tuple[list[Expr], Expr]]:
    """The points of a window in order: (place, whether it lies in the tensor)."""
    for offsets in itertools.product(*(range(w.kernel) for w in windows)):
        place = [w.start(o) + k for w, o, k in zip(windows, at, offsets, strict=True)]
        yield place, ex.product(w.inside(e) for w, e in zip(windows, place, strict=True))


def _folded(low: Lowering, x: View, windows: Sequence[_Window], work: str) -> View:
    """Sums of windows as a fold."""
    rank = len(windows)
    shape = (*x.shape[:-rank], *(w.count for w in windows))
    axes = loop_axes(shape)
    folded = loop_axes([ex.integer(w.kernel) for w in windows], "r")
    place = [w.start(o) + r for w, o, r in zip(windows, axes[-rank:], folded, strict=True)]
    inside = ex.product(w.inside(e) for w, e in zip(windows, place, strict=True))
    value = lp.cast(low.load(x, (*axes[:-rank], *place), inside), work)
    apart = all(w.kernel == w.stride and not w.pad and not w.cut for w in windows)
    pairs = zip(axes[-rank:], folded, strict=True)
    order = (*axes[:-rank], *itertools.chain.from_iterable(pairs)) if apart else (*axes, *folded)
    out = low.temp(work, shape)
    low.steps.append(Compute(out, axes, value, Reduction("sum", folded, order), (low.position,)))
    return whole(out, work, shape)


def _average_backward(rank: int) -> Rule:
    def rule(low: Lowering, node: Node) -> Value:
        grad, x, t = low.view(node.args[0]), low.view(node.args[1]), low.node_type()
        ceil, include = bool(_at(node, 5)), bool(_at(node, 6))
        windows = _windows(node, 2, x.shape[-rank:], grad.shape[-rank:], ceil)
        if windows is None or not _real(t) or not _few(windows):
            return low.external(node, "library")
        return _spread(low, grad, windows, _Divisor(_at(node, 7), padded=include))

    return rule


def _few(windows: Sequence[_Window]) -> bool:
    """Whether few windows lie over a point."""
    cover = 1
    for w in windows:
        cover *= w.cover
    return cover <= _MAX_COVER


def _spread(low: Lowering, grad: View, windows: Sequence[_Window], divisor: _Divisor) -> Value:
    work, rank = compute_type(low.node_type().dtype), len(windows)

    def body(at: tuple[Expr, ...]) -> Scalar:
        total: Scalar | None = None
        for place, does in _covers(windows, at[-rank:]):
            value = lp.cast(low.load(grad, (*at[:-rank], *place), does), work)
            value = lp.op("div", work, value, divisor.of(windows, place, work))
            total = value if total is None else lp.op("add", work, total, value)
        assert total is not None
        return total

    return low.node_pointwise(body)


def _covers(windows: Sequence[_Window], at: Sequence[Expr]) -> Iterator[tuple[list[Expr], Expr]]:
    """The windows that can lie over a point, in order: (window, whether it does)."""
    along = [list(w.over(e)) for w, e in zip(windows, at, strict=True)]
    for found in itertools.product(*along):
        yield [o for o, _ in found], ex.product(does for _, does in found)


def _maximum(rank: int) -> Rule:
    """Values and indices: the first place of the maximum, or the last NaN, as eager searches."""

    def rule(low: Lowering, node: Node) -> Value:
        x = low.view(node.args[0])
        assert isinstance(node.type, tuple)
        kind, index_kind = node.type
        assert isinstance(kind, TensorType)
        assert isinstance(index_kind, TensorType)
        windows = _windows(node, 1, x.shape[-rank:], kind.shape[-rank:], bool(_at(node, 5)))
        apart = _numbers(_at(node, 4), rank, (1,)) == [1] * rank
        if windows is None or not apart or not _real(kind) or _points(windows) > _WRITTEN_OUT:
            return low.external(node, "library")

        def search(at: tuple[Expr, ...]) -> tuple[Scalar, Scalar]:
            """Points beyond the edge stand for the edge: it is in the window anyway."""
            best: tuple[Scalar, Scalar] | None = None
            work = compute_type(x.dtype)
            # Positions in 32 bits where they fit: cheaper to choose among.
            size = ex.as_int(ex.product(w.size for w in windows))
            small = "i32" if size is not None and size < 1 << 31 else "i64"
            for place, _ in _each(windows, at[-rank:]):
                place = [w.clamped(e) for w, e in zip(windows, place, strict=True)]
                value = low.load(x, (*at[:-rank], *place))
                where = lp.cast(lp.index(_linear(windows, place)), small)
                if best is None:
                    best = value, where
                    continue
                larger = lp.op("gt", "bool", value, best[0])
                takes = lp.op("or", "bool", larger, lp.op("isnan", "bool", value))
                best = (
                    lp.op("where", work, takes, value, best[0]),
                    lp.op("where", small, takes, where, best[1]),
                )
            assert best is not None
            return best

        values = low.pointwise(kind.dtype, kind.shape, lambda at: search(at)[0], dense_stride(kind))
        indices = low.pointwise(
            "i64", kind.shape, lambda at: search(at)[1], dense_stride(index_kind)
        )
        return values, indices

    return rule


def _linear(windows: Sequence[_Window], place: Sequence[Expr]) -> Expr:
    total: Expr = ex.ZERO
    for w, e in zip(windows, place, strict=True):
        total = total * w.size + e
    return total


def _maximum_backward(rank: int, index: int) -> Rule:
    def rule(low: Lowering, node: Node) -> Value:
        grad, x, places = (low.view(node.args[i]) for i in (0, 1, index))
        t = low.node_type()
        windows = _windows(node, 2, x.shape[-rank:], grad.shape[-rank:], bool(_at(node, 6)))
        apart = _numbers(_at(node, 5), rank, (1,)) == [1] * rank
        # A processor writes each window's gradient to its place sooner than each point asks.
        if windows is None or not apart or not _real(t) or not _few(windows) or t.device == "cpu":
            return low.external(node, "library")
        work = compute_type(t.dtype)
        zero = lp.const(0, work)

        def body(at: tuple[Expr, ...]) -> Scalar:
            own = lp.index(_linear(windows, at[-rank:]))
            total: Scalar = zero
            for o, does in _covers(windows, at[-rank:]):
                window = (*at[:-rank], *o)
                mine = lp.op("eq", "bool", low.load(places, window, does), own)
                value = lp.cast(low.load(grad, window, does), work)
                total = lp.op("add", work, total, lp.op("where", work, mine, value, zero))
            return total

        return low.node_pointwise(body)

    return rule


def _even(sizes: Sequence[Expr], counts: Sequence[Expr]) -> list[_Window] | None:
    """Windows of one size that tile the dimensions; None where they are uneven or not known."""
    found = []
    for size, count in zip(sizes, counts, strict=True):
        n, o = ex.as_int(size), ex.as_int(count)
        if n is None or not o or n % o or not n:
            return None
        found.append(_Window(size, count, n // o, n // o, 0, False))
    return found


def _adaptive(rank: int) -> Rule:
    def rule(low: Lowering, node: Node) -> Value:
        x, t = low.view(node.args[0]), low.node_type()
        windows = _even(x.shape[-rank:], t.shape[-rank:])
        if windows is None or not _real(t):
            return low.external(node, "library")
        return _averaged(low, x, windows, _Divisor(None, padded=False))

    return rule


def _adaptive_backward(rank: int) -> Rule:
    def rule(low: Lowering, node: Node) -> Value:
        grad, t = low.view(node.args[0]), low.node_type()
        windows = _even(t.shape[-rank:], grad.shape[-rank:])
        if windows is None or not _real(t):
            return low.external(node, "library")
        return _spread(low, grad, windows, _Divisor(None, padded=False))

    return rule


def _nearest_backward(low: Lowering, node: Node) -> Value:
    """Each element adds up the gradients of its copies, where all have equally many."""
    grad, t = low.view(node.args[0]), low.node_type()
    windows = _even(grad.shape[-2:], t.shape[-2:])
    scales = [low.value(a) for a in node.args[3:]]
    if windows is None or not _real(t) or any(s is not None for s in scales):
        return low.external(node, "library")
    return _averaged(low, grad, windows, _Divisor(1, padded=False))


POOLING: Final[dict[str, Rule]] = {
    "aten.avg_pool2d": _average(2),
    "aten.avg_pool3d": _average(3),
    "aten.avg_pool2d_backward": _average_backward(2),
    "aten.avg_pool3d_backward": _average_backward(3),
    "aten.max_pool2d_with_indices": _maximum(2),
    "aten.max_pool3d_with_indices": _maximum(3),
    "aten.max_pool2d_with_indices_backward": _maximum_backward(2, 7),
    "aten.max_pool3d_with_indices_backward": _maximum_backward(3, 7),
    "aten._adaptive_avg_pool2d": _adaptive(2),
    "aten._adaptive_avg_pool3d": _adaptive(3),
    "aten._adaptive_avg_pool2d_backward": _adaptive_backward(2),
    "aten._adaptive_avg_pool3d_backward": _adaptive_backward(3),
    "aten.upsample_nearest2d_backward": _nearest_backward,
}
