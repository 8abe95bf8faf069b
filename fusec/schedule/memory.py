"""The memory plan: which slot each buffer gets, and when it is free for others.

Buffers of known size that do not leave the program share one arena: first fit over a free list, in
the order of the steps, so that memory is used again as soon as its last reader is done. What is
returned is a fresh tensor, and so is what has a size known only at the call. On a GPU so is what is
large, given back after its last reader: a returned tensor may then lie where it lay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr
from fusec.ir.loop import Buffer, BufferView, LoopProgram
from fusec.ir.program import Slot


@dataclass(frozen=True, slots=True)
class Use:
    """One step's buffers: ``makes`` before it runs, ``reads`` while it runs. ``calls``: its results
    are tensors that the call itself allocates. ``in_place``: (made, read) pairs of buffers of which
    the first may take the memory of the second, if that is dead afterwards."""

    makes: tuple[int, ...]
    reads: tuple[int, ...]
    calls: bool = False
    in_place: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """``slots`` by buffer number; ``homes``: for buffers without one, the buffer in whose slot they
    are; ``free[i]``: buffers whose tensors die after step i."""

    slots: dict[int, Slot]
    homes: dict[int, int]
    free: tuple[tuple[int, ...], ...]
    arena_bytes: int


class _FreeList:
    """Byte ranges of the arena, first fit, neighbours joined, each a multiple of ``alignment``."""

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment
        self.gaps: list[tuple[int, int]] = []  # (start, end), sorted
        self.end = 0

    def _round(self, size: int) -> int:
        return max(-(-size // self.alignment), 1) * self.alignment

    def take(self, size: int) -> int:
        size = self._round(size)
        best: tuple[int, int] | None = None
        for position, (start, end) in enumerate(self.gaps):
            room = end - start
            if room >= size and (best is None or room < best[0]):
                best = (room, position)
        if best is not None:
            position = best[1]
            start, end = self.gaps[position]
            self.gaps[position : position + 1] = [(start + size, end)] if end - start > size else []
            return start
        if self.gaps and self.gaps[-1][1] == self.end:  # grow the gap at the end
            start, _ = self.gaps.pop()
        else:
            start = self.end
        self.end = start + size
        return start

    def give(self, start: int, size: int) -> None:
        self.gaps.append((start, start + self._round(size)))
        self.gaps.sort()
        joined: list[tuple[int, int]] = []
        for gap in self.gaps:
            if joined and joined[-1][1] == gap[0]:
                joined[-1] = (joined[-1][0], gap[1])
            else:
                joined.append(gap)
        self.gaps = joined


def plan_memory(
    program: LoopProgram, uses: Iterable[Use], alignment: int = 64, own_bytes: int | None = None
) -> MemoryPlan:
    """Slots for all buffers that the steps ``uses`` (in order) make or read. alignment: bytes, of
    every place in the arena. own_bytes: buffers from that size on are not in the arena.

    A result that a step may put where something lies that it is the last to read (`Use.in_place`)
    goes there and gets no slot, and so does what a scatter makes of a temp.
    """
    steps = list(uses)
    homes = _overwritten_temps(program)
    returned = {homes.get(o.buffer, o.buffer) for o in program.outputs if isinstance(o, BufferView)}
    last = _last_use(program, steps)
    _take_over(program, steps, homes, returned, last)
    slots: dict[int, Slot] = {}
    for position, taken in enumerate(program.inputs):
        if isinstance(taken, int):
            slots[taken] = _slot("input", position, program.buffers[taken])
    arena = _FreeList(alignment)
    dying: dict[int, list[int]] = {}
    for buffer, step in last.items():
        dying.setdefault(step, []).append(buffer)
    free: list[tuple[int, ...]] = []
    for number, use in enumerate(steps):
        for buffer in (b for b in use.makes if b not in homes):
            fresh = buffer in returned or _is_large(program.buffers[buffer], own_bytes)
            slots[buffer] = _place(program, buffer, use, arena, fresh)
        dead = []
        for buffer in sorted(dying.get(number, ())):
            slot = slots.get(buffer)
            if slot is None or buffer in returned:
                continue
            if slot.kind == "arena":
                arena.give(slot.number, _bytes(program.buffers[buffer]) or 0)
            elif slot.kind in ("fresh", "result"):
                dead.append(buffer)
        free.append(tuple(dead))
    return MemoryPlan(slots, homes, tuple(free), arena.end)


def _overwritten_temps(program: LoopProgram) -> dict[int, int]:
    """For each buffer that overwrites a temp, that temp."""
    return {
        number: found.base
        for number, found in enumerate(program.buffers)
        if found.kind == "alias" and not lp.overwrites_input(program.buffers, number)
    }


def _take_over(
    program: LoopProgram,
    steps: list[Use],
    homes: dict[int, int],
    returned: set[int],
    last: dict[int, int],
) -> None:
    """Put results where dying buffers lie: adds to ``homes``, moves what is ``returned`` and what
    the ``last`` use is to the buffers that lend their memory."""
    by_calls = {b for use in steps if use.calls for b in use.makes}
    made = {b for use in steps for b in use.makes}
    for number, use in enumerate(steps):
        for out, read in use.in_place:
            old = homes.get(read, read)
            if out in homes or program.buffers[out].kind != "temp" or old in returned:
                continue
            # Memory that the program allocates itself, that nobody needs after this step.
            if old not in made or old in by_calls or last.get(old) != number:
                continue
            if not _alike(program.buffers[out], program.buffers[old]):
                continue
            homes[out] = old
            homes.update({b: old for b, home in homes.items() if home == out})
            last[old] = max(number, last.pop(out, number))
            if out in returned:
                returned.add(old)


def _alike(a: Buffer, b: Buffer) -> bool:
    """Whether buffers have one element type and one size, and no room between elements."""
    if a.dtype != b.dtype or b.kind != "temp":
        return False
    return _dense(a) and _dense(b) and ex.product(a.shape) is ex.product(b.shape)


def _dense(buffer: Buffer) -> bool:
    """Whether the elements fill their memory; False where that is not known."""
    expected: Expr = ex.ONE
    known = [(s, n) for n, s in zip(buffer.shape, buffer.stride, strict=True) if n is not ex.ONE]
    numbers = [ex.as_int(s) for s, _ in known]
    if None not in numbers:
        known.sort(key=lambda pair: ex.as_int(pair[0]) or 0)
    else:
        known.reverse()
    for stride, extent in known:
        if stride is not expected:
            return False
        expected = expected * extent
    return True


def _last_use(program: LoopProgram, steps: list[Use]) -> dict[int, int]:
    last: dict[int, int] = {}
    for number, use in enumerate(steps):
        for buffer in (*use.makes, *use.reads):
            found = program.buffers[buffer]
            last[found.base if found.kind == "alias" else buffer] = number
    return last


def _place(program: LoopProgram, buffer: int, use: Use, arena: _FreeList, fresh: bool) -> Slot:
    found = program.buffers[buffer]
    if found.kind == "alias":
        return _slot("alias", found.base, found)
    if use.calls:
        return _slot("result", 0, found)
    size = _bytes(found)
    if fresh or size is None:
        return _slot("fresh", 0, found)
    return _slot("arena", arena.take(size), found)


def _is_large(buffer: Buffer, own_bytes: int | None) -> bool:
    size = _bytes(buffer)
    return own_bytes is not None and size is not None and size >= own_bytes


def _slot(kind: str, number: int, buffer: Buffer) -> Slot:
    return Slot(kind, number, buffer.dtype, buffer.shape, buffer.stride)


def _bytes(buffer: Buffer) -> int | None:
    """Bytes; None for a size that holds symbols."""
    size = DTYPES[buffer.dtype].size
    for extent in buffer.shape:
        number = ex.as_int(extent)
        if number is None:
            return None
        size *= number
    return size
