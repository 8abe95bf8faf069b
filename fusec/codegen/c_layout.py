"""How a kernel's loops map to the machine: which axis carries the lanes, how many lanes, how many
copies of the body in flight, which axis is tiled against it, which values are kept for a row.

Pure choices over a `KernelLoop`; `fusec.codegen.c_kernel` writes the code they describe.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fusec.codegen.c_body import narrow_index, varies
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr, Sym
from fusec.ir.kernel import KernelLoop, Statement, linear
from fusec.ir.loop import Const, Index, Load, Op, Reduced, Scalar

INDEXED: Final = frozenset(("argmax", "argmin"))
_VECTOR_BYTES: Final = {"x86-64-v2": 16, "x86-64-v3": 32, "x86-64-v4": 64, "aarch64": 16}
_COPIES: Final = 4
_MAX_COPIED: Final = 40  # operations in a body that is worth repeating
_PANEL_BYTES: Final = 64 << 10  # totals and partial results of all columns
_SCRATCH_BYTES: Final = 32 << 10  # a row's values kept on the stack
_HEAVY_SCANS: Final = frozenset(("logcumsumexp",))
_WIDE: Final = 8  # points of an axis beside a scan that are worth lanes
_HEAVY: Final = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan tanh sinh cosh asin acos atan atan2 "
    "asinh acosh atanh erf erfc pow sigmoid div sqrt rsqrt philox_uniform".split()
)


@dataclass(frozen=True, slots=True)
class Layout:
    """``axis`` carries ``lanes`` lanes (None and 1: none does). ``column``: lanes run along a kept
    axis beside folds; ``panel``: such a kernel goes row by row. ``outer`` axes become the parallel
    loop, ``inner`` ones the loops inside, the lane axis last. ``tiled``: the inner axis that is
    walked in blocks against the lane axis. ``copies`` of the body run at once. ``scratch``: values
    kept for later stages of a row."""

    axis: Sym | None
    lanes: int
    column: bool
    outer: tuple[Sym, ...]
    inner: tuple[Sym, ...]
    tiled: Sym | None
    copies: int
    scratch: tuple[Scalar, ...]
    panel: bool = False


def choose_layout(loop: KernelLoop, isa: str) -> Layout:
    if loop.scatters:
        return _scatter_layout(loop, isa)
    if any(s.fold in INDEXED for s in loop.statements):
        return Layout(None, 1, False, loop.kept, loop.inner, None, 1, ())
    axis = _lane_axis(loop)
    if axis is None:
        return Layout(None, 1, False, (), (), None, 1, ())
    lanes = _lanes(loop, isa, axis)
    column = bool(loop.folded) and axis not in loop.folded
    tiled = None if loop.folded else _tiled_axis(loop, axis)
    copies = _copies(loop, axis, lanes)
    if column:
        outer = tuple(a for a in loop.kept if a is not axis)
        wide = _is_panel(loop, axis, copies * lanes)
        return Layout(axis, lanes, True, outer, loop.inner, None, copies, (), wide)
    inner = [a for a in loop.inner if a is not axis]
    if tiled is not None:
        inner.append(tiled)
    inner.append(axis)
    outer = tuple(a for a in loop.kept if a not in inner and a is not loop.carried)
    scratch = _scratch(loop)
    return Layout(axis, lanes, False, outer, tuple(inner), tiled, copies, scratch)


def _scatter_layout(loop: KernelLoop, isa: str) -> Layout:
    """Points one after the other, as places may repeat, but for axes along which all places are
    apart: threads share those. The last axis is shared in blocks, and carries lanes where its
    places are neighbours in memory."""
    (s,) = loop.statements
    apart = [a for a in loop.axes if _apart(s, a)]
    axis = loop.axes[-1] if loop.axes else None
    neighbours = axis is not None and (
        ex.step(linear(s.index, loop.buffers[s.buffer].stride), axis) == 1
        and not any(varies(v, axis) for _, v in s.indirect)
    )
    shared = axis if neighbours or axis in apart else None
    outer = tuple(a for a in apart if a is not shared)
    inner = tuple(a for a in loop.axes if a not in outer)
    lanes = _lanes(loop, isa, axis) if neighbours and axis is not None else 1
    return Layout(shared, lanes, False, outer, inner, None, 1, ())


def _apart(s: Statement, axis: Sym) -> bool:
    """Whether points that differ along an axis never have one place: it is a coordinate itself."""
    return [e for e in s.index if any(x is axis for x in ex.symbols(e))] == [axis]


def accesses(loop: KernelLoop) -> Iterable[tuple[Expr, int]]:
    """Element offset of every load and store at inner points, with a weight in bytes."""
    for s in loop.statements:
        if not s.inner:
            continue
        if s.fold is None:
            argument = loop.buffers[s.buffer]
            yield linear(s.index, argument.stride), 2 * DTYPES[argument.dtype].size
        for load in lp.loads(s.value):
            argument = loop.buffers[load.buffer]
            yield linear(load.index, argument.stride), DTYPES[argument.dtype].size


def _lane_axis(loop: KernelLoop) -> Sym | None:
    """The axis along which most memory is contiguous; the last among equals."""
    best: tuple[float, int] | None = None
    choice: Sym | None = None
    reached = list(accesses(loop))
    heavy = any(s.fold in _HEAVY_SCANS for s in loop.statements)
    beside = heavy and any((extent_of(a) or _WIDE) >= _WIDE for a in loop.kept)
    last = max((i for i, a in enumerate(loop.axes) if a in loop.folded), default=-1)
    for position, axis in enumerate(loop.axes if loop.carried is None else loop.inner):
        if loop.scans and axis in loop.folded and (position != last or beside):
            continue  # a scan walks its axes in order, and a heavy one repeats its work for lanes
        score = 0.0
        for offset, size in reached:
            far = ex.step(offset, axis)
            if far != 0:
                score += size if far == 1 else -2 * size
        extent = extent_of(axis)
        if extent is not None and extent < 8:
            score -= 8 * (8 - extent)
        if best is None or (score, position) > best:
            best, choice = (score, position), axis
    return choice


def _is_panel(loop: KernelLoop, axis: Sym, strip: int) -> bool:
    """Whether one stage of folds over rows wider than a strip fits in arrays of results."""
    width = extent_of(axis)
    if loop.scans:
        return False
    later = any(s.inner and s.stage for s in loop.statements)
    if width is None or width <= strip or later or not any(a is not axis for a in loop.kept):
        return False
    return 2 * width * sum(DTYPES[d].size for d in loop.results.values()) <= _PANEL_BYTES


def _tiled_axis(loop: KernelLoop, lane_axis: Sym) -> Sym | None:
    """The axis along which accesses that jump along the lanes are contiguous."""
    weight: dict[Sym, int] = {}
    for offset, size in accesses(loop):
        if ex.step(offset, lane_axis) in (0, 1):
            continue
        for axis in loop.axes:
            if axis is not lane_axis and ex.step(offset, axis) == 1:
                weight[axis] = weight.get(axis, 0) + size
    large = [a for a in weight if (extent_of(a) or 64) >= 16]
    return max(large, key=lambda a: weight[a], default=None)


def _lanes(loop: KernelLoop, isa: str, axis: Sym) -> int:
    """How many lanes keep the widest value of the kernel within one register; indices that all
    lanes share do not count."""
    widest = 4
    narrowed: set[Scalar] = set()
    nodes = list(lp.walk(s.value for s in loop.statements))
    for node in nodes:
        if isinstance(node, Op) and node.name == "cast" and narrow_index(node) is not None:
            narrowed.add(node.args[0])
        if isinstance(node, Load):
            for _, index in node.indirect:
                if varies(index, axis):
                    widest = 8
                else:
                    narrowed.update(lp.walk((index,)))
    for node in nodes:
        if node not in narrowed:
            widest = max(widest, DTYPES[node.dtype].size)
    for dtype in loop.results.values():
        widest = max(widest, DTYPES[dtype].size)
    return _VECTOR_BYTES[isa] // widest


def _copies(loop: KernelLoop, axis: Sym, lanes: int) -> int:
    """Several independent partial results hide the latency of adding up."""
    if not loop.folded or (loop.scans and axis in loop.folded):
        return 1
    operations = sum(
        sum(isinstance(n, Op) for n in lp.walk((s.value,))) for s in loop.statements if s.inner
    )
    extent = extent_of(axis)
    if operations > _MAX_COPIED or (extent is not None and extent < _COPIES * lanes):
        return 1
    return _COPIES


def _scratch(loop: KernelLoop) -> tuple[Scalar, ...]:
    """Costly values of an early stage that later stages use again."""
    row = 1
    for axis in loop.inner:
        extent = extent_of(axis)
        if extent is None:
            return ()
        row *= extent
    inner_axes = set(loop.inner)
    early: set[Scalar] = set()
    found: dict[Scalar, None] = {}
    room = _SCRATCH_BYTES
    for stage in range(loop.stages):
        values = [
            s.value
            for s in loop.statements
            if s.inner and s.stage == stage and not (s.across and s.fold is None)
        ]
        for node in _maximal(values, early):
            size = row * DTYPES[node.dtype].size
            if _costs(node) and _varies(node, inner_axes) and size <= room and node.dtype != "bool":
                if node not in found:
                    room -= size
                found[node] = None
        early.update(lp.walk(values))
    return tuple(found)


def _maximal(values: list[Scalar], early: set[Scalar]) -> list[Scalar]:
    """The largest subtrees that were computed before."""
    found: list[Scalar] = []
    seen: set[Scalar] = set()
    stack = list(values)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in early and (isinstance(node, Op) or (isinstance(node, Load) and node.indirect)):
            found.append(node)
        else:
            stack.extend(lp.children(node))
    return found


def _costs(node: Scalar) -> bool:
    """Whether computing a value again costs more than keeping it: slow operations, gathers."""
    return any(
        (isinstance(n, Op) and n.name in _HEAVY) or (isinstance(n, Load) and bool(n.indirect))
        for n in lp.walk((node,))
    )


def _varies(node: Scalar, axes: set[Sym]) -> bool:
    for n in lp.walk((node,)):
        if isinstance(n, (Const, Reduced)):
            continue
        expressions = n.index if isinstance(n, Load) else (n.expr,) if isinstance(n, Index) else ()
        if any(s in axes for e in expressions for s in ex.symbols(e)):
            return True
    return False


def upper(axis: Sym) -> Expr:
    assert axis.upper is not None
    return axis.upper


def extent_of(axis: Sym) -> int | None:
    """The constant extent of an axis, else None."""
    return ex.as_int(upper(axis))
