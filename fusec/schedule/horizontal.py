"""Start small kernels that do not depend on each other as one.

Before: ``a1[i] = f(a0[i])``; ``b1[i] = f(b0[i])``: two kernels (an optimizer over many parameters,
the last step of two split reductions). After: where they are equal but for their buffers, and many,
a batch on a target that has those; else, where their loops are equal, one kernel that does both.
Only where a start is a good part of the time, nothing in between runs in ATen (what one of them
makes would have to live longer), and the kernel stays small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.loop import Compute, LoopProgram, Op
from fusec.schedule.cost import Machine, points
from fusec.schedule.dependencies import Dependencies
from fusec.schedule.group_key import group_key
from fusec.schedule.groups import Group, Schedule, Verdict
from fusec.schedule.kernel_loop import read_outside
from fusec.schedule.space import Space

_WORTH: Final = 0.05  # of a kernel's time must be its start
_MAX_OPERATIONS: Final = 240

_Place: TypeAlias = tuple[int, int]


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
) -> tuple[list[tuple[Group, ...]], list[Verdict]]:
    """See the module docstring. groups: in an executable order; stored: buffers that calls read or
    the program returns. The result, of which what is more than one group is a batch, is in no
    particular order."""
    home = {number: i for i, group in enumerate(groups) for number in group.members}
    places = _places(program, groups, dependencies, home)
    sizes = [_size(program, g, dependencies, stored, home, machine) for g in groups]
    batches = _batches(program, groups, places, sizes, machine)
    batched = {position for batch in batches for position in batch}
    open_at: dict[tuple[_Place, Space], int] = {}
    joined: list[Group] = []
    filled: list[_Size] = []
    verdicts: list[Verdict] = []
    for position, group in enumerate(groups):
        if position in batched:
            continue
        own = sizes[position]
        if group.space is not None and not _special(program, group):
            key = (places[position], group.space)
            other = open_at.get(key)
            if other is not None and _pays(group.space, filled[other], own, machine):
                first = joined[other]
                members = tuple(sorted((*first.members, *group.members)))
                joined[other] = Group(members, first.outer | group.outer, group.space)
                filled[other] += own
                why = "starts with it: equal loops"
                verdicts.append(Verdict(group.members[0], first.members[0], True, why))
                continue
            open_at[key] = len(joined)
        joined.append(group)
        filled.append(own)
    units = [tuple(groups[position] for position in batch) for batch in batches]
    return [*((group,) for group in joined), *units], verdicts


def _batches(
    program: LoopProgram,
    groups: tuple[Group, ...],
    places: Sequence[_Place],
    sizes: Sequence[_Size],
    machine: Machine,
) -> list[list[int]]:
    """Positions of groups that are equal but for their buffers, may start together and gain."""
    if not machine.batched:
        return []
    alike: dict[tuple[_Place, Space], list[int]] = {}
    for position, group in enumerate(groups):
        if (
            group.space is not None
            and _start(group.space, machine) >= _WORTH * sizes[position].moving
        ):
            alike.setdefault((places[position], group.space), []).append(position)
    many = [found for found in alike.values() if len(found) >= machine.batched]
    if not many:
        return []
    needed = read_outside(Schedule(program, groups, ()))
    batches: list[list[int]] = []
    for found in many:
        equal: dict[tuple[object, ...], list[int]] = {}
        for position in found:
            shape = group_key(program, groups[position], needed[position]).shape
            equal.setdefault(shape, []).append(position)
        batches += [same for same in equal.values() if len(same) >= machine.batched]
    return batches


def _only_overwrites(program: LoopProgram, group: Group) -> bool:
    steps = [program.steps[member] for member in group.members]
    return all(
        isinstance(s, Compute) and lp.overwrites_input(program.buffers, s.output) for s in steps
    )


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


def _places(
    program: LoopProgram,
    groups: tuple[Group, ...],
    dependencies: Dependencies,
    home: dict[int, int],
) -> list[_Place]:
    """How many calls come before each group, and how many groups lie on the longest way to it: what
    is at an equal place does not depend on each other, with no call in between. What waits for
    nothing and only overwrites inputs, as counters do, may start before all calls."""
    places: list[_Place] = []
    calls = 0
    for position, group in enumerate(groups):
        before = {home[b] for member in group.members for b in dependencies.before[member]}
        level = 1 + max((places[b][1] for b in before if b != position), default=-1)
        early = level == 0 and _only_overwrites(program, group)
        places.append((0 if early else calls, level))
        calls += group.space is None
    return places


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
        if not isinstance(step, Compute):
            return _Size(0, 0, 0.0)
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
    start = _start(space, machine)
    if space.reduces:  # rows of several kernels would crowd each other
        return not space.mixed and both.moving < start
    return start >= _WORTH * second.moving


def _start(space: Space, machine: Machine) -> float:
    """Nanoseconds to start a kernel."""
    parallel = points(space.sizes) >= machine.parallel_points
    return machine.parallel_start if parallel else machine.serial_start
