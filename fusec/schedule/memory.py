"""The memory plan: which slot each buffer gets, and when it is free for others.

Buffers of known size that do not leave the program share one arena: first fit over a free list, in
the order of the steps, so that memory is used again as soon as its last reader is done. What is
returned is a fresh tensor, and so is what has a size known only at the call.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.loop import Buffer, BufferView, LoopProgram
from fusec.ir.program import Slot


@dataclass(frozen=True, slots=True)
class Use:
    """One step's buffers: ``makes`` before it runs, ``reads`` while it runs. ``calls``: its results
    are tensors that the call itself allocates."""

    makes: tuple[int, ...]
    reads: tuple[int, ...]
    calls: bool = False


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """``slots`` by buffer number; ``free[i]``: buffers whose tensors die after step i."""

    slots: dict[int, Slot]
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


def plan_memory(program: LoopProgram, uses: Iterable[Use], alignment: int = 64) -> MemoryPlan:
    """Slots for all buffers that the steps ``uses`` (in order) make or read. alignment: bytes, of
    every place in the arena.

    What a scatter makes of a temp lies where the temp does and gets no slot (`home`).
    """
    steps = list(uses)
    returned = {home(program, o.buffer) for o in program.outputs if isinstance(o, BufferView)}
    last = _last_use(program, steps)
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
        for buffer in (b for b in use.makes if home(program, b) == b):
            slots[buffer] = _place(program, buffer, use, arena, returned)
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
    return MemoryPlan(slots, tuple(free), arena.end)


def home(program: LoopProgram, buffer: int) -> int:
    """The buffer whose slot a buffer has: its own, or that of the temp which it overwrites."""
    found = program.buffers[buffer]
    in_temp = found.kind == "alias" and not lp.overwrites_input(program.buffers, buffer)
    return found.base if in_temp else buffer


def _last_use(program: LoopProgram, steps: list[Use]) -> dict[int, int]:
    last: dict[int, int] = {}
    for number, use in enumerate(steps):
        for buffer in (*use.makes, *use.reads):
            found = program.buffers[buffer]
            last[found.base if found.kind == "alias" else buffer] = number
    return last


def _place(
    program: LoopProgram, buffer: int, use: Use, arena: _FreeList, returned: set[int]
) -> Slot:
    found = program.buffers[buffer]
    if found.kind == "alias":
        return _slot("alias", found.base, found)
    if use.calls:
        return _slot("result", 0, found)
    size = _bytes(found)
    if buffer in returned or size is None:
        return _slot("fresh", 0, found)
    return _slot("arena", arena.take(size), found)


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
