"""A partition of a region while it grows: immutable groups, and where the next computation may go.

`Partition.place` gives every partition that placing one more computation can lead to. States share
their groups, so that a beam of them costs little.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.loop import Compute, LoopProgram
from fusec.schedule.cost import Machine, StepFacts, kernel_time, points
from fusec.schedule.dependencies import Dependencies
from fusec.schedule.groups import Verdict
from fusec.schedule.legality import Rules
from fusec.schedule.placed import Placed
from fusec.schedule.space import Space, space_of

MAX_MEMBERS: Final = 48
MAX_OPERATIONS: Final = 400
MAX_CANDIDATES: Final = 8  # groups tried for one computation
SMALL_REGION: Final = 8  # computations
MAX_REPEATED: Final = 24  # operations worth computing twice
_SHARED: Final = 16  # points that share what they read, so that it comes from the cache


class _Log(NamedTuple):
    """Verdicts, the latest first; shared between states."""

    verdict: Verdict
    rest: _Log | None


@dataclass(frozen=True, slots=True)
class _Known:
    """Times of groups, and whether a step fits into one, by all that these depend on."""

    times: dict[tuple[object, ...], float] = field(default_factory=dict)
    fits: dict[tuple[object, ...], tuple[str, tuple[Space, bool] | None]] = field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True)
class Partition:
    """``stored``: buffers that leave the region; ``overwritten``: inputs that the program changes.
    ``time``: nanoseconds of all groups so far, with values counted as stored once a reader is in
    another group. ``repeated``: (producer, reader) pairs of step numbers: computed again in the
    reader's group. ``known``: what any state of the search has found out of a group: equal groups
    grow in many of them."""

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
    known: _Known = field(default_factory=_Known)

    @property
    def rules(self) -> Rules:
        return Rules(self.program, self.dependencies, self.machine)

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
        """Groups that make or read what this computation reads, the latest first. Single numbers
        that both read count in small regions only: nothing is saved by it, but later computations
        may need both."""
        reads = self.dependencies.reads[number]
        shared = [
            b
            for b in reads
            if len(self.facts) <= SMALL_REGION
            or any(n is not ex.ONE for n in self.program.buffers[b].shape)
        ]
        found = [
            i
            for i, group in enumerate(self.groups)
            if not reads.isdisjoint(group.writes) or any(b in group.reads for b in shared)
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
        stage = self.rules.stage_in(group, number)
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
            pairs = self._repeat_inputs(number, step, producer, again, inside)
            yield again, pairs

    def _repeat_inputs(
        self,
        number: int,
        step: Compute,
        producer: int,
        reads: dict[int, float],
        inside: frozenset[int],
    ) -> tuple[tuple[int, int], ...]:
        """What a repeated value is made of, repeated too where no kernel stores it so far; taken
        from ``reads`` for what that reads."""
        home = self.home or {}
        pairs = [(producer, number)]
        room = MAX_REPEATED - self.facts[producer].operations
        waiting = list(self.facts[producer].reads)
        while waiting:
            buffer = waiting.pop()
            maker = self.dependencies.writer.get(buffer)
            if maker is None or maker not in home or (maker, number) in pairs:
                continue
            if buffer in self.stored or buffer in self.spilled or buffer in inside:
                continue
            room -= self.facts[maker].operations
            if room < 0 or not self._repeatable(maker, step):
                break
            pairs.append((maker, number))
            reads.pop(buffer, None)
            reads.update(self.facts[maker].reads)
            waiting += self.facts[maker].reads
        return tuple(pairs)

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
        large = self.facts[producer].result_bytes / _SHARED
        return sum(size > large for size in self.facts[producer].reads.values()) <= 3

    # -- cost -------------------------------------------------------------------------------

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

    def _time_of(self, index: int) -> float:
        group = self.groups[index]
        members = group.members
        again = tuple(pair for pair in self.repeated if pair[0] in members or pair[1] in members)
        key = (members, group.outer, again, group.writes & self.spilled)
        found = self.known.times.get(key)
        if found is None:
            found = self.known.times[key] = self._own_time(group)
        return found

    def _own_time(self, group: Placed) -> float:
        if self._dead(group):
            return 0.0
        space = group.space
        everywhere = points(space.sizes)
        rows = points(space.kept())
        programs = points(space.free()) if space.reduces else everywhere
        if space.reduces and not space.folded[-1]:
            programs /= self.machine.column_points
        work = written = 0.0
        sources: dict[int, dict[int, float]] = {}
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
            needs: dict[int, float] = {}  # from memory, in place of what the kernel makes
            for b, size in facts.reads.items():
                needs.update(sources.get(b, {b: size}))
            inner = member not in group.outer
            running = step.reduction is None or step.reduction.scans
            sources[step.output] = needs if inner and running else {}
            if stage and inner:
                again.update(((stage, b), size) for b, size in needs.items())
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
        own = 1 << index
        if any(self.groups[i].before & own for i in _bits(required & ~own)):
            return "something between them runs in another kernel", None
        key = (group.members, group.outer, number)
        found = self.known.fits.get(key)
        if found is None:
            found = self.known.fits[key] = self.rules.fit(group, number, step)
        return found


def _append(own: _Log | None, base: _Log | None, log: _Log | None) -> _Log | None:
    """The joining on top of ``own``, the refusals in ``log`` (grown from ``base``) under it."""
    if own is None or own is base:
        return log
    return _Log(own.verdict, log)


def _bits(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low
