"""The search over partitions: which computations share a kernel, weighed by a cost model.

Each region is partitioned on its own, by beam search: its computations are placed in program
order, each into a group where that is legal or into one of its own, and the cheapest few partial
partitions are kept. A value that several kernels need is stored once or computed again where that
is cheaper. Equal regions are searched once. Past a size the beam narrows to one, which is greedy
fusion: the time stays near-linear in the size of the program.

The model is not exact: partitions that cost about as much as the cheapest may be asked for instead
of it (``picks``), to be timed.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from fusec.errors import ScheduleError
from fusec.ir.loop import BufferView, Compute, LoopProgram, external_reads
from fusec.parts import Parts, finish
from fusec.schedule.cost import CPU, Machine
from fusec.schedule.dependencies import Dependencies, find_dependencies
from fusec.schedule.group_key import steps_key
from fusec.schedule.groups import Group, Schedule, Verdict
from fusec.schedule.horizontal import join_alike
from fusec.schedule.partition import Partition
from fusec.schedule.placed import Placed
from fusec.schedule.recompute import recompute
from fusec.schedule.region import Region
from fusec.schedule.regions import find_regions
from fusec.schedule.settled import Settled, Settling
from fusec.schedule.space import space_of

BEAM: Final = 6
MOST_NEAR: Final = 3  # partitions of a region that are worth timing
_NEAR: Final = 1.05  # times the cheapest
_FULL_BEAM: Final = 40  # computations in a region that gets the whole beam


@dataclass(frozen=True, slots=True)
class _Choice:
    """The partition found for a region, by position in the region."""

    groups: tuple[tuple[tuple[int, ...], frozenset[int]], ...]  # members, those at the outer level
    repeated: tuple[tuple[int, int], ...]  # (producer, reader): computed again in the reader
    verdicts: tuple[tuple[int, int, bool, str], ...]


def schedule(
    program: LoopProgram,
    *,
    fusion: bool = True,
    machine: Machine = CPU,
    beam: int = BEAM,
    picks: Sequence[int] = (),
) -> Schedule:
    """Partition the steps into groups and order them. picks: of each distinct region the number of
    its partition, of those that `Schedule.near` counts; the cheapest where there is none.

    Raises ScheduleError on a cyclic program."""
    work = schedule_in_parts(program, fusion=fusion, machine=machine, beam=beam, picks=picks)
    return finish(work)


def schedule_in_parts(
    program: LoopProgram,
    *,
    fusion: bool = True,
    machine: Machine = CPU,
    beam: int = BEAM,
    picks: Sequence[int] = (),
) -> Parts[Settled, Schedule]:
    """As `schedule`; its parts are groups that are final, each as soon as that is known, of equal
    regions only the first one's. The largest regions come first."""
    dependencies = find_dependencies(program)
    groups: list[Group] = []
    verdicts: list[Verdict] = []
    repeated: list[tuple[int, int]] = []
    for number, step in enumerate(program.steps):
        if not isinstance(step, Compute):
            groups.append(Group((number,), frozenset(), None))
        elif not fusion:
            groups.append(Group((number,), frozenset(), space_of(step)))
    near: tuple[int, ...] = ()
    if fusion:
        regions = find_regions(program, dependencies)
        always = _always_stored(program)
        stored = always | _read_across(program, dependencies, regions)
        overwritten = frozenset(b.base for b in program.buffers if b.kind == "alias")
        settling = Settling(program, dependencies, always)
        kinds: dict[tuple[object, ...], int] = {}  # of regions, in the order of the program
        kind = [
            kinds.setdefault(steps_key(program, region, stored).shape, len(kinds))
            for region in regions
        ]
        first: dict[int, list[int]] = {}  # of each kind
        for number, region in zip(kind, regions, strict=True):
            first.setdefault(number, region)
        found: dict[int, list[_Choice]] = {}
        for number, region in sorted(first.items(), key=lambda item: -len(item[1])):
            found[number] = _search(
                program, dependencies, region, stored, overwritten, machine, beam
            )
            choice = _picked(found[number], picks, number)
            if not choice.repeated:
                made = [_with_space(program, group) for group in _groups(choice, region)]
                yield from settling.settled(made)
        near = tuple(len(found[number]) for number in range(len(kinds)))
        for number, region in zip(kind, regions, strict=True):
            choice = _picked(found[number], picks, number)
            groups += _groups(choice, region)
            repeated += [(region[p], region[r]) for p, r in choice.repeated]
            verdicts += [Verdict(region[s], region[o], f, why) for s, o, f, why in choice.verdicts]
    if repeated:
        program, groups, numbers = recompute(program, groups, repeated)
        verdicts = [
            replace(v, step=numbers[v.step], other=numbers[v.other])
            for v in verdicts
            if v.step in numbers and v.other in numbers
        ]
        dependencies = find_dependencies(program)
    units = _ordered([(_with_space(program, g),) for g in groups if g.members], dependencies)
    if fusion:
        order = tuple(group for (group,) in units)
        started, why = join_alike(program, order, dependencies, _always_stored(program), machine)
        units = _ordered(started, dependencies)
        verdicts += why
    order = tuple(group for unit in units for group in unit)
    return Schedule(program, order, tuple(verdicts), _batches(units), near)


