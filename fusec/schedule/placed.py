"""A group while it grows: immutable, shared between the states of a search."""

from __future__ import annotations

from typing import NamedTuple

from fusec.ir.loop import Compute, LoopProgram
from fusec.schedule.space import Space, merge, refine, refine_kept, space_of


class Placed(NamedTuple):
    """One group. ``space``: finest axes of its members; ``outer``: members at the kept axes alone;
    ``stages``: of each member, how many folds come before it; ``before``: bit set of groups that
    must run first; ``reads``: bytes by buffer taken from outside."""

    members: tuple[int, ...]
    outer: frozenset[int]
    space: Space
    stages: tuple[int, ...]
    before: int
    reads: dict[int, float]
    writes: frozenset[int]
    operations: int

    @staticmethod
    def of(program: LoopProgram, members: tuple[int, ...], outer: frozenset[int]) -> Space:
        """The space of a finished group."""
        space: Space | None = None
        for number in sorted(members, key=lambda m: m in outer):  # full members first
            step = program.steps[number]
            assert isinstance(step, Compute)
            if space is None:
                space = space_of(step)
            elif number in outer:
                kept = refine(space.kept(), space_of(step).sizes)
                assert kept is not None
                space = refine_kept(space, kept)
            else:
                space = merge(space, space_of(step))
                assert space is not None
        assert space is not None
        return space
