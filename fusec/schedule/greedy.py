"""Greedy fusion: each computation in order joins the group with which it shares the most memory.

The search over partitions has the same interface: a program in, a `Schedule` out.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Final

from fusec.errors import ScheduleError
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr
from fusec.ir.loop import Compute, LoopProgram
from fusec.schedule.dependencies import Dependencies, find_dependencies
from fusec.schedule.groups import Group, Schedule, Verdict
from fusec.schedule.space import Space, merge, place, refine, space_of

MAX_MEMBERS: Final = 48
MAX_OPERATIONS: Final = 400
MAX_CANDIDATES: Final = 12  # groups tried for one computation
_TYPICAL_SIZE: Final = 64  # for a symbol nobody knows the value of


@dataclass(slots=True)
class _Open:
    """A group while it grows."""

    number: int
    members: list[int]
    space: Space | None
    outer: set[int] = field(default_factory=set)
    ancestors: int = 0  # bit set of group numbers
    operations: int = 0
    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)


def schedule(program: LoopProgram, *, fusion: bool = True) -> Schedule:
    """Partition the steps into groups and order them. Raises ScheduleError on a cyclic program."""
    return _Greedy(program, find_dependencies(program), fusion).run()


class _Greedy:
    def __init__(self, program: LoopProgram, dependencies: Dependencies, fusion: bool) -> None:
        self.program = program
        self.dependencies = dependencies
        self.fusion = fusion
        self.groups: list[_Open] = []
        self.group_of: dict[int, int] = {}
        self.readers: dict[int, list[int]] = {}  # buffer → groups that read it
        self.verdicts: list[Verdict] = []

    def run(self) -> Schedule:
        for number, step in enumerate(self.program.steps):
            joined = isinstance(step, Compute) and self.fusion and self._try_join(number, step)
            if not joined:
                self._open(number)
        return Schedule(self.program, self._ordered(), tuple(self.verdicts))

    def _open(self, number: int) -> None:
        step = self.program.steps[number]
        space = space_of(step) if isinstance(step, Compute) else None
        group = _Open(len(self.groups), [], space)
        self.groups.append(group)
        self._add(group, number, self._required(number), outer=False)

    def _required(self, number: int) -> int:
        """Bit set of the groups that must run before this step."""
        bits = 0
        for before in self.dependencies.before[number]:
            bits |= 1 << self.group_of[before]
        return bits

    def _closure(self, bits: int) -> int:
        result = bits
        while bits:
            low = bits & -bits
            result |= self.groups[low.bit_length() - 1].ancestors
            bits ^= low
        return result

    def _add(self, group: _Open, number: int, required: int, *, outer: bool) -> None:
        step = self.program.steps[number]
        group.members.append(number)
        self.group_of[number] = group.number
        if outer:
            group.outer.add(number)
        own = 1 << group.number
        fresh = self._closure(required) & ~own & ~group.ancestors
        if fresh:
            group.ancestors |= fresh
            for other in self.groups:
                if other.ancestors & own:
                    other.ancestors |= fresh
        reads = self.dependencies.reads[number]
        group.reads |= reads
        for buffer in reads:
            groups = self.readers.setdefault(buffer, [])
            if not groups or groups[-1] != group.number:
                groups.append(group.number)
        if isinstance(step, Compute):
            group.writes.add(step.output)
            group.operations += step.value.size

    # -- candidates -------------------------------------------------------------------------

    def _try_join(self, number: int, step: Compute) -> bool:
        required = self._required(number)
        best: tuple[int, int] | None = None
        choice: tuple[_Open, Space, bool] | None = None
        for group in self._candidates(number):
            reason, fit = self._legal(group, number, step, required)
            if fit is None:
                self.verdicts.append(Verdict(number, group.members[0], False, reason))
                continue
            saved = (self._shared_bytes(group, number), group.number)
            if saved[0] > 0 and (best is None or saved > best):
                best, choice = saved, (group, *fit)
        if choice is None:
            return False
        group, space, outer = choice
        self.verdicts.append(
            Verdict(number, group.members[0], True, f"saves {best[0] if best else 0} bytes")
        )
        group.space = space
        self._add(group, number, required, outer=outer)
        return True

    def _candidates(self, number: int) -> list[_Open]:
        """Groups that make or read what this step reads, the latest first."""
        found: set[int] = set()
        for buffer in self.dependencies.reads[number]:
            writer = self.dependencies.writer.get(buffer)
            if writer is not None:
                found.add(self.group_of[writer])
            found.update(self.readers.get(buffer, ())[-MAX_CANDIDATES:])
        latest = (self.groups[g] for g in sorted(found, reverse=True))
        return [g for g in latest if g.space is not None][:MAX_CANDIDATES]

    def _shared_bytes(self, group: _Open, number: int) -> int:
        shared = self.dependencies.reads[number] & (group.writes | group.reads)
        return sum(self._bytes(b) for b in shared)

    def _bytes(self, buffer: int) -> int:
        found = self.program.buffers[buffer]
        size = DTYPES[found.dtype].size
        for extent in found.shape:
            size *= ex.as_int(extent) or _TYPICAL_SIZE
        return size

    # -- legality ---------------------------------------------------------------------------

    def _legal(
        self, group: _Open, number: int, step: Compute, required: int
    ) -> tuple[str, tuple[Space, bool] | None]:
        """The merged space and whether the step runs over kept axes only, or why not."""
        if len(group.members) >= MAX_MEMBERS:
            return "the kernel has too many computations", None
        if group.operations + step.value.size > MAX_OPERATIONS:
            return "the kernel would be too large", None
        own = 1 << group.number
        if self._reaches(own, required & ~own):
            return "something between them runs in another kernel", None
        assert group.space is not None
        fit = self._fit(group.space, step)
        if fit is None:
            return f"loops differ: {_sizes(group.space)} and {_sizes(space_of(step))}", None
        space, outer = fit
        if not self._same_points(group, number, step, space, outer):
            return "reads what the kernel makes at other points of the loops", None
        if self._overwrites(group, step):
            return "overwrites an input that the kernel reads", None
        return "", fit

    def _reaches(self, own: int, required: int) -> bool:
        """Whether any required group (other than the group itself) depends on the group."""
        bits = required
        while bits:
            low = bits & -bits
            if self.groups[low.bit_length() - 1].ancestors & own:
                return True
            bits ^= low
        return False

    def _fit(self, space: Space, step: Compute) -> tuple[Space, bool] | None:
        own = space_of(step)
        merged = merge(space, own)
        if merged is not None:
            return merged, False
        if space.reduces and step.reduction is None:
            kept = refine(space.kept(), own.sizes)
            if kept is not None:
                return _refine_kept(space, kept), True
        return None

    def _same_points(
        self, group: _Open, number: int, step: Compute, space: Space, outer: bool
    ) -> bool:
        """Every value the step takes from the group is made at the point where it is used."""
        made = group.writes & self.dependencies.reads[number]
        if not made:
            return True
        mapping = place(step, space, outer=outer)
        stores: dict[int, tuple[Expr, ...]] = {}
        for member in group.members:
            other = self.program.steps[member]
            if isinstance(other, Compute) and other.output in made:
                own = place(other, space, outer=member in group.outer)
                stores[other.output] = tuple(own[a] for a in other.axes)
                inner_value = member not in group.outer and other.reduction is None
                if outer and inner_value:
                    return False
        for load in lp.loads(step.value):
            if load.buffer in stores:
                at = tuple(ex.substitute(e, mapping) for e in load.index)
                if at != stores[load.buffer] or load.guard is not None or load.indirect:
                    return False
        return True

    def _overwrites(self, group: _Open, step: Compute) -> bool:
        """Groups that overwrite an input hold no other reader or writer of it."""
        own = self.program.buffers[step.output]
        if own.kind == "alias" and own.base in group.reads:
            return True
        written = (self.program.buffers[b] for b in group.writes)
        bases = {found.base for found in written if found.kind == "alias"}
        reads = {load.buffer for load in lp.loads(step.value)}
        return bool(bases & reads)

    # -- order ------------------------------------------------------------------------------

    def _ordered(self) -> tuple[Group, ...]:
        """A topological order that keeps close to the program's own."""
        waiting: list[set[int]] = [set() for _ in self.groups]
        for number, group in self.group_of.items():
            for before in self.dependencies.before[number]:
                if self.group_of[before] != group:
                    waiting[group].add(self.group_of[before])
        users: list[list[int]] = [[] for _ in self.groups]
        for group, befores in enumerate(waiting):
            for other in befores:
                users[other].append(group)
        ready = [(max(g.members), g.number) for g in self.groups if not waiting[g.number]]
        heapq.heapify(ready)
        order: list[Group] = []
        while ready:
            _, number = heapq.heappop(ready)
            done = self.groups[number]
            order.append(Group(tuple(done.members), frozenset(done.outer), done.space))
            for user in users[number]:
                waiting[user].discard(number)
                if not waiting[user]:
                    heapq.heappush(ready, (max(self.groups[user].members), user))
        if len(order) != len(self.groups):
            raise ScheduleError("the groups depend on each other in a circle")
        return tuple(order)


def _refine_kept(space: Space, kept: tuple[Expr, ...]) -> Space:
    """The space with its kept axes cut as in ``kept``."""
    sizes: list[Expr] = []
    folded: list[bool] = []
    rest = list(kept)
    for size, fold in zip(space.sizes, space.folded, strict=True):
        if fold:
            sizes.append(size)
            folded.append(True)
            continue
        done: Expr = ex.ONE
        while done is not size:
            part = rest.pop(0)
            done = done * part
            sizes.append(part)
            folded.append(False)
    return Space(tuple(sizes), tuple(folded))


def _sizes(space: Space) -> str:
    return (
        "("
        + ", ".join(
            f"fold {s}" if f else str(s) for s, f in zip(space.sizes, space.folded, strict=True)
        )
        + ")"
    )
