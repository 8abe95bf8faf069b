"""The verifier of schedules: every step once, in a legal order, fused only where points agree,
started together only where nothing depends on another.

It looks at the program alone, not at `fusec.schedule.dependencies`: a fault there must show here.
"""

from __future__ import annotations

from fusec.errors import ScheduleError
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr
from fusec.ir.loop import Compute, LoopProgram, external_reads
from fusec.schedule.groups import Group, Schedule
from fusec.schedule.space import folds_across, place


def verify_schedule(schedule: Schedule) -> None:
    """Raises ScheduleError that names the step. Linear in the size of the program."""
    place_of = _places(schedule)
    _verify_order(schedule.program, place_of, _starts(schedule))
    for group in schedule.groups:
        if group.space is not None:
            _verify_points(schedule.program, group)


def _places(schedule: Schedule) -> dict[int, tuple[int, int]]:
    """Step → (group, position in it)."""
    program = schedule.program
    found: dict[int, tuple[int, int]] = {}
    for number, group in enumerate(schedule.groups):
        for position, member in enumerate(group.members):
            if member in found:
                raise ScheduleError(f"step {member} is in two groups")
            if not 0 <= member < len(program.steps):
                raise ScheduleError(f"group {number} holds step {member}, which does not exist")
            found[member] = (number, position)
            computes = isinstance(program.steps[member], Compute)
            if computes != (group.space is not None) or (not computes and len(group.members) > 1):
                raise ScheduleError(f"step {member} is an external call inside a kernel")
        if not group.members or not group.outer <= set(group.members):
            raise ScheduleError(f"group {number} names members that it does not have")
    if len(found) != len(program.steps):
        missing = next(n for n in range(len(program.steps)) if n not in found)
        raise ScheduleError(f"step {missing} is in no group")
    return found


def _starts(schedule: Schedule) -> list[int]:
    """For each group the position of the first that starts with it."""
    starts = list(range(len(schedule.groups)))
    end = 0
    for first, last in schedule.batches:
        if not end <= first < last - 1 < len(starts):
            raise ScheduleError(f"groups {first} to {last} are no batch")
        if any(group.space is None for group in schedule.groups[first:last]):
            raise ScheduleError(f"the batch of group {first} holds an external call")
        starts[first:last] = [first] * (last - first)
        end = last
    return starts


def _verify_order(
    program: LoopProgram, place_of: dict[int, tuple[int, int]], starts: list[int]
) -> None:
    """Reads after writes; overwriting of an input's memory in the program's own order."""
    writer: dict[int, int] = {}
    touched: dict[int, list[int]] = {}  # memory of an input → steps since it was overwritten
    overwriter: dict[int, int] = {}
    last_effect: int | None = None

    def after(number: int, other: int, why: str) -> None:
        if place_of[number] <= place_of[other]:
            raise ScheduleError(f"step {number} does not come after step {other}: {why}")
        mine, theirs = place_of[number][0], place_of[other][0]
        if mine != theirs and starts[mine] == starts[theirs]:
            raise ScheduleError(f"step {number} starts together with step {other}: {why}")

    for number, step in enumerate(program.steps):
        if isinstance(step, Compute):
            reads = {load.buffer for load in lp.loads(step.value)}
            outputs: tuple[int | None, ...] = (step.output,)
        else:
            reads = {view.buffer for view in external_reads(step)}
            outputs = step.outputs
            if step.reason not in ("library", "constant"):
                if last_effect is not None:
                    after(number, last_effect, "calls without a rule keep their order")
                last_effect = number
        for buffer in reads:
            if buffer in writer:
                after(number, writer[buffer], f"it reads b{buffer}")
            memory = _memory(program, buffer)
            if memory in overwriter:
                after(number, overwriter[memory], f"it reads what overwrote b{memory}")
            touched.setdefault(memory, []).append(number)
        for output in outputs:
            if output is None:
                continue
            writer[output] = number
            if program.buffers[output].kind == "alias":
                memory = program.buffers[output].base
                for other in touched.pop(memory, ()):
                    if other != number:
                        after(number, other, f"it overwrites b{memory}, which that one uses")
                touched[memory] = [number]
                overwriter[memory] = number


def _memory(program: LoopProgram, buffer: int) -> int:
    found = program.buffers[buffer]
    return found.base if found.kind == "alias" else buffer


def _verify_points(program: LoopProgram, group: Group) -> None:
    """Members fit the loops, and take each other's values only at the points of these loops."""
    assert group.space is not None
    stores: dict[int, tuple[Expr, ...]] = {}
    per_point: set[int] = set()  # buffers with a value at every point, folded axes included
    across: set[int] = set()  # results that are complete when all rows are done
    overwritten: dict[int, int] = {}
    for member in group.members:
        step = program.steps[member]
        assert isinstance(step, Compute)
        outer = member in group.outer
        where = f"step {member} in the kernel of step {group.members[0]}"
        mapping = place(step, group.space, outer=outer)
        if step.reduction is not None and (outer or not group.space.reduces):
            raise ScheduleError(f"{where}: a reduction where nothing is folded")
        for load in lp.loads(step.value):
            if _memory(program, load.buffer) in overwritten:
                raise ScheduleError(f"{where}: reads b{load.buffer}, which the kernel overwrites")
            if load.buffer not in stores:
                continue
            if load.buffer in across:
                raise ScheduleError(f"{where}: reads b{load.buffer} before it is complete")
            if outer and load.buffer in per_point:
                raise ScheduleError(f"{where}: reads b{load.buffer} after its loop")
            at = ex.substitute_all(load.index, tuple(mapping.items()))
            if load.guard is not None or load.indirect or at != stores[load.buffer]:
                raise ScheduleError(
                    f"{where}: reads b{load.buffer} at other points than it is made"
                )
        stores[step.output] = tuple(mapping[a] for a in step.axes)
        if not outer and (step.reduction is None or step.reduction.scans):
            per_point.add(step.output)
        if folds_across(step, group.space):
            across.add(step.output)
        if program.buffers[step.output].kind == "alias":
            overwritten[program.buffers[step.output].base] = member
