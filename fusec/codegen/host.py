"""Schedule → Program and kernels: source for every group, slots for every buffer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fusec.codegen.gpu_source import GpuSource
from fusec.codegen.kernel_source import KernelSource
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr
from fusec.ir.graph import SymbolRange
from fusec.ir.kernel import KernelLoop
from fusec.ir.loop import BufferView, Compute, External, ExternArg, LoopProgram
from fusec.ir.program import Call, Constant, Launch, Program, ProgramStep
from fusec.ir.verify_kernel import verify_kernel
from fusec.ir.verify_program import verify_host_program
from fusec.parts import Parts
from fusec.schedule.axes import simplify_axes
from fusec.schedule.group_key import GroupKey, group_key
from fusec.schedule.groups import Group, Schedule
from fusec.schedule.in_place import in_place_pairs
from fusec.schedule.kernel_loop import build_kernel_loop, read_outside
from fusec.schedule.memory import Use, plan_memory
from fusec.schedule.settled import Settled

# Operators whose result can be written into planned memory.
OUT_FORMS: Final = {
    f"aten.{name}.default": f"aten.{name}.out" for name in ("mm", "addmm", "bmm", "baddbmm")
}


@dataclass(frozen=True, slots=True)
class Emitted:
    """A launch: the source, its buffers in the order of its pointers, its sizes; ``in_place``: see
    `in_place_pairs`; ``groups``: how many it computes; ``wide``: the same for calls whose sizes are
    too large for ``kernel``, where there may be any: for each call one of the two has programs."""

    kernel: KernelSource | GpuSource
    buffers: tuple[int, ...]
    sizes: tuple[Expr, ...]
    in_place: tuple[tuple[int, int], ...] = ()
    groups: int = 1
    wide: GpuSource | None = None


Emit = Callable[[KernelLoop], Emitted]
"""A target's code generator."""


@dataclass(frozen=True, slots=True)
class Batching:
    """How a target makes independent launches of one kernel a single one. most: at most how many of
    a kernel; batch: does it, for launches that differ in their buffers alone."""

    most: Callable[[KernelSource | GpuSource], int]
    batch: Callable[[Sequence[Emitted]], Emitted]


@dataclass(frozen=True, slots=True)
class HostPlan:
    """``kernels`` are distinct, in the order of first use, as ``program.kernels`` names them;
    ``launches``: for each group that is computed, the one that does it; ``started``: how many
    kernels a call starts."""

    program: Program
    kernels: tuple[KernelSource | GpuSource, ...]
    launches: tuple[Emitted, ...]
    started: int


