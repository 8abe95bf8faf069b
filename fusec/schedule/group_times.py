"""What the groups of a region cost, each worked out once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fusec.ir.loop import Compute
from fusec.schedule.cost import Machine, StepFacts, kernel_time, points
from fusec.schedule.dependencies import Dependencies
from fusec.schedule.placed import Placed
from fusec.schedule.space import Space

_Pair = tuple[int, int]


class GroupTimes:
    """steps and facts: of the region's computations, by number; stored: buffers that leave it."""

    def __init__(
        self,
        steps: Mapping[int, Compute],
        facts: Mapping[int, StepFacts],
        dependencies: Dependencies,
        stored: frozenset[int],
        machine: Machine,
    ) -> None:
        self._steps = steps
        self._facts = facts
        self._dependencies = dependencies
        self._stored = stored
        self._machine = machine
        self._known: dict[tuple[object, ...], float] = {}
        self._points: dict[Space, tuple[float, float, float, float]] = {}

    def of(self, group: Placed, repeated: Sequence[_Pair], spilled: frozenset[int]) -> float:
        """Nanoseconds. repeated: (producer, reader) of what is computed again in the reader's
        group; spilled: buffers that other groups read."""
        members = group.members
        again = tuple(pair for pair in repeated if pair[0] in members or pair[1] in members)
        key = (members, group.outer, again, group.writes & spilled)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._own(group, again, spilled)
        return found

    def _own(self, group: Placed, repeated: Sequence[_Pair], spilled: frozenset[int]) -> float:
        if repeated and self._dead(group, {producer for producer, _ in repeated}, spilled):
            return 0.0
        everywhere, rows, programs, width = self._points_of(group.space)
        extra: dict[int, float] = {}
        for producer, reader in repeated:
            if reader in group.members:
                extra[reader] = extra.get(reader, 0.0) + self._facts[producer].weight
        work = written = 0.0
        streams = len(group.reads)
        for member in group.members:
            facts = self._facts[member]
            visited = rows if member in group.outer else everywhere
            work += (facts.weight + extra.get(member, 0.0)) * visited
            output = self._steps[member].output
            if output in self._stored or output in spilled:
                written += facts.result_bytes
                streams += 1
        return kernel_time(
            self._machine,
            work=work,
            operations=group.operations,
            read=sum(group.reads.values()),
            again=self._read_again(group) if any(group.stages) else 0.0,
            written=written,
            streams=streams,
            inner_points=everywhere,
            rows=programs,
            row_bytes=4.0 * width * max(len(group.reads), 1),
        )

    def _dead(self, group: Placed, again: Collection[int], spilled: frozenset[int]) -> bool:
        """Whether every value of the group is computed again wherever it is used, so far."""
        if not any(member in again for member in group.members):
            return False
        for member in reversed(group.members):
            output = self._steps[member].output
            if output in self._stored or output in spilled:
                return False
            if member not in again and not any(
                output in self._dependencies.reads[m] for m in group.members
            ):
                return False  # not used yet
        return True

    def _points_of(self, space: Space) -> tuple[float, float, float, float]:
        """Points in all, of the kept axes, that can run apart from each other, and of a row."""
        found = self._points.get(space)
        if found is None:
            everywhere = points(space.sizes)
            programs = points(space.free()) if space.reduces else everywhere
            if space.reduces and not space.folded[-1]:
                programs /= self._machine.column_points
            found = everywhere, points(space.kept()), programs, points(space.width())
            self._points[space] = found
        return found

    def _read_again(self, group: Placed) -> float:
        """Bytes that later stages read anew."""
        sources: dict[int, dict[int, float]] = {}
        again: dict[tuple[int, int], float] = {}  # (stage, buffer)
        for member, stage in zip(group.members, group.stages, strict=True):
            step = self._steps[member]
            needs: dict[int, float] = {}  # from memory, in place of what the kernel makes
            for b, size in self._facts[member].reads.items():
                needs.update(sources.get(b, {b: size}))
            inner = member not in group.outer
            running = step.reduction is None or step.reduction.scans
            sources[step.output] = needs if inner and running else {}
            if stage and inner:
                again.update(((stage, b), size) for b, size in needs.items())
        return sum(again.values())
