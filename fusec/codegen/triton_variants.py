"""The tiles that are worth trying for a kernel, the best guess first.

Guesses come from what the hardware wants: loads of 16 bytes a thread, a few thousand elements a
program, enough programs to fill the GPU, a row in registers where it fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from fusec.codegen.triton_order import accesses, contiguous_bytes
from fusec.codegen.triton_tile import FOLDED, Dim, Tile, extent
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Sym
from fusec.ir.kernel import KernelLoop, linear
from fusec.ir.loop import Load

MAX_VARIANTS: Final = 10
_ROW_BYTES: Final = 1 << 17  # of a row that a program keeps: half the registers there are
_IN_FLIGHT: Final = 128  # bytes that a thread asks for at once
_SHORT_ROW: Final = 1024  # shorter rows share a program
_TILE: Final = 2048  # elements of a program with short rows
_NARROW: Final = 16  # an axis too short for a side of a tile
_UNKNOWN: Final = 4096  # the guess for an extent known only at the call
_LANES: Final = 32
_ACCESS: Final = 16  # bytes that a thread reads or writes at once, at best
_THREADS: Final = 2048  # that a processor holds
_LONG_ROW: Final = 32 << 10  # bytes of a row that is worth loading while another is computed
_WALK_STAGES: Final = 3
_SHARED: Final = 216 << 10  # bytes of shared memory for rows on their way
_PROCESSORS: Final = 128  # of a GPU, about


def tiles(loop: KernelLoop) -> list[Tile]:
    """At least one, at most `MAX_VARIANTS`, all different."""
    if not loop.folded:
        found = _pointwise(loop)
    elif loop.carried is not None:
        found = _carried(loop, loop.carried)
    elif _is_column(loop):
        found = _columns(loop)
    else:
        found = _rows(loop)
    return list(dict.fromkeys(found))[:MAX_VARIANTS]


def _spread(found: Iterable[Tile]) -> Iterator[Tile]:
    """The best of the guesses that keep every processor busy comes first, or, where there is too
    little to do, the one with the most programs."""
    order = list(found)

    def busy(tile: Tile) -> int:
        programs = ex.as_int(tile.programs)
        return _PROCESSORS if programs is None else min(programs, _PROCESSORS)

    yield max(order, key=busy)
    yield from order


# -- pointwise -------------------------------------------------------------------------------------


def _pointwise(loop: KernelLoop) -> Iterator[Tile]:
    axes = loop.axes
    if not axes:
        yield Tile((), warps=1, stages=1)
        return
    lane = _fastest(loop, axes)
    other = _second(loop, lane)
    if other is not None:
        rest = tuple(a for a in axes if a not in (lane, other))
        for y, x, warps in (
            (32, 32, 4), (64, 64, 8), (32, 64, 4), (64, 32, 4), (64, 64, 4), (16, 64, 4),
            (128, 32, 8), (32, 128, 8), (128, 128, 8),
        ):  # fmt: skip
            yield Tile((_dim("y", (other,), y), _dim("x", (lane,), x)), rest, None, warps, 1)
        return
    yield from _spread(_flat(loop, axes))


def _flat(loop: KernelLoop, axes: tuple[Sym, ...]) -> Iterator[Tile]:
    """All axes as one dimension. Where there is work for everybody, a thread has enough for
    accesses of 16 bytes to the widest of what it walks along."""
    count = extent(axes) or 1 << 24
    walked = (size for offset, size in accesses(loop) if set(axes) <= set(ex.symbols(offset)))
    least = _ACCESS // max(walked, default=_ACCESS)
    if count < _PROCESSORS * _THREADS * _ACCESS:
        least = 1
    for block, warps in (
        (1024, 4), (2048, 8), (512, 4), (2048, 4), (1024, 8), (4096, 8), (512, 2), (256, 2),
    ):  # fmt: skip
        if block <= 2 * max(count, 128) and block // (warps * _LANES) >= least:
            yield Tile((_dim("x", axes, block),), (), None, warps, 1)
    if count < 128:
        yield Tile((_dim("x", axes, 128),), (), None, 4, 1)


def _fastest(loop: KernelLoop, axes: tuple[Sym, ...]) -> Sym:
    """The axis along which stores are contiguous; the last one where none are."""
    stores = [s for s in loop.statements if s.fold is None]
    for axis in reversed(axes):
        if (extent((axis,)) or _NARROW) >= _NARROW and any(
            ex.step(linear(s.index, loop.buffers[s.buffer].stride), axis) == 1 for s in stores
        ):
            return axis
    return axes[-1]


def _second(loop: KernelLoop, lane: Sym) -> Sym | None:
    """The axis along which accesses that jump along the lane axis are contiguous."""
    weight: dict[Sym, int] = {}
    for offset, size in accesses(loop):
        if ex.step(offset, lane) in (0, 1):
            continue
        for axis in loop.axes:
            if axis is not lane and ex.step(offset, axis) == 1:
                weight[axis] = weight.get(axis, 0) + size
    large = [a for a in weight if (extent((a,)) or _NARROW) >= _NARROW]
    if (extent((lane,)) or _NARROW) < _NARROW:
        return None
    return max(large, key=lambda a: weight[a], default=None)


# -- folds -----------------------------------------------------------------------------------------


def _is_column(loop: KernelLoop) -> bool:
    """Whether memory is contiguous along the kept axes, not along the folded ones."""
    if not loop.kept:
        return False
    along = contiguous_bytes(loop, loop.inner[-1])
    across = contiguous_bytes(loop, loop.kept[-1])
    return across > along and (extent((loop.kept[-1],)) or _NARROW) >= _NARROW


def _rows(loop: KernelLoop) -> Iterator[Tile]:
    count = extent(loop.inner)
    rows = extent(loop.kept) if loop.kept else 1
    width = _power(count if count is not None else _UNKNOWN)
    fits = count is not None and width <= _most_persistent(loop)
    if fits and width < _SHORT_ROW and loop.kept and rows != 1:
        yield from _spread(_short_rows(loop, width, rows))
        return
    if fits:
        guess = _warps(width // (16 if width < 32768 else 32))
        early = _loads_later(loop)
        one = Tile((Dim(FOLDED, loop.inner, width),), loop.kept, None, guess, 1, early)
        for warps in (guess, 2 * guess, guess // 2, guess // 4):
            if 1 <= warps <= 32 and width // (warps * _LANES) <= 256:
                yield replace(one, warps=warps)
        if early:
            yield replace(one, early=False)
            yield replace(one, early=False, warps=max(1, guess // 2))
        yield from _walkers(loop, one, rows)
        if width <= 4096 and (rows is None or rows > 1024):
            for x in (2, 4):
                dims = (Dim("x", loop.kept, x), Dim(FOLDED, loop.inner, width))
                if width * x <= 8192:
                    yield Tile(dims, (), None, min(16, guess * x), 1, early)
    if count is None or count > 4096:
        base = _block(loop)
        guesses = [
            (base, 8, 1), (base, 4, 1), (base // 2, 4, 1), (base // 2, 8, 3), (base // 2, 16, 1),
            (base // 2, 4, 3), (2 * base, 16, 1), (base, 32, 1),
            # One program a processor: few enough rows at once for the cache to hold them.
            (2 * base, 32, 1),
        ]  # fmt: skip
        if rows is not None and rows <= _PROCESSORS:  # each has a processor for itself
            guesses = [(4 * base, 16, 1), (base, 32, 1), *guesses]
        for block, warps, stages in dict.fromkeys(guesses):
            if block < 2 * width:
                dim = Dim(FOLDED, loop.inner, block, looped=True)
                yield Tile((dim,), loop.kept, None, warps, stages)


def _walkers(loop: KernelLoop, one: Tile, rows: int | None) -> Iterator[Tile]:
    """Few programs, each with one row in registers and the next ones on their way: for rows so
    long that the programs of a processor would load, compute and store in turn."""
    width = one.dims[0].block
    held = width * _row_bytes(loop) * (_WALK_STAGES - 1)
    if rows is None or not 8 * _PROCESSORS <= rows < 1 << 31:
        return
    if held > _SHARED or width * _row_bytes(loop) < _LONG_ROW:
        return
    walkers = min(4, _SHARED // held)
    for warps in (_warps(width // 32), _warps(width // 64)):
        yield replace(one, warps=warps, stages=_WALK_STAGES, early=False, walkers=walkers)


def _block(loop: KernelLoop) -> int:
    """How much of a row four warps take at once: some loads of 16 bytes a thread are on their
    way."""
    found = _IN_FLIGHT * 4 * _LANES // max(2, _row_bytes(loop))
    return max(1024, min(8192, _power(found + 1) // 2))


def _short_rows(loop: KernelLoop, width: int, rows: int | None) -> Iterator[Tile]:
    best = max(1, _TILE // width)
    most = _power(rows) if rows is not None else best * 4
    row = Dim(FOLDED, loop.inner, width)
    for x, warps in (
        (best, 4), (best // 2, 4), (2 * best, 8), (best // 4, 2), (4 * best, 8), (best // 2, 2),
        (best, 8),
    ):  # fmt: skip
        count = max(1, min(x, most))
        threads = max(1, min(warps, count * width // _LANES))
        if count == 1:
            yield Tile((row,), loop.kept, None, min(threads, 4), 1)
        else:
            yield Tile((Dim("x", loop.kept, count), row), (), None, threads, 1)


def _carried(loop: KernelLoop, axis: Sym) -> Iterator[Tile]:
    """A program walks down the carried axis with whole rows in registers."""
    width = _power(extent(loop.inner) or _UNKNOWN)
    single = tuple(a for a in loop.kept if a is not axis)
    rows = Dim(FOLDED, loop.inner, width)
    guess = _warps(width // 16)
    one = Tile((rows,), single, axis, guess, 3)
    several = [
        Tile((_dim("x", (axis,), x, looped=True), rows), single, None, 4, stages)
        for x, stages in ((_TILE // width, 2), (_TILE // width, 1), (2 * _TILE // width, 1))
        if x > 1
    ]
    if several and width < _SHORT_ROW:
        yield from several
    for warps, stages in (
        (guess, 3), (2 * guess, 3), (guess, 1), (guess // 2, 3), (2 * guess, 1), (guess, 2),
        (guess, 4), (guess // 2, 1),
    ):  # fmt: skip
        if 1 <= warps <= 32:
            yield replace(one, warps=warps, stages=stages)
    yield from several


def _columns(loop: KernelLoop) -> Iterator[Tile]:
    """Lanes along a kept axis: a strip of columns a program, down which it walks."""
    count = extent(loop.inner)
    height = _power(count if count is not None else _UNKNOWN)
    lane = loop.kept[-1]
    rest = loop.kept[:-1]
    wide = extent((lane,)) or _UNKNOWN
    for x, r, warps, stages in (
        (64, 64, 8, 1), (64, 32, 4, 1), (32, 64, 4, 1), (128, 32, 8, 1), (16, 128, 4, 1),
        (32, 64, 4, 4), (32, 128, 8, 1), (64, 32, 4, 3), (128, 64, 16, 1), (32, 32, 4, 1),
    ):  # fmt: skip
        if x >= 2 * _power(wide) and x > 16:
            continue
        if count is not None and height <= r:
            dims = (_dim("x", (lane,), x), Dim(FOLDED, loop.inner, height))
            yield Tile(dims, rest, None, min(warps, max(1, x * height // 64)), 1)
        else:
            dims = (_dim("x", (lane,), x), Dim(FOLDED, loop.inner, r, looped=True))
            yield Tile(dims, rest, None, warps, stages)


def _most_persistent(loop: KernelLoop) -> int:
    """How long a row may be to stay in registers, where all is computed as f32 at least."""
    held = sum(max(4, DTYPES[load.dtype].size) for load in _row_loads(loop))
    return max(_SHORT_ROW, _power(_ROW_BYTES // max(4, held) + 1) // 2)


def _row_bytes(loop: KernelLoop) -> int:
    """Bytes that are loaded for a point of a row."""
    return sum(DTYPES[loop.buffers[load.buffer].dtype].size for load in _row_loads(loop))


def _row_loads(loop: KernelLoop) -> list[Load]:
    """What is loaded anew at each point along the last folded axis."""
    loads = {n: None for s in loop.statements if s.inner for n in lp.loads(s.value)}
    last = loop.inner[-1]
    return [n for n in loads if any(x is last for e in n.index for x in ex.symbols(e))]


def _loads_later(loop: KernelLoop) -> bool:
    """Whether a later stage loads what the first does not, directly."""
    first = {n for s in loop.statements if s.stage == 0 for n in lp.walk((s.value,))}
    return any(
        isinstance(n, Load) and not n.indirect and n not in first
        for s in loop.statements
        if s.stage > 0
        for n in lp.walk((s.value,))
    )


def _dim(name: str, axes: tuple[Sym, ...], block: int, *, looped: bool = False) -> Dim:
    """A dimension whose block is not much longer than the axes."""
    count = extent(axes)
    return Dim(name, axes, block if count is None else min(block, _power(count)), looped)


def _warps(threads_of_32: int) -> int:
    return max(1, min(32, _power(max(1, threads_of_32 // _LANES))))


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << max(0, number - 1).bit_length()
