"""Which computations can share a kernel, and why not: loops, points, stages, overwriting."""

from __future__ import annotations

from dataclasses import dataclass, field

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr
from fusec.ir.kernel import linear
from fusec.ir.loop import Compute, LoopProgram, Step
from fusec.schedule.cost import Machine
from fusec.schedule.dependencies import Dependencies
from fusec.schedule.placed import Placed
from fusec.schedule.space import (
    Space,
    folds_across,
    merge,
    place,
    refine,
    refine_kept,
    space_of,
    spread,
)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for the computations of one program on one target."""

    program: LoopProgram
    dependencies: Dependencies
    machine: Machine
    spaces: dict[int, Space] = field(default_factory=dict)
    places: dict[tuple[int, Space, bool], dict[Expr, Expr]] = field(default_factory=dict)

    def space(self, number: int) -> Space:
        """`space_of` a step."""
        found = self.spaces.get(number)
        if found is None:
            step = self.program.steps[number]
            assert isinstance(step, Compute)
            found = self.spaces[number] = space_of(step)
        return found

    def _place(self, number: int, step: Compute, space: Space, outer: bool) -> dict[Expr, Expr]:
        """`place` of a step."""
        key = (number, space, outer)
        found = self.places.get(key)
        if found is None:
            found = self.places[key] = place(step, space, outer=outer)
        return found

    def fit(
        self, group: Placed, number: int, step: Compute
    ) -> tuple[str, tuple[Space, bool] | None]:
        """The merged space and whether the step runs over kept axes only, or why they cannot share
        a kernel."""
        first = self.program.steps[group.members[0]]
        if step.scatters or (isinstance(first, Compute) and first.scatters):
            return "a scatter is a kernel of its own", None
        fit = _fit(group.space, step, self.space(number))
        if fit is None:
            return f"loops differ: {group.space} and {self.space(number)}", None
        if not fit[1] and _searches(step) != any(
            _searches(self.program.steps[m]) for m in group.members if m not in group.outer
        ):
            return "a search for a position runs one element at a time", None
        running = self._running(group)
        used = [running[b] for b in self.dependencies.reads[number] if b in running]
        if used and any(stage != self.stage_in(group, number) for stage in used):
            return "needs running results and finished ones at once", None
        # First what members may be in the merged space at all: only then have they places in it.
        if fit[0].mixed and (reason := self._carries(group, step, fit[0])):
            return reason, None
        if not self._same_points(group, number, step, *fit):
            return "reads what the kernel makes at other points of the loops", None
        if self._overwrites(group, step, fit[0]):
            return "overwrites an input that the kernel reads", None
        return "", fit

    def _carries(self, group: Placed, step: Compute, space: Space) -> str:
        """Why results of columns cannot be carried along the rows; empty where they can. Nothing in
        the kernel may need them: they are complete when its rows are done."""
        old = group.space
        if group.outer and spread(old.sizes, old.folded, space.sizes) != space.folded:
            return "needs results of columns before the rows are done"
        carried: set[int] = set()
        steps = [step]
        for member in group.members:
            found = self.program.steps[member]
            assert isinstance(found, Compute)
            steps.append(found)
        for each in steps:
            if _searches(each):
                return "a search for a position runs one element at a time"
            if each.reduction is not None and each.reduction.scans:
                return "a scan of rows leaves no room for results of columns"
            if folds_across(each, space):
                carried.add(each.output)
        if any(load.buffer in carried for each in steps for load in lp.loads(each.value)):
            return "needs results of columns before the rows are done"
        width = ex.as_int(ex.product(space.width()))
        if width is None or width * len(carried) > self.machine.carried_values:
            return "the results of columns are too many to carry along the rows"
        return ""

    def _same_points(
        self, group: Placed, number: int, step: Compute, space: Space, outer: bool
    ) -> bool:
        """Every value the step takes from the group is made at the point where it is used."""
        made = group.writes & self.dependencies.reads[number]
        if not made:
            return True
        mapping = self._place(number, step, space, outer)
        stores: dict[int, tuple[Expr, ...]] = {}
        for member in group.members:
            other = self.program.steps[member]
            if isinstance(other, Compute) and other.output in made:
                own = self._place(member, other, space, member in group.outer)
                stores[other.output] = tuple(own[a] for a in other.axes)
                inside = other.reduction is None or other.reduction.scans
                if outer and member not in group.outer and inside:
                    return False  # a value of inner points, wanted at an outer one
        for load in lp.loads(step.value):
            if load.buffer in stores:
                at = tuple(ex.substitute(e, mapping) for e in load.index)
                if at != stores[load.buffer] or load.guard is not None or load.indirect:
                    return False
        return True

    def _overwrites(self, group: Placed, step: Compute, space: Space) -> bool:
        """Whether an input would be overwritten while others in the kernel need its old values:
        all but those that read it before, at the very point where it is overwritten."""
        steps = [
            found for m in group.members if isinstance(found := self.program.steps[m], Compute)
        ]
        bases: set[int] = set()
        for writer in (*steps, step):
            own = self.program.buffers[writer.output]
            if own.kind != "alias":
                continue
            if own.base in bases:
                return True
            bases.add(own.base)
            if writer is not step and any(n.buffer == own.base for n in lp.loads(step.value)):
                return True
            others = [s for s in steps if s is not writer]
            readers = [s for s in others if any(n.buffer == own.base for n in lp.loads(s.value))]
            if not readers:
                continue
            if space.reduces:
                return True
            places = place(writer, space, outer=False)
            target = ex.substitute(linear(writer.axes, own.stride), places)
            for reader in readers:
                places = place(reader, space, outer=False)
                for load in lp.loads(reader.value):
                    if load.buffer == own.base:
                        at = ex.substitute(linear(load.index, own.stride), places)
                        if at is not target or load.guard is not None or load.indirect:
                            return True
        return False

    def stage_in(self, group: Placed, number: int) -> int:
        """How many folds of the group come before a step."""
        reads = self.dependencies.reads[number]
        stage = 0
        for member, at in zip(group.members, group.stages, strict=True):
            step = self.program.steps[member]
            assert isinstance(step, Compute)
            if step.output in reads:
                complete = step.reduction is not None and not step.reduction.scans
                stage = max(stage, at + complete)
        return stage

    def _running(self, group: Placed) -> dict[int, int]:
        """Buffers of a group whose values follow from running results of scans, with the stage in
        which these run by."""
        found: dict[int, int] = {}
        for member, stage in zip(group.members, group.stages, strict=True):
            step = self.program.steps[member]
            assert isinstance(step, Compute)
            fold = step.reduction
            if fold is not None and not fold.scans:
                continue
            if fold is not None or not self.dependencies.reads[member].isdisjoint(found):
                found[step.output] = stage
        return found


def _searches(step: Step) -> bool:
    """Whether a step looks for the place of an extreme."""
    fold = step.reduction if isinstance(step, Compute) else None
    return fold is not None and fold.op in ("argmax", "argmin")


def _fit(space: Space, step: Compute, own: Space) -> tuple[Space, bool] | None:
    merged = merge(space, own)
    if merged is not None:
        return merged, False
    if space.reduces and step.reduction is None:
        kept = refine(space.kept(), own.sizes)
        if kept is not None:
            return refine_kept(space, kept), True
    return None
