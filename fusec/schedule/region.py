"""A region as a search has it: its computations, and what was found out of groups of them.

Equal groups grow in many partitions of a beam, so what is known of one is kept.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.loop import Compute, LoopProgram
from fusec.schedule.cost import Machine, step_facts
from fusec.schedule.dependencies import Dependencies
from fusec.schedule.group_times import GroupTimes
from fusec.schedule.legality import Rules
from fusec.schedule.placed import Placed
from fusec.schedule.space import Space

_MOST_MET: Final = 4  # buffers
_SHARED: Final = 16  # points that share what they read, so that it comes from the cache

Fit: TypeAlias = tuple[Space, bool]
"""The space of a group with one more computation, and whether that runs over kept axes only."""


class Region:
    """members: step numbers, in order; stored: buffers that leave the region; overwritten: inputs
    that the program changes."""

    def __init__(
        self,
        program: LoopProgram,
        dependencies: Dependencies,
        members: list[int],
        stored: frozenset[int],
        overwritten: frozenset[int],
        machine: Machine,
    ) -> None:
        self.program = program
        self.dependencies = dependencies
        self.stored = stored
        self.overwritten = overwritten
        self.steps: dict[int, Compute] = {}
        for number in members:
            step = program.steps[number]
            assert isinstance(step, Compute)
            self.steps[number] = step
        self.facts = {number: step_facts(program, step) for number, step in self.steps.items()}
        self.rules = Rules(program, dependencies, machine)
        self.times = GroupTimes(self.steps, self.facts, dependencies, stored, machine)
        self._fits: dict[tuple[object, ...], tuple[str, Fit | None]] = {}
        self._shared: dict[int, frozenset[int]] = {}
        self._met: dict[int, frozenset[int]] = {}
        self._repeatable: dict[tuple[int, int], bool] = {}

    def fit(self, group: Placed, number: int) -> tuple[str, Fit | None]:
        """`Rules.fit` of a computation."""
        key = (group.members, group.outer, number)
        found = self._fits.get(key)
        if found is None:
            found = self._fits[key] = self.rules.fit(group, number, self.steps[number])
        return found

    def shared(self, number: int) -> frozenset[int]:
        """Buffers that it is good to read together with a computation that reads them: no single
        numbers, by which nothing is saved."""
        found = self._shared.get(number)
        if found is None:
            buffers = self.program.buffers
            found = self._shared[number] = frozenset(
                b
                for b in self.dependencies.reads[number]
                if any(n is not ex.ONE for n in buffers[b].shape)
            )
        return found

    def met(self, number: int) -> frozenset[int]:
        """Buffers that a later computation reads together with this one's result: all of them are
        in one kernel only if their makers are. What reads many (the norm of all gradients) is no
        reason to make them all in one."""
        found = self._met.get(number)
        if found is None:
            made = self.steps[number].output
            readers = [r for r in self.dependencies.readers.get(made, ()) if r in self.steps]
            reads = (self.dependencies.reads[r] for r in readers)
            few = (buffers for buffers in reads if len(buffers) <= _MOST_MET)
            found = self._met[number] = frozenset[int]().union(*few) - {made}
        return found

    def repeatable(self, producer: int, reader: int) -> bool:
        """Whether a computation's value can be computed again in a reader, and may be worth it."""
        key = (producer, reader)
        found = self._repeatable.get(key)
        if found is None:
            found = self._repeatable[key] = self._may_repeat(producer, reader)
        return found

    def _may_repeat(self, producer: int, reader: int) -> bool:
        step, user, facts = self.steps[producer], self.steps[reader], self.facts[producer]
        if step.reduction is not None:
            return False
        if any(load.indirect and load.buffer == step.output for load in lp.loads(user.value)):
            return False  # at places known at run time only: written out, they would be unbound
        buffers = {load.buffer for load in lp.loads(step.value)}
        if buffers & self.overwritten or self.program.buffers[user.output].kind == "alias":
            return False
        large = facts.result_bytes / _SHARED
        return sum(size > large for size in facts.reads.values()) <= 3
