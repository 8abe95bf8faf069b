"""Why neighbouring computations are not in one kernel: one reason for each pair of groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusec.ir import loop as lp
from fusec.ir.loop import Compute, LoopProgram, external_reads
from fusec.schedule.groups import Schedule


@dataclass(frozen=True, slots=True)
class Refusal:
    """``other``: label of the neighbour; ``relation``: what makes it one; ``reason``: why not."""

    other: str
    relation: str
    reason: str


MAKES, SHARES = "makes what this reads", "reads what this reads"


def refusals(schedule: Schedule, labels: Sequence[str]) -> list[tuple[Refusal, ...]]:
    """For each group of computations the earlier neighbours that it did not join.

    Neighbours are the groups that make what it reads, and those with which the scheduler tried to
    unite it. The reason for a pair is the one given for the first computation of the group.
    """
    group_of: dict[int, int] = {}  # the first, where several kernels repeat a computation
    for position, group in enumerate(schedule.groups):
        for step in group.members:
            group_of.setdefault(step, position)
    tried: dict[tuple[int, int], str] = {}
    first: dict[tuple[int, int], int] = {}
    for verdict in schedule.verdicts:
        own, other = group_of.get(verdict.step, -1), group_of.get(verdict.other, -1)
        if verdict.fused or own == other or -1 in (own, other):
            continue
        if verdict.step < first.get((own, other), verdict.step + 1):
            first[own, other] = verdict.step
            tried[own, other] = verdict.reason
    producers = _producers(schedule, group_of)
    ancestors = _ancestors(producers)
    calls = sum(1 << i for i in range(len(producers)) if _is_call(schedule, i))
    found: list[tuple[Refusal, ...]] = []
    for position in range(len(schedule.groups)):
        if _is_call(schedule, position):
            found.append(())
            continue
        neighbours = dict.fromkeys(sorted(producers[position]), MAKES)
        for own, other in tried:
            if own == position:
                neighbours.setdefault(other, SHARES)
        found.append(
            tuple(
                Refusal(
                    labels[other],
                    relation,
                    tried.get((position, other))
                    or tried.get((other, position))
                    or _reason(schedule, other, ancestors[position] & calls, ancestors),
                )
                for other, relation in neighbours.items()
            )
        )
    return found


def _reason(schedule: Schedule, other: int, calls: int, ancestors: list[int]) -> str:
    """Where the scheduler left no verdict; ``calls``: bit set of calls that come before."""
    if _is_call(schedule, other):
        step = schedule.program.steps[schedule.groups[other].members[0]]
        return f"{getattr(step, 'target', 'a call')} runs in ATen"
    while calls:
        low = calls & -calls
        if ancestors[low.bit_length() - 1] >> other & 1:
            return "a call to ATen runs between them"
        calls ^= low
    return "apart is estimated to be faster"


def _ancestors(producers: list[set[int]]) -> list[int]:
    """For each group a bit set of all groups that its data comes from; groups are in order."""
    found: list[int] = []
    for makers in producers:
        bits = 0
        for maker in makers:
            bits |= 1 << maker
            if maker < len(found):
                bits |= found[maker]
        found.append(bits)
    return found


def _is_call(schedule: Schedule, position: int) -> bool:
    return schedule.groups[position].space is None


def _producers(schedule: Schedule, group_of: dict[int, int]) -> list[set[int]]:
    program = schedule.program
    maker: dict[int, int] = {}
    for number, step in enumerate(program.steps):
        if isinstance(step, Compute):
            outputs: tuple[int | None, ...] = (step.output,)
        elif step.reason == "constant":
            continue
        else:
            outputs = step.outputs
        for output in outputs:
            if output is not None and number in group_of:
                maker[output] = group_of[number]
    found: list[set[int]] = []
    for position, group in enumerate(schedule.groups):
        makers = {
            maker[b] for number in group.members for b in _reads(program, number) if b in maker
        }
        found.append(makers - {position})
    return found


def _reads(program: LoopProgram, number: int) -> set[int]:
    step = program.steps[number]
    if isinstance(step, Compute):
        return {load.buffer for load in lp.loads(step.value)}
    return {view.buffer for view in external_reads(step)}
