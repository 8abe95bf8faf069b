"""Groups that are final before the whole schedule is: there can be code for them at once.

Once its region has been partitioned, all that may still change a group is that it starts as one
with others (`fusec.schedule.horizontal`): groups of equal loops at an equal place, so none that
have to run before or after it. Where no computation of the program could be in such a group it is
settled. A region in which values are computed again is left to the end: its computations change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusec.ir import expr as ex
from fusec.ir.loop import Compute, LoopProgram
from fusec.schedule.dependencies import Dependencies
from fusec.schedule.groups import Group
from fusec.schedule.space import Space, space_of


@dataclass(frozen=True, slots=True)
class Settled:
    """A group of a program as it will be in the schedule, and the buffers that it stores."""

    program: LoopProgram
    group: Group
    needed: frozenset[int]


class Settling:
    """stored: buffers that are always stored, whoever reads them."""

    def __init__(
        self, program: LoopProgram, dependencies: Dependencies, stored: frozenset[int]
    ) -> None:
        self._program = program
        self._readers = dependencies.readers
        self._stored = stored
        self._ordered = _ordered(dependencies.before)
        self._alike: dict[int | None, int] = {}  # bit set of computations, by their points
        for number, step in enumerate(program.steps):
            if isinstance(step, Compute):
                points = _points(space_of(step))
                self._alike[points] = self._alike.get(points, 0) | 1 << number

    def settled(self, groups: Sequence[Group]) -> list[Settled]:
        """Those groups of a partitioned region that are final, the largest first."""
        found = [
            Settled(self._program, group, needed)
            for group in groups
            if self._starts_alone(group) and (needed := self._needed(group)) is not None
        ]
        return sorted(found, key=lambda one: -len(one.group.members))

    def _starts_alone(self, group: Group) -> bool:
        assert group.space is not None
        before_or_after = 0
        for member in group.members:
            before_or_after |= self._ordered[member] | 1 << member
        # Loops are equal only where there are as many points; unknown sizes may all be equal.
        return not self._alike.get(_points(group.space), 0) & ~before_or_after

    def _needed(self, group: Group) -> frozenset[int] | None:
        """What the group stores; None where it makes something that nothing uses."""
        needed: set[int] = set()
        for member in group.members:
            step = self._program.steps[member]
            assert isinstance(step, Compute)
            readers = self._readers.get(step.output, ())
            if step.output in self._stored or not all(r in group.members for r in readers):
                needed.add(step.output)
            elif not readers:
                return None
        return frozenset(needed)


def _ordered(before: Sequence[frozenset[int]]) -> list[int]:
    """For each step the bit set of those that have to run before or after it."""
    earlier: list[int] = []
    for number, direct in enumerate(before):
        earlier.append(0)
        for other in direct:
            earlier[number] |= earlier[other] | 1 << other
    later = [0] * len(before)
    for number in range(len(before) - 1, -1, -1):
        for other in before[number]:
            later[other] |= later[number] | 1 << number
    return [a | b for a, b in zip(earlier, later, strict=True)]


def _points(space: Space) -> int | None:
    """Of all axes; None where that is not known."""
    return ex.as_int(ex.product(space.sizes))
