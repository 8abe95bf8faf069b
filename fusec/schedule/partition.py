"""A partition of a region while it grows: immutable groups, and where the next computation may go.

`Partition.place` gives every step to a partition with one more computation: what it comes to is
known before the partition is made, so that a beam makes only those that it keeps. Partitions share
their groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from fusec.ir.loop import Compute
from fusec.schedule.groups import Verdict
from fusec.schedule.placed import Placed
from fusec.schedule.region import Fit, Region

MAX_MEMBERS: Final = 48
MAX_OPERATIONS: Final = 400
MAX_CANDIDATES: Final = 8  # groups tried for one computation
MAX_REPEATED: Final = 24  # operations worth computing twice


class _Log(NamedTuple):
    """Verdicts, the latest first; shared between partitions."""

    step: int
    other: int
    fused: bool
    reason: str
    rest: _Log | None


class Partition(NamedTuple):
    """``home``: step → group. ``times``: nanoseconds of each group so far, with values counted as
    stored once a reader is in another group. ``repeated``: (producer, reader) pairs of step
    numbers: computed again in the reader's group. ``spilled``: buffers that some other group
    reads."""

    region: Region
    groups: tuple[Placed, ...] = ()
    home: dict[int, int] = {}  # noqa: RUF012 never changed in place
    times: tuple[float, ...] = ()
    repeated: tuple[tuple[int, int], ...] = ()
    spilled: frozenset[int] = frozenset()
    log: _Log | None = None

    def verdicts(self) -> list[Verdict]:
        found: list[Verdict] = []
        entry = self.log
        while entry is not None:
            found.append(Verdict(*entry[:4]))
            entry = entry.rest
        return found[::-1]

    def place(self, number: int) -> list[Move]:
        """Every way to place this computation: in a group of its own, or where legal."""
        step = self.region.steps[number]
        required = 0
        for before in self.region.dependencies.before[number]:
            if before in self.home:
                required |= 1 << self.home[before]
        fitting: list[tuple[int, Fit]] = []
        log = self.log
        for candidate in self._candidates(number):
            reason, fit = self._legal(candidate, number, required)
            if fit is None:
                first = self.groups[candidate].members[0]
                log = _Log(number, first, False, reason, log)
            else:
                fitting.append((candidate, fit))
        moves: list[Move] = []
        for candidate, fit in fitting:
            moves += self._join(candidate, number, step, required, fit, log)
        moves += self._open(number, step, required, log)
        return moves

    def _candidates(self, number: int) -> list[int]:
        """Groups that make or read what this computation reads, or make what its readers read, the
        latest first."""
        reads = self.region.dependencies.reads[number] | self.region.met(number)
        shared = self.region.shared(number)
        found = [
            i
            for i, group in enumerate(self.groups)
            if not reads.isdisjoint(group.writes) or not shared.isdisjoint(group.reads)
        ]
        return found[::-1][:MAX_CANDIDATES]

    def _legal(self, index: int, number: int, required: int) -> tuple[str, Fit | None]:
        """The merged space and whether the step runs over kept axes only, or why not."""
        group = self.groups[index]
        if len(group.members) >= MAX_MEMBERS:
            return "the kernel has too many computations", None
        if group.operations + self.region.facts[number].operations > MAX_OPERATIONS:
            return "the kernel would be too large", None
        own = 1 << index
        if any(self.groups[i].before & own for i in _bits(required & ~own)):
            return "something between them runs in another kernel", None
        return self.region.fit(group, number)

    def _closure(self, required: int) -> int:
        result = required
        for i in _bits(required):
            result |= self.groups[i].before
        return result

    def _join(
        self,
        index: int,
        number: int,
        step: Compute,
        required: int,
        fit: Fit,
        log: _Log | None,
    ) -> Iterator[Move]:
        group = self.groups[index]
        space, outer = fit
        fresh = self._closure(required & ~(1 << index)) & ~group.before
        stage = self.region.rules.stage_in(group, number)
        log = _Log(number, group.members[0], True, "shares memory with it", log)
        for reads, pairs in self._reads(number, group.writes):
            joined = Placed(
                (*group.members, number),
                group.outer | {number} if outer else group.outer,
                space,
                (*group.stages, stage),
                group.before | fresh,
                {**group.reads, **reads},
                group.writes | {step.output},
                group.operations + self.region.facts[number].operations,
            )
            yield self._move(index, joined, number, fresh, reads, pairs, log)

    def _open(self, number: int, step: Compute, required: int, log: _Log | None) -> Iterator[Move]:
        for reads, pairs in self._reads(number, frozenset()):
            alone = Placed(
                (number,),
                frozenset(),
                self.region.rules.space(number),
                (0,),
                self._closure(required),
                reads,
                frozenset((step.output,)),
                self.region.facts[number].operations,
            )
            yield self._move(len(self.groups), alone, number, 0, reads, pairs, log)

    def _move(
        self,
        index: int,
        group: Placed,
        number: int,
        fresh: int,
        reads: dict[int, float],
        pairs: tuple[tuple[int, int], ...],
        log: _Log | None,
    ) -> Move:
        """Times are taken anew for the groups that change."""
        writers, home = self.region.dependencies.writer, self.home
        spilled = self.spilled
        new = [b for b in reads if b not in spilled and writers.get(b) in home]
        if new:
            spilled = spilled.union(new)
        repeated = self.repeated + pairs
        changed = {home[writers[b]] for b in new}
        changed.update(home[producer] for producer, _ in pairs)
        times = [*self.times, 0.0] if index == len(self.groups) else [*self.times]
        times[index] = self.region.times.of(group, repeated, spilled)
        for i in changed:
            if i != index:
                times[i] = self.region.times.of(self.groups[i], repeated, spilled)
        return Move(
            sum(times), self, index, group, number, fresh, repeated, spilled, tuple(times), log
        )

    def _reads(
        self, number: int, inside: frozenset[int]
    ) -> Iterator[tuple[dict[int, float], tuple[tuple[int, int], ...]]]:
        """What the computation reads from outside a group that makes ``inside``; then the same with
        a producer's value computed again instead of read."""
        facts = self.region.facts
        reads = {b: size for b, size in facts[number].reads.items() if b not in inside}
        yield reads, ()
        for buffer in reads:
            producer = self.region.dependencies.writer.get(buffer)
            if producer is None or producer not in self.home:
                continue
            if not self._repeatable(producer, number):
                continue
            again = {**reads, **facts[producer].reads}
            del again[buffer]
            pairs = self._repeat_inputs(number, producer, again, inside)
            yield again, pairs

    def _repeat_inputs(
        self, number: int, producer: int, reads: dict[int, float], inside: frozenset[int]
    ) -> tuple[tuple[int, int], ...]:
        """What a repeated value is made of, repeated too where no kernel stores it so far; taken
        from ``reads`` for what that reads."""
        region = self.region
        pairs = [(producer, number)]
        room = MAX_REPEATED - region.facts[producer].operations
        waiting = list(region.facts[producer].reads)
        while waiting:
            buffer = waiting.pop()
            maker = region.dependencies.writer.get(buffer)
            if maker is None or maker not in self.home or (maker, number) in pairs:
                continue
            if buffer in region.stored or buffer in self.spilled or buffer in inside:
                continue
            room -= region.facts[maker].operations
            if room < 0 or not self._repeatable(maker, number):
                break
            pairs.append((maker, number))
            reads.pop(buffer, None)
            reads.update(region.facts[maker].reads)
            waiting += region.facts[maker].reads
        return tuple(pairs)

    def _repeatable(self, producer: int, reader: int) -> bool:
        if self.region.facts[producer].operations > MAX_REPEATED:
            return False
        if any(pair[1] == producer for pair in self.repeated):
            return False  # its value is not the program's any more
        return self.region.repeatable(producer, reader)


class Move(NamedTuple):
    """A partition with one more computation, ``number``, in the group ``at``, which is then
    ``group``. ``time``: nanoseconds of all groups; ``fresh``: bit set of groups that must run
    before it from now on; the others as of the partition that it becomes."""

    time: float
    base: Partition
    at: int
    group: Placed
    number: int
    fresh: int
    repeated: tuple[tuple[int, int], ...]
    spilled: frozenset[int]
    times: tuple[float, ...]
    log: _Log | None

    def made(self) -> Partition:
        """The partition."""
        base, own = self.base, 1 << self.at
        groups = list(base.groups)
        groups[self.at :] = [self.group, *groups[self.at + 1 :]]
        if self.fresh:
            for i, other in enumerate(groups):
                if other.before & own:
                    groups[i] = other._replace(before=other.before | self.fresh)
        home = {**base.home, self.number: self.at}
        return Partition(
            base.region, tuple(groups), home, self.times, self.repeated, self.spilled, self.log
        )


def _bits(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low