def _picked(found: list[_Choice], picks: Sequence[int], number: int) -> _Choice:
    """The partition of a distinct region that is asked for."""
    pick = picks[number] if number < len(picks) else 0
    return found[min(pick, len(found) - 1)]


def _groups(choice: _Choice, region: list[int]) -> list[Group]:
    """The groups of a region, without their spaces."""
    return [
        Group(tuple(region[m] for m in members), frozenset(region[m] for m in outer), None)
        for members, outer in choice.groups
    ]


def _batches(units: list[tuple[Group, ...]]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    position = 0
    for unit in units:
        if len(unit) > 1:
            found.append((position, position + len(unit)))
        position += len(unit)
    return tuple(found)


def _always_stored(program: LoopProgram) -> frozenset[int]:
    """Buffers that are read by a call or returned: always stored."""
    found: set[int] = {o.buffer for o in program.outputs if isinstance(o, BufferView)}
    for step in program.steps:
        if not isinstance(step, Compute):
            found.update(view.buffer for view in external_reads(step))
    found.update(i for i, b in enumerate(program.buffers) if b.kind == "alias")
    return frozenset(found)


def _search(
    program: LoopProgram,
    dependencies: Dependencies,
    region: list[int],
    stored: frozenset[int],
    overwritten: frozenset[int],
    machine: Machine,
    beam: int,
) -> list[_Choice]:
    """The cheapest partitions of a region that the beam finds, the very cheapest first."""
    position = {number: i for i, number in enumerate(region)}
    width = beam if len(region) <= _FULL_BEAM else 1
    searched = Region(program, dependencies, region, stored, overwritten, machine)
    states = [Partition(searched)]
    for number in region:
        moves = [move for state in states for move in state.place(number)]
        moves.sort(key=lambda move: move.time)
        states = [move.made() for move in moves[:width]]
    near = [state for state in states if sum(state.times) <= _NEAR * sum(states[0].times)]
    found: dict[object, _Choice] = {}
    for state in near:
        groups = tuple(
            (tuple(position[m] for m in g.members), frozenset(position[m] for m in g.outer))
            for g in state.groups
        )
        repeated = tuple((position[p], position[r]) for p, r in state.repeated)
        verdicts = tuple(
            (position[v.step], position[v.other], v.fused, v.reason) for v in state.verdicts()
        )
        found.setdefault(
            (frozenset(groups), frozenset(repeated)), _Choice(groups, repeated, verdicts)
        )
    return list(found.values())[:MOST_NEAR]


def _read_across(
    program: LoopProgram, dependencies: Dependencies, regions: list[list[int]]
) -> frozenset[int]:
    """Buffers that a computation of another region reads."""
    home = {number: i for i, region in enumerate(regions) for number in region}
    found: set[int] = set()
    for number, i in home.items():
        for buffer in dependencies.reads[number]:
            writer = dependencies.writer.get(buffer)
            if writer is not None and home.get(writer, i) != i:
                found.add(buffer)
    return frozenset(found)


def _with_space(program: LoopProgram, group: Group) -> Group:
    """The space of a group from its members, finest axes and all folds."""
    if not isinstance(program.steps[group.members[0]], Compute):
        return group
    placed = Placed.of(program, group.members, group.outer)
    return replace(group, space=placed)


def _ordered(units: list[tuple[Group, ...]], dependencies: Dependencies) -> list[tuple[Group, ...]]:
    """A topological order that keeps close to the program's own, of groups that start together."""
    members = [[number for group in unit for number in group.members] for unit in units]
    home = {number: i for i, found in enumerate(members) for number in found}
    waiting: list[set[int]] = [set() for _ in units]
    users: list[list[int]] = [[] for _ in units]
    for number, unit in home.items():
        for before in dependencies.before[number]:
            other = home[before]
            if other != unit and other not in waiting[unit]:
                waiting[unit].add(other)
                users[other].append(unit)
    last = [max(found) for found in members]
    ready = [(last[i], i) for i in range(len(units)) if not waiting[i]]
    heapq.heapify(ready)
    order: list[tuple[Group, ...]] = []
    while ready:
        _, number = heapq.heappop(ready)
        order.append(units[number])
        for user in users[number]:
            waiting[user].discard(number)
            if not waiting[user]:
                heapq.heappush(ready, (last[user], user))
    if len(order) != len(units):
        raise ScheduleError("the groups depend on each other in a circle")
    return order
