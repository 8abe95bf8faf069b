"""What the compiler made of a graph, and why: kernels, calls, bytes, refusals to fuse.

    explain(graph, target, options, traces=part.traces) -> Explanation

Nothing is built or run. Equal kernels over the same lines of code (the layers of a network) are
one entry that says how often it occurs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fusec.codegen.host import HostPlan
from fusec.inspect.refusals import Refusal, refusals
from fusec.inspect.source_line import SourceLine, source_line
from fusec.inspect.traffic import Peak, call_traffic, group_traffic, lone_bytes, program_peak
from fusec.ir.graph import Graph
from fusec.ir.loop import Compute, External
from fusec.ir.program import Launch
from fusec.options import Options, Target
from fusec.pipeline import stages
from fusec.schedule.groups import Group, Schedule
from fusec.schedule.kernel_loop import read_outside
from fusec.schedule.space import Space
from fusec.trace import Recorder

TYPICAL_SIZE: Final = 64  # of a symbol that nobody gives a value


@dataclass(frozen=True, slots=True)
class Operation:
    """An ATen operation of the graph: its node and line of code. ``counted``: label of the kernel
    that counts its bytes, where several compute it or a part of it; empty: this one."""

    name: str
    node: int
    source: SourceLine | None
    counted: str = ""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel. ``label`` names it in this explanation, ``space`` are the sizes of its loops,
    those that are folded marked. Bytes are of one group of computations; ``alone`` is what its
    operations would move if each ran by itself; ``together``: groups that one launch computes."""

    label: str
    name: str
    digest: str
    operations: tuple[Operation, ...]
    space: tuple[str, ...]
    read: int
    written: int
    alone: int
    refusals: tuple[Refusal, ...]
    together: int = 1
    count: int = 1

    @property
    def saved(self) -> int:
        """Bytes that fusion saves a group."""
        return self.alone - self.read - self.written


@dataclass(frozen=True, slots=True)
class Call:
    """An operation that ATen runs. ``reason``: library (done better there), fallback (the compiler
    has no rule for it), random (draws eager's numbers) or check (of indices)."""

    label: str
    operation: Operation
    reason: str
    read: int
    written: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class Explanation:
    """A graph explained. ``entries`` in the order in which they first run; ``launches``: of kernels
    in one run; ``sizes``: the values taken for symbols; ``calls`` counts every occurrence."""

    title: str
    operations: int
    entries: tuple[Kernel | Call, ...]
    launches: int
    peak: Peak
    sizes: Mapping[str, int]

    @property
    def distinct(self) -> int:
        return len({e.digest for e in self.entries if isinstance(e, Kernel)})

    def calls(self, reason: str) -> int:
        """How many calls are made for that reason."""
        return sum(e.count for e in self.entries if isinstance(e, Call) and e.reason == reason)

    @property
    def moved(self) -> int:
        """Bytes that all kernels read and write in one run."""
        return sum((e.read + e.written) * e.count for e in self.entries if isinstance(e, Kernel))

    @property
    def alone(self) -> int:
        """Bytes that the same operations would move one by one."""
        return sum(e.alone * e.count for e in self.entries if isinstance(e, Kernel))


def explain(
    graph: Graph,
    target: Target,
    options: Options,
    *,
    traces: Sequence[str | None] = (),
    title: str = "graph",
    sizes: Mapping[str, int] | None = None,
) -> Explanation:
    """Explain what the compiler makes of a graph.

    traces: stack traces by node, as capture hands them over; sizes: values of the graph's symbols,
    64 (or what their range allows) where none is given. Raises CompilerError as a compile does.
    """
    chosen = _sizes(graph, sizes or {})
    grouped, host = stages(graph, target, options, recorder=Recorder())
    entries = _Entries(graph, traces, grouped, host, chosen).make()
    return Explanation(
        title,
        sum(node.op == "call" for node in graph.nodes),
        _folded(entries),
        sum(isinstance(step, Launch) for step in host.program.steps),
        program_peak(host.program, chosen),
        chosen,
    )


def _sizes(graph: Graph, given: Mapping[str, int]) -> dict[str, int]:
    found = {}
    for symbol in graph.symbols:
        typical = max(TYPICAL_SIZE, symbol.lower)
        if symbol.upper is not None:
            typical = min(typical, symbol.upper)
        found[symbol.name] = given.get(symbol.name, typical)
    return found


