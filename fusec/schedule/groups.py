"""Groups: the computations that become one kernel, and why others did not join them."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.ir.loop import Compute, External, LoopProgram
from fusec.schedule.space import Space


@dataclass(frozen=True, slots=True)
class Group:
    """``members`` are step numbers in order; ``outer`` those that run once a kept point, after or
    before the folded axes. A group without a space is one external call."""

    members: tuple[int, ...]
    outer: frozenset[int]
    space: Space | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why ``step`` did, or did not, join the kernel of ``other``."""

    step: int
    other: int
    fused: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """Groups in an executable order over the steps of ``program``. ``batches``: first and last
    position (exclusive) of neighbours that are equal but for their buffers and do not depend on
    each other, where starting them is a good part of their time. ``near``: of each distinct region,
    in the order of the program, how many partitions were found that cost about the same."""

    program: LoopProgram
    groups: tuple[Group, ...]
    verdicts: tuple[Verdict, ...]
    batches: tuple[tuple[int, int], ...] = ()
    near: tuple[int, ...] = ()


def computes(program: LoopProgram, group: Group) -> list[Compute]:
    """The computations of a group. Raises TypeError for an external call."""
    found = []
    for number in group.members:
        step = program.steps[number]
        if isinstance(step, External):
            raise TypeError(f"step {number} is an external call")
        found.append(step)
    return found
