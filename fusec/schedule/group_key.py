"""The shape of a group without its numbers: equal groups of a program are compiled once.

Two groups with equal keys hold the same computations over buffers of the same layouts; only the
buffers' numbers differ, in the same order. 32 identical layers make 32 groups and one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fusec.ir import loop as lp
from fusec.ir.loop import Compute, Const, Index, Load, LoopProgram, Op, Scalar
from fusec.schedule.groups import Group

_Number: TypeAlias = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class GroupKey:
    """``shape`` is hashable and the same for equal groups; ``buffers`` in their common order."""

    shape: tuple[object, ...]
    buffers: tuple[int, ...]


def group_key(program: LoopProgram, group: Group, needed: Collection[int]) -> GroupKey:
    """The key of a group of computations that stores the buffers ``needed``."""
    key = steps_key(program, group.members, needed)
    outer = tuple(number in group.outer for number in group.members)
    return GroupKey((group.space, outer, *key.shape), key.buffers)


def steps_key(program: LoopProgram, members: Sequence[int], needed: Collection[int]) -> GroupKey:
    """The key of computations, in order, of which the buffers ``needed`` are stored."""
    numbers: dict[int, int] = {}
    entries: list[object] = []
    known: dict[Scalar, int] = {}

    def number(buffer: int) -> int:
        if buffer not in numbers:
            numbers[buffer] = len(numbers)
            found = program.buffers[buffer]
            base = number(found.base) if found.kind == "alias" else -1
            entries.append((found.dtype, found.shape, found.stride, base))
        return numbers[buffer]

    for position in members:
        step = program.steps[position]
        assert isinstance(step, Compute)
        for node in lp.walk((step.value,)):
            if node not in known:
                known[node] = len(known)
                entries.append(_entry(node, known, number))
        entries.append(_member(step, step.output in needed, known, number))
    return GroupKey(tuple(entries), tuple(numbers))


def _member(
    step: Compute, stored: bool, known: dict[Scalar, int], number: _Number
) -> tuple[object, ...]:
    return (step.axes, step.reduction, stored, known[step.value], number(step.output))


def _entry(node: Scalar, known: dict[Scalar, int], number: _Number) -> tuple[object, ...]:
    if isinstance(node, Load):
        bound = tuple((s, known[v]) for s, v in node.indirect)
        return ("load", number(node.buffer), node.index, node.guard, bound)
    if isinstance(node, Op):
        return (node.name, node.dtype, *(known[a] for a in node.args))
    if isinstance(node, Index):
        return ("index", node.dtype, node.expr)
    assert isinstance(node, Const)
    return ("const", *node.key)
