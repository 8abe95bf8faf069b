"""A partition of a region while it grows: immutable groups, and where the next computation may go.

`Partition.place` gives every partition that placing one more computation can lead to. States share
their groups, so that a beam of them costs little.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr
from fusec.ir.kernel import linear
from fusec.ir.loop import Compute, LoopProgram, Step
from fusec.schedule.cost import Machine, StepFacts, kernel_time, points
from fusec.schedule.dependencies import Dependencies
from fusec.schedule.groups import Verdict
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

MAX_MEMBERS: Final = 48
MAX_OPERATIONS: Final = 400
MAX_CANDIDATES: Final = 8  # groups tried for one computation
MAX_REPEATED: Final = 24  # operations worth computing twice


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


class _Log(NamedTuple):
    """Verdicts, the latest first; shared between states."""

    verdict: Verdict
    rest: _Log | None


@dataclass(frozen=True, slots=True)
class Partition:
    """``stored``: buffers that leave the region; ``overwritten``: inputs that the program changes.
    ``time``: nanoseconds of all groups so far, with values counted as stored once a reader is in
    another group. ``repeated``: (producer, reader) pairs of step numbers: computed again in the
    reader's group."""

    program: LoopProgram
    dependencies: Dependencies
    facts: dict[int, StepFacts]
    stored: frozenset[int]
    overwritten: frozenset[int]
    machine: Machine
    groups: tuple[Placed, ...] = ()
    home: dict[int, int] | None = None  # step → group
    times: tuple[float, ...] = ()
    repeated: tuple[tuple[int, int], ...] = ()
    spilled: frozenset[int] = frozenset()  # buffers that some other group reads
    log: _Log | None = None

    @property
    def time(self) -> float:
        return sum(self.times)

    def verdicts(self) -> list[Verdict]:
        found: list[Verdict] = []
        entry = self.log
        while entry is not None:
            found.append(entry.verdict)
            entry = entry.rest
        return found[::-1]

    # -- growing ----------------------------------------------------------------------------

    def place(self, number: int) -> list[Partition]:
        """Every partition with this computation placed: in a group of its own, or where legal."""
        step = self.program.steps[number]
        assert isinstance(step, Compute)
        home = self.home or {}
        required = 0
        for before in self.dependencies.before[number]:
            if before in home:
                required |= 1 << home[before]
        grown: list[Partition] = []
        log = self.log
        for candidate in self._candidates(number):
            reason, fit = self._legal(candidate, number, step, required)
            if fit is None:
                first = self.groups[candidate].members[0]
                log = _Log(Verdict(number, first, False, reason), log)
            else:
                grown += self._join(candidate, number, step, required, fit)
        logged = [replace(state, log=_append(state.log, self.log, log)) for state in grown]
        return [*logged, *self._open(number, step, required, log)]

    def _candidates(self, number: int) -> list[int]:
        """Groups that make or read what this computation reads, the latest first."""
        reads = self.dependencies.reads[number]
        found = [
            i
            for i, group in enumerate(self.groups)
            if not reads.isdisjoint(group.writes) or any(b in group.reads for b in reads)
        ]
        return found[::-1][:MAX_CANDIDATES]

    def _closure(self, required: int) -> int:
        result = required
        for i in _bits(required):
            result |= self.groups[i].before
        return result

    def _join(
        self, index: int, number: int, step: Compute, required: int, fit: tuple[Space, bool]
    ) -> Iterator[Partition]:
        group = self.groups[index]
        space, outer = fit
        own = 1 << index
        fresh = self._closure(required & ~own) & ~group.before
        facts = self.facts[number]
        stage = self._stage_in(group, number)
        first = group.members[0]
        verdict = Verdict(number, first, True, "shares memory with it")
        for reads, pairs in self._reads(number, step, group):
            joined = Placed(
                (*group.members, number),
                group.outer | {number} if outer else group.outer,
                space,
                (*group.stages, stage),
                group.before | fresh,
                {**group.reads, **reads},
                group.writes | {step.output},
                group.operations + facts.operations,
            )
            groups = list(self.groups)
            groups[index] = joined
            if fresh:
                for i, other in enumerate(groups):
                    if other.before & own:
                        groups[i] = other._replace(before=other.before | fresh)
            yield self._next(groups, index, number, reads, pairs, _Log(verdict, self.log))

    def _open(
        self, number: int, step: Compute, required: int, log: _Log | None
    ) -> Iterator[Partition]:
        facts = self.facts[number]
        for reads, pairs in self._reads(number, step, None):
            alone = Placed(
                (number,),
                frozenset(),
                space_of(step),
                (0,),
                self._closure(required),
                reads,
                frozenset((step.output,)),
                facts.operations,
            )
            yield self._next([*self.groups, alone], len(self.groups), number, reads, pairs, log)

    def _next(
        self,
        groups: list[Placed],
        index: int,
        number: int,
        reads: dict[int, float],
        pairs: tuple[tuple[int, int], ...],
        log: _Log | None,
    ) -> Partition:
        """The state after; times are taken anew for the groups that changed."""
        writers = self.dependencies.writer
        home = {**(self.home or {}), number: index}
        spilled = self.spilled
        changed = {index}
        for buffer in reads:
            writer = writers.get(buffer)
            if buffer not in spilled and writer in home:
                spilled = spilled | {buffer}
                changed.add(home[writer])
        changed.update(home[producer] for producer, _ in pairs)
        times = [*self.times, 0.0] if len(groups) > len(self.times) else list(self.times)
        after = replace(
            self,
            groups=tuple(groups),
            home=home,
            repeated=self.repeated + pairs,
            spilled=spilled,
            log=log,
        )
        for i in changed:
            times[i] = after._time_of(i)
        return replace(after, times=tuple(times))

    def _reads(
        self, number: int, step: Compute, group: Placed | None
    ) -> Iterator[tuple[dict[int, float], tuple[tuple[int, int], ...]]]:
        """What the computation reads from outside the group; then the same with a producer's value
        computed again instead of read."""
        home = self.home or {}
        inside = group.writes if group is not None else frozenset()
        reads = {b: size for b, size in self.facts[number].reads.items() if b not in inside}
        yield reads, ()
        for buffer in reads:
            producer = self.dependencies.writer.get(buffer)
            if producer is None or producer not in home or not self._repeatable(producer, step):
                continue
            again = {**reads, **self.facts[producer].reads}
            del again[buffer]
            yield again, ((producer, number),)

    def _repeatable(self, producer: int, reader: Compute) -> bool:
        step = self.program.steps[producer]
        assert isinstance(step, Compute)
        if step.reduction is not None or self.facts[producer].operations > MAX_REPEATED:
            return False
        if any(pair[1] == producer for pair in self.repeated):
            return False  # its value is not the program's any more
        if any(load.indirect and load.buffer == step.output for load in lp.loads(reader.value)):
            return False  # at places known at run time only: written out, they would be unbound
        buffers = {load.buffer for load in lp.loads(step.value)}
        if buffers & self.overwritten or self.program.buffers[reader.output].kind == "alias":
            return False
        return len(buffers) <= 3

    # -- cost -------------------------------------------------------------------------------

    def _stage_in(self, group: Placed, number: int) -> int:
        reads = self.dependencies.reads[number]
        stage = 0
        for member, at in zip(group.members, group.stages, strict=True):
            step = self.program.steps[member]
            assert isinstance(step, Compute)
            if step.output in reads:
                complete = step.reduction is not None and not step.reduction.scans
                stage = max(stage, at + complete)
        return stage

    def _dead(self, group: Placed) -> bool:
        """Whether every value of the group is computed again wherever it is used, so far."""
        again = {producer for producer, _ in self.repeated}
        if again.isdisjoint(group.members):
            return False
        for member in reversed(group.members):
            step = self.program.steps[member]
            assert isinstance(step, Compute)
            output = step.output
            if output in self.stored or output in self.spilled:
                return False
            if member not in again and not any(
                output in self.dependencies.reads[m] for m in group.members
            ):
                return False  # not used yet
        return True

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

    def _time_of(self, index: int) -> float:
        group = self.groups[index]
        if self._dead(group):
            return 0.0
        space = group.space
        everywhere = points(space.sizes)
        rows = points(space.kept())
        programs = points(space.free()) if space.reduces else everywhere
        if space.reduces and not space.folded[-1]:
            programs /= self.machine.column_points
        work = written = 0.0
        again: dict[tuple[int, int], float] = {}  # (stage, buffer): what a later stage reads anew
        streams = len(group.reads)
        extra: dict[int, float] = {}
        for producer, reader in self.repeated:
            if reader in group.members:
                extra[reader] = extra.get(reader, 0.0) + self.facts[producer].weight
        for member, stage in zip(group.members, group.stages, strict=True):
            step = self.program.steps[member]
            assert isinstance(step, Compute)
            facts = self.facts[member]
            visited = rows if member in group.outer else everywhere
            if stage and member not in group.outer:
                again.update(((stage, b), size) for b, size in facts.reads.items())
            work += (facts.weight + extra.get(member, 0.0)) * visited
            if step.output in self.stored or step.output in self.spilled:
                written += facts.result_bytes
                streams += 1
        read = sum(group.reads.values())
        row = 4.0 * points(space.width()) * max(len(group.reads), 1)
        return kernel_time(
            self.machine,
            work=work,
            operations=group.operations,
            read=read,
            again=sum(again.values()),
            written=written,
            streams=streams,
            inner_points=everywhere,
            rows=programs,
            row_bytes=row,
        )

    # -- legality ---------------------------------------------------------------------------

    def _legal(
        self, index: int, number: int, step: Compute, required: int
    ) -> tuple[str, tuple[Space, bool] | None]:
        """The merged space and whether the step runs over kept axes only, or why not."""
        group = self.groups[index]
        if len(group.members) >= MAX_MEMBERS:
            return "the kernel has too many computations", None
        if group.operations + self.facts[number].operations > MAX_OPERATIONS:
            return "the kernel would be too large", None
        first = self.program.steps[group.members[0]]
        if step.scatters or (isinstance(first, Compute) and first.scatters):
            return "a scatter is a kernel of its own", None
        own = 1 << index
        if any(self.groups[i].before & own for i in _bits(required & ~own)):
            return "something between them runs in another kernel", None
        fit = _fit(group.space, step)
        if fit is None:
            return f"loops differ: {group.space} and {space_of(step)}", None
        if not fit[1] and _searches(step) != any(
            _searches(self.program.steps[m]) for m in group.members if m not in group.outer
        ):
            return "a search for a position runs one element at a time", None
        running = self._running(group)
        used = [running[b] for b in self.dependencies.reads[number] if b in running]
        if used and any(stage != self._stage_in(group, number) for stage in used):
            return "needs running results and finished ones at once", None
        if not self._same_points(group, number, step, *fit):
            return "reads what the kernel makes at other points of the loops", None
        if self._overwrites(group, step, fit[0]):
            return "overwrites an input that the kernel reads", None
        reason = self._carries(group, step, fit[0]) if fit[0].mixed else ""
        return reason, None if reason else fit

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
        mapping = place(step, space, outer=outer)
        stores: dict[int, tuple[Expr, ...]] = {}
        for member in group.members:
            other = self.program.steps[member]
            if isinstance(other, Compute) and other.output in made:
                own = place(other, space, outer=member in group.outer)
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


def _append(own: _Log | None, base: _Log | None, log: _Log | None) -> _Log | None:
    """The joining on top of ``own``, the refusals in ``log`` (grown from ``base``) under it."""
    if own is None or own is base:
        return log
    return _Log(own.verdict, log)


def _searches(step: Step) -> bool:
    """Whether a step looks for the place of an extreme."""
    fold = step.reduction if isinstance(step, Compute) else None
    return fold is not None and fold.op in ("argmax", "argmin")


def _fit(space: Space, step: Compute) -> tuple[Space, bool] | None:
    merged = merge(space, space_of(step))
    if merged is not None:
        return merged, False
    if space.reduces and step.reduction is None:
        kept = refine(space.kept(), space_of(step).sizes)
        if kept is not None:
            return refine_kept(space, kept), True
    return None


def _bits(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low