class EmitOnce:
    """Code for groups, made once for all groups that differ in their buffers' numbers alone."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._made: dict[tuple[object, ...], tuple[Emitted, tuple[int, ...]]] = {}

    def emit(
        self, program: LoopProgram, group: Group, needed: frozenset[int], key: GroupKey
    ) -> Emitted:
        """needed: what the group stores; key: that of the group."""
        found = self._made.get(key.shape)
        if found is None:
            loop = simplify_axes(build_kernel_loop(program, group, needed))
            verify_kernel(loop)
            made = replace(self._emit(loop), in_place=in_place_pairs(loop))
            self._made[key.shape] = (made, key.buffers)
            return made
        made, numbers = found
        here = dict(zip(numbers, key.buffers, strict=True))
        return replace(
            made,
            buffers=tuple(here[b] for b in made.buffers),
            in_place=tuple((here[a], here[b]) for a, b in made.in_place),
        )

    def ahead(self, settled: Settled) -> tuple[KernelSource | GpuSource, ...]:
        """The kernels of a group, before the rest of its schedule is known."""
        program, group, needed = settled.program, settled.group, settled.needed
        made = self.emit(program, group, needed, group_key(program, group, needed))
        return _kernels(made, program.symbols)


def build_host_plan(
    schedule: Schedule,
    once: EmitOnce,
    device: str = "cpu",
    alignment: int = 64,
    batching: Batching | None = None,
    own_bytes: int | None = None,
) -> Parts[KernelSource | GpuSource, HostPlan]:
    """Its parts are the kernels as soon as there is code for them; equal ones may come again.

    once: makes it; device: where the program runs; alignment: bytes, of planned memory; batching:
    None where the target has none; own_bytes: of buffers that have memory of their own. Raises
    CodegenError where the target has no code for a group."""
    program = schedule.program
    needed = read_outside(schedule)
    starts = yield from _starts(schedule, needed, once, batching)
    uses = [_use(program, start) for start in starts]
    memory = plan_memory(program, uses, alignment, own_bytes)
    numbering = {buffer: number for number, buffer in enumerate(memory.slots)}
    for buffer, base in memory.homes.items():
        if base in numbering:
            numbering[buffer] = numbering[base]
    slots = tuple(
        replace(s, number=numbering[s.number]) if s.kind == "alias" else s
        for s in memory.slots.values()
    )
    kernels: dict[str, KernelSource | GpuSource] = {}
    order: dict[str, int] = {}
    steps: list[ProgramStep] = []
    constants: list[Constant] = []
    for start, dead in zip(starts, memory.free, strict=True):
        free = tuple(numbering[b] for b in dead)
        if isinstance(start, _Together):
            launch = start.launch
            named = tuple(numbering[b] for b in launch.buffers)
            for kernel in _kernels(launch, program.symbols):
                kernels.setdefault(kernel.digest, kernel)
                number = order.setdefault(kernel.digest, len(order))
                steps.append(Launch(number, named, launch.sizes))
            steps[-1] = replace(steps[-1], free=free)
        elif start.reason == "constant":
            data = start.args[0]
            (output,) = start.outputs
            assert isinstance(data, bytes)
            assert output is not None
            constants.append(Constant(numbering[output], data))
        else:
            steps.append(_call(start, numbering, free))
    sources = tuple(kernels.values())
    outputs = tuple(
        _renumber(o, numbering) if isinstance(o, BufferView) else o for o in program.outputs
    )
    made_program = Program(
        tuple(numbering[i] if isinstance(i, int) else i for i in program.inputs),
        slots,
        tuple(constants),
        tuple(steps),
        outputs,
        tuple((f"kernel/{k.digest}", k.name) for k in sources),
        program.symbols,
        memory.arena_bytes,
        device,
    )
    verify_host_program(made_program)
    return HostPlan(
        made_program,
        sources,
        tuple(s.launch for s in starts if isinstance(s, _Together) for _ in s.apart),
        sum(isinstance(s, _Together) for s in starts),
    )


def _kernels(
    launch: Emitted, symbols: tuple[SymbolRange, ...]
) -> tuple[KernelSource | GpuSource, ...]:
    """The kernels of a launch: without the one for large sizes where the program has none."""
    if launch.wide is None:
        return (launch.kernel,)
    largest = {s.name: s.upper for s in symbols if s.upper is not None and s.lower >= 0}
    try:
        sizes = [ex.evaluate(e, largest) for e in launch.sizes]
    except KeyError:
        return (launch.kernel, launch.wide)
    # It computes with no more than this: what it reaches grows with the sizes.
    needed = any(0 not in v.counts(sizes) for v in launch.wide.variants)
    return (launch.kernel, launch.wide) if needed else (launch.kernel,)


@dataclass(frozen=True, slots=True)
class _Together:
    """A launch, the launches that it stands for, and for each of those what it stores."""

    launch: Emitted
    apart: tuple[Emitted, ...]
    makes: tuple[tuple[int, ...], ...]


def _starts(
    schedule: Schedule,
    needed: Mapping[int, frozenset[int]],
    once: EmitOnce,
    batching: Batching | None,
) -> Parts[KernelSource | GpuSource, list[External | _Together]]:
    """What the host starts, in order. Code is made for the largest groups first: theirs are the
    kernels that take longest to build, and so should be begun first."""
    program, groups = schedule.program, schedule.groups
    ends = dict(schedule.batches)
    units: list[range] = []  # of groups that start together, by position
    while (first := units[-1].stop if units else 0) < len(groups):
        units.append(range(first, ends.get(first, first + 1)))
    starts: dict[range, Sequence[External | _Together]] = {}
    keys: dict[range, list[GroupKey]] = {}
    for unit in units:
        step = program.steps[groups[unit.start].members[0]]
        if isinstance(step, External):
            starts[unit] = [step]
        else:
            keys[unit] = [group_key(program, groups[at], needed[at]) for at in unit]
    for unit in sorted(keys, key=lambda unit: -len(keys[unit][0].shape)):
        made = [
            once.emit(program, groups[at], needed[at], key)
            for at, key in zip(unit, keys[unit], strict=True)
        ]
        makes = [_makes(program, groups[at], needed[at]) for at in unit]
        together = _together(made, makes, batching)
        for start in together:
            yield from _kernels(start.launch, program.symbols)
        starts[unit] = together
    return [start for unit in units for start in starts[unit]]


def _together(
    made: Sequence[Emitted], makes: Sequence[tuple[int, ...]], batching: Batching | None
) -> list[_Together]:
    """Launches of one kernel as few, of equal length, so that most are of one kernel."""
    most = 1 if batching is None else batching.most(made[0].kernel)
    count = -(-len(made) // most)
    found: list[_Together] = []
    for i in range(count):
        first, last = (len(made) * n // count for n in (i, i + 1))
        apart = tuple(made[first:last])
        launch = apart[0] if batching is None or len(apart) == 1 else batching.batch(apart)
        found.append(_Together(launch, apart, tuple(makes[first:last])))
    return found


def _makes(program: LoopProgram, group: Group, needed: frozenset[int]) -> tuple[int, ...]:
    outputs = (program.steps[number] for number in group.members)
    return tuple(s.output for s in outputs if isinstance(s, Compute) and s.output in needed)


def _use(program: LoopProgram, start: External | _Together) -> Use:
    if isinstance(start, External):
        made = tuple(o for o in start.outputs if o is not None)
        read = tuple(view.buffer for view in lp.external_reads(start))
        return Use(made, read, calls=start.target not in OUT_FORMS)
    makes = [b for found in start.makes for b in found]
    reads = [b for b in start.launch.buffers if b not in set(makes)]
    # What one of the launches reads straight, another one may read anywhere.
    users = Counter(m for one in start.apart for m in {_memory(program, b) for b in one.buffers})
    in_place = tuple(
        (out, read)
        for one in start.apart
        for out, read in one.in_place
        if users[_memory(program, read)] == 1
    )
    return Use(tuple(makes), tuple(reads), in_place=in_place)


def _memory(program: LoopProgram, buffer: int) -> int:
    found = program.buffers[buffer]
    return found.base if found.kind == "alias" else buffer


def _call(step: External, numbering: dict[int, int], free: tuple[int, ...]) -> Call:
    into = step.target in OUT_FORMS
    return Call(
        OUT_FORMS[step.target] if into else step.target,
        tuple(_extern(a, numbering) for a in step.args),
        tuple((k, _extern(v, numbering)) for k, v in step.kwargs),
        tuple(None if o is None else numbering[o] for o in step.outputs),
        step.multiple,
        into,
        step.reason,
        free,
    )


def _renumber(view: BufferView, numbering: dict[int, int]) -> BufferView:
    return BufferView(numbering[view.buffer], view.shape, view.stride, view.offset)


def _extern(arg: ExternArg, numbering: dict[int, int]) -> ExternArg:
    if isinstance(arg, BufferView):
        return _renumber(arg, numbering)
    if isinstance(arg, tuple):
        return tuple(_extern(a, numbering) for a in arg)
    return arg
