"""Bytes that kernels, library calls and lone operations move, and the most that a plan holds.

Sizes that are symbols are read from the values given. A load counts the elements that it can
reach once, however often the loops come back to them: what caches keep is not counted again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr, Sym
from fusec.ir.graph import Graph, Ref, TensorType, ValueType, node_refs
from fusec.ir.loop import BufferView, Compute, External, Load, LoopProgram
from fusec.ir.program import Call, Launch, Program, Slot
from fusec.schedule.groups import Group

Sizes = Mapping[str, int]

# Operations that read of their first argument only what they give.
_GATHERS: Final = re.compile(r"aten\.(embedding|index|index_select|gather|take|take_along_dim)\.")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes read and written, and by buffer of the loop program."""

    reads: Mapping[int, int]
    writes: Mapping[int, int]

    @property
    def read(self) -> int:
        return sum(self.reads.values())

    @property
    def written(self) -> int:
        return sum(self.writes.values())


@dataclass(frozen=True, slots=True)
class Peak:
    """Bytes that a run of a program holds beside its inputs. ``peak``: scratch memory and what is
    alive at once of the tensors made beside it; ``returned``: of those, what the caller gets."""

    arena: int
    peak: int
    returned: int


def group_traffic(
    program: LoopProgram, group: Group, stored: Iterable[int], sizes: Sizes
) -> Traffic:
    """What the kernel of a group moves; ``stored``: buffers it makes that others read."""
    made: set[int] = set()
    reads: dict[int, int] = {}
    writes: dict[int, int] = {}
    kept = set(stored)
    for number in group.members:
        step = program.steps[number]
        assert isinstance(step, Compute)
        for load in lp.loads(step.value):
            if load.buffer not in made:
                reach = _reach(load, sizes) * _item(program, load.buffer)
                whole = buffer_bytes(program, load.buffer, sizes)
                reads[load.buffer] = min(reads.get(load.buffer, 0) + reach, whole)
        made.add(step.output)
        if step.output in kept:
            points = _product((a.upper for a in step.axes), sizes)
            writes[step.output] = points * _item(program, step.output)
    return Traffic(reads, writes)


def call_traffic(program: LoopProgram, step: External, sizes: Sizes) -> Traffic:
    """What a library call moves: each argument read once, each result written once."""
    reads: dict[int, int] = {}
    for view in lp.external_reads(step):
        size = _view_bytes(program, view, sizes)
        whole = buffer_bytes(program, view.buffer, sizes)
        reads[view.buffer] = min(reads.get(view.buffer, 0) + size, whole)
    outputs = [o for o in step.outputs if o is not None]
    return Traffic(reads, {o: buffer_bytes(program, o, sizes) for o in outputs})


def lone_bytes(graph: Graph, index: int, sizes: Sizes) -> int:
    """What one operation of a graph moves when it runs alone: inputs read, outputs written."""
    node = graph.nodes[index]
    made = _type_bytes(node.type, sizes)
    read = {r: _type_bytes(graph.nodes[r].type, sizes) for r in node_refs(node)}
    if _GATHERS.match(node.target) and isinstance(node.args[0], Ref):
        source = node.args[0].index
        read[source] = min(read[source], made)
    return made + sum(read.values())


def buffer_bytes(program: LoopProgram, buffer: int, sizes: Sizes) -> int:
    return _product(program.buffers[buffer].shape, sizes) * _item(program, buffer)


def program_peak(program: Program, sizes: Sizes) -> Peak:
    """See `Peak`. Results of calls count from the call on, tensors of kernels from the launch."""
    outputs = {o.buffer for o in program.outputs if isinstance(o, BufferView)}
    alive: dict[int, int] = {}
    peak = 0
    for step in program.steps:
        for number in _makes(step):
            slot = program.slots[number]
            if slot.kind in ("fresh", "result"):
                alive[number] = _slot_bytes(slot, sizes)
        peak = max(peak, sum(alive.values()))
        for number in step.free:
            alive.pop(number, None)
    returned = sum(size for number, size in alive.items() if number in outputs)
    return Peak(program.arena_bytes, program.arena_bytes + peak, returned)


def _makes(step: Launch | Call) -> Iterable[int]:
    if isinstance(step, Launch):
        return step.slots
    return (o for o in step.outputs if o is not None)


def _reach(load: Load, sizes: Sizes) -> int:
    """How many elements a load can touch: the product of the loops that its place depends on."""
    axes: dict[Sym, None] = {}
    bound = {symbol for symbol, _ in load.indirect}
    for e in load.index:
        for symbol in ex.symbols(e):
            if symbol not in bound and symbol.name not in sizes:
                axes[symbol] = None
    for _, value in load.indirect:
        for inner in lp.loads(value):
            for e in inner.index:
                axes.update(dict.fromkeys(s for s in ex.symbols(e) if s.name not in sizes))
    return _product((a.upper for a in axes if a.upper is not None), sizes)


def _view_bytes(program: LoopProgram, view: BufferView, sizes: Sizes) -> int:
    extents = [n for n, s in zip(view.shape, view.stride, strict=True) if s is not ex.ZERO]
    return _product(extents, sizes) * _item(program, view.buffer)


def _type_bytes(kind: ValueType, sizes: Sizes) -> int:
    if isinstance(kind, tuple):
        return sum(_type_bytes(part, sizes) for part in kind)
    if not isinstance(kind, TensorType):
        return 0
    extents = [n for n, s in zip(kind.shape, kind.stride, strict=True) if s is not ex.ZERO]
    return _product(extents, sizes) * DTYPES[kind.dtype].size


def _slot_bytes(slot: Slot, sizes: Sizes) -> int:
    return _product(slot.shape, sizes) * DTYPES[slot.dtype].size


def _item(program: LoopProgram, buffer: int) -> int:
    return DTYPES[program.buffers[buffer].dtype].size


def _product(extents: Iterable[Expr | None], sizes: Sizes) -> int:
    result = 1
    for extent in extents:
        if extent is not None:
            result *= ex.evaluate(extent, sizes)
    return result
