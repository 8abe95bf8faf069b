"""Put small kernels of equal loops that do not depend on each other into one.

Before: ``a1[i] = f(a0[i])``; ``b1[i] = f(b0[i])``: two kernels of the same loops (an optimizer over
many parameters, the last step of two split reductions). After: one kernel that does both, so that
starting it costs once. Only where a start is a good part of the time, nothing in between runs in
ATen (what one of them makes would have to live longer), and the kernel stays small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.loop import Compute, LoopProgram, Op
from fusec.schedule.cost import Machine, points
from fusec.schedule.dependencies import Dependencies
from fusec.schedule.groups import Group, Verdict
from fusec.schedule.space import Space

_WORTH: Final = 0.05  # of a kernel's time must be its start
_MAX_OPERATIONS: Final = 240


@dataclass(frozen=True, slots=True)
class _Size:
    """What a kernel holds: arrays read and written, operations, nanoseconds to move its bytes."""

    streams: int
    operations: int
    moving: float

    def __add__(self, other: _Size) -> _Size:
        return _Size(
            self.streams + other.streams,
            self.operations + other.operations,
            self.moving + other.moving,
        )


def join_alike(
    program: LoopProgram,
    groups: tuple[Group, ...],
    dependencies: Dependencies,
    stored: frozenset[int],
    machine: Machine,
) -> tuple[list[Group], list[Verdict]]:
    """See the module docstring. groups: in an executable order; stored: buffers that calls read or
    the program returns. The result is in no particular order."""
    home = {number: i for i, group in enumerate(groups) for number in group.members}
    level = _levels(groups, dependencies, home)
    open_at: dict[tuple[int, int, Space], int] = {}
    joined: list[Group] = []
    sizes: list[_Size] = []
    verdicts: list[Verdict] = []
    segment = 0
    for position, group in enumerate(groups):
        if group.space is None or _special(program, group):
            segment += group.space is None
            joined.append(group)
            sizes.append(_Size(0, 0, 0.0))
            continue
        own = _size(program, group, dependencies, stored, home, machine)
        key = (segment, level[position], group.space)
        other = open_at.get(key)
        if other is not None and _pays(group.space, sizes[other], own, machine):
            first = joined[other]
            members = tuple(sorted((*first.members, *group.members)))
            joined[other] = Group(members, first.outer | group.outer, group.space)
            sizes[other] += own
            why = "starts with it: equal loops"
            verdicts.append(Verdict(group.members[0], first.members[0], True, why))
            continue
        open_at[key] = len(joined)
        joined.append(group)
        sizes.append(own)
    return joined, verdicts


def _special(program: LoopProgram, group: Group) -> bool:
    """Whether a kernel holds what has a form of its own: scatters, scans, searches."""
    for member in group.members:
        step = program.steps[member]
        if isinstance(step, Compute):
            fold = step.reduction
            searches = fold is not None and fold.op in ("argmax", "argmin")
            if step.scatters or searches or (fold is not None and fold.scans):
                return True
    return False


def _levels(
    groups: tuple[Group, ...], dependencies: Dependencies, home: dict[int, int]
) -> list[int]:
    """How many groups lie on the longest way to each: equal levels do not depend on each other."""
    level: list[int] = []
    for position, group in enumerate(groups):
        before = {home[b] for member in group.members for b in dependencies.before[member]}
        level.append(1 + max((level[b] for b in before if b != position), default=-1))
    return level


def _size(
    program: LoopProgram,
    group: Group,
    dependencies: Dependencies,
    stored: frozenset[int],
    home: dict[int, int],
    machine: Machine,
) -> _Size:
    reads: set[int] = set()
    writes: set[int] = set()
    nodes: list[lp.Scalar] = []
    for member in group.members:
        step = program.steps[member]
        assert isinstance(step, Compute)
        reads |= dependencies.reads[member]
        writes.add(step.output)
        nodes.append(step.value)
    kept = {b for b in writes if b in stored or _read_elsewhere(b, group, dependencies, home)}
    operations = sum(isinstance(n, Op) for n in lp.walk(nodes))
    moved = sum(
        points(program.buffers[b].shape) * DTYPES[program.buffers[b].dtype].size
        for b in (reads - writes) | kept
    )
    return _Size(len(reads - writes) + len(kept), operations, moved / machine.memory_rate)


def _read_elsewhere(
    buffer: int, group: Group, dependencies: Dependencies, home: dict[int, int]
) -> bool:
    inside = set(group.members)
    return any(reader not in inside for reader in dependencies.readers.get(buffer, ()))


def _pays(space: Space, first: _Size, second: _Size, machine: Machine) -> bool:
    both = first + second
    if both.streams > machine.streams or both.operations > _MAX_OPERATIONS:
        return False
    parallel = points(space.sizes) >= machine.parallel_points
    start = machine.parallel_start if parallel else machine.serial_start
    if space.reduces:  # rows of several kernels would crowd each other
        return not space.mixed and both.moving < start
    return start >= _WORTH * second.moving