class _Entries:
    """One entry a group, labelled k0, k1, … and c0, c1, …"""

    def __init__(
        self,
        graph: Graph,
        traces: Sequence[str | None],
        grouped: Schedule,
        host: HostPlan,
        sizes: Mapping[str, int],
    ) -> None:
        self.graph = graph
        self.traces = traces
        self.grouped = grouped
        self.host = host
        self.sizes = sizes
        self.labels = self._labels()
        # The kernel that counts a node: the last one. A part of it comes before (its range check).
        self.counted: dict[int, int] = {
            node: position
            for position, group in enumerate(grouped.groups)
            if group.space is not None
            for node in self._nodes(group)
        }

    def make(self) -> list[Kernel | Call]:
        program = self.grouped.program
        stored = read_outside(self.grouped)
        labels = self.labels
        why = refusals(self.grouped, labels)
        launches = iter(self.host.launches)
        made: list[Kernel | Call] = []
        for position, group in enumerate(self.grouped.groups):
            step = program.steps[group.members[0]]
            if isinstance(step, Compute):
                emitted = next(launches)
                traffic = group_traffic(program, group, stored[position], self.sizes)
                operations = self._operations(group, position)
                alone = sum(
                    lone_bytes(self.graph, o.node, self.sizes) for o in operations if not o.counted
                )
                made.append(
                    Kernel(
                        labels[position],
                        emitted.kernel.name,
                        emitted.kernel.digest,
                        operations,
                        _space(group.space),
                        traffic.read,
                        traffic.written,
                        alone,
                        why[position],
                        emitted.groups,
                    )
                )
            elif step.reason != "constant":
                traffic = call_traffic(program, step, self.sizes)
                made.append(
                    Call(
                        labels[position],
                        self._operation(step.origin[0], step.target),
                        step.reason,
                        traffic.read,
                        traffic.written,
                    )
                )
        return made

    def _labels(self) -> list[str]:
        kernels = calls = 0
        labels = []
        for group in self.grouped.groups:
            step = self.grouped.program.steps[group.members[0]]
            if isinstance(step, External):
                labels.append(f"c{calls}")
                calls += step.reason != "constant"
            else:
                labels.append(f"k{kernels}")
                kernels += 1
        return labels

    def _nodes(self, group: Group) -> list[int]:
        program = self.grouped.program
        return sorted({node for number in group.members for node in program.steps[number].origin})

    def _operations(self, group: Group, position: int) -> tuple[Operation, ...]:
        found = []
        for node in self._nodes(group):
            home = self.counted[node]
            label = "" if home == position else self.labels[home]
            found.append(replace(self._operation(node), counted=label))
        return tuple(found)

    def _operation(self, node: int, name: str = "") -> Operation:
        trace = self.traces[node] if node < len(self.traces) else None
        return Operation(name or self.graph.nodes[node].target, node, source_line(trace))


def _space(space: Space | None) -> tuple[str, ...]:
    return () if space is None else space.labels()


def _folded(entries: Sequence[Kernel | Call]) -> tuple[Kernel | Call, ...]:
    """Equal entries as one with a count, labelled afresh in the order of first occurrence."""
    first: dict[object, int] = {}
    kept: list[Kernel | Call] = []
    alike: list[list[Kernel | Call]] = []
    label: dict[str, str] = {}
    for entry in entries:
        position = first.setdefault(_identity(entry), len(kept))
        if position == len(kept):
            kind = "k" if isinstance(entry, Kernel) else "c"
            number = sum(e.label[0] == kind for e in kept)
            kept.append(replace(entry, label=f"{kind}{number}"))
            alike.append([])
        alike[position].append(entry)
        label[entry.label] = kept[position].label
    result: list[Kernel | Call] = []
    for entry, same in zip(kept, alike, strict=True):
        if isinstance(entry, Kernel):
            why: dict[str, Refusal] = {}
            for one in same:
                for refusal in one.refusals if isinstance(one, Kernel) else ():
                    other = label.get(refusal.other, refusal.other)
                    if other != entry.label:  # the same kernel elsewhere in the network
                        why.setdefault(other, replace(refusal, other=other))
            operations = tuple(
                replace(o, counted=label.get(o.counted, o.counted)) for o in entry.operations
            )
            result.append(
                replace(
                    entry,
                    count=len(same),
                    operations=operations,
                    refusals=tuple(why.values()),
                )
            )
        else:
            result.append(replace(entry, count=len(same)))
    return tuple(result)


def _identity(entry: Kernel | Call) -> object:
    """What entries have in common that a person would call the same."""
    if isinstance(entry, Kernel):
        lines = tuple((o.name, o.source, bool(o.counted)) for o in entry.operations)
        return entry.digest, lines, entry.read, entry.written, entry.alone
    operation = entry.operation
    return operation.name, operation.source, entry.reason, entry.read, entry.written
