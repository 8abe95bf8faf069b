"""Schedule → Program and kernels: source for every group, slots for every buffer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from fusec.codegen.gpu_source import GpuSource
from fusec.codegen.kernel_source import KernelSource
from fusec.ir import loop as lp
from fusec.ir.expr import Expr
from fusec.ir.kernel import KernelLoop
from fusec.ir.loop import BufferView, Compute, External, ExternArg, LoopProgram
from fusec.ir.program import Call, Constant, Launch, Program, ProgramStep
from fusec.ir.verify_kernel import verify_kernel
from fusec.ir.verify_program import verify_host_program
from fusec.schedule.axes import simplify_axes
from fusec.schedule.group_key import group_key
from fusec.schedule.groups import Group, Schedule
from fusec.schedule.in_place import in_place_pairs
from fusec.schedule.kernel_loop import build_kernel_loop, read_outside
from fusec.schedule.memory import Use, plan_memory

# Operators whose result can be written into planned memory.
OUT_FORMS: Final = {
    f"aten.{name}.default": f"aten.{name}.out" for name in ("mm", "addmm", "bmm", "baddbmm")
}


@dataclass(frozen=True, slots=True)
class Emitted:
    """One group's code: the source, its buffers in the order of its pointers, its sizes;
    ``in_place``: see `in_place_pairs`."""

    kernel: KernelSource | GpuSource
    buffers: tuple[int, ...]
    sizes: tuple[Expr, ...]
    in_place: tuple[tuple[int, int], ...] = ()


Emit = Callable[[KernelLoop], Emitted]
"""A target's code generator."""


@dataclass(frozen=True, slots=True)
class HostPlan:
    """``kernels`` are distinct, in the order of first use, as ``program.kernels`` names them."""

    program: Program
    kernels: tuple[KernelSource | GpuSource, ...]
    launches: tuple[Emitted, ...]


def build_host_plan(
    schedule: Schedule, emit: Emit, device: str = "cpu", alignment: int = 64
) -> HostPlan:
    """device: where the program runs; alignment: bytes, of planned memory. Raises CodegenError
    where the target has no code for a group."""
    program = schedule.program
    needed = read_outside(schedule)
    once = _EmitOnce(program, emit)
    launches: list[Emitted | None] = []
    uses: list[Use] = []
    for position, group in enumerate(schedule.groups):
        step = program.steps[group.members[0]]
        if isinstance(step, External):
            launches.append(None)
            uses.append(_external_use(step))
        else:
            made = once.emit(group, needed[position])
            launches.append(made)
            uses.append(_group_use(program, group, made, needed[position]))
    memory = plan_memory(program, uses, alignment)
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
    for position, group in enumerate(schedule.groups):
        free = tuple(numbering[b] for b in memory.free[position])
        launch = launches[position]
        step = program.steps[group.members[0]]
        if launch is not None:
            digest = launch.kernel.digest
            kernels.setdefault(digest, launch.kernel)
            number = order.setdefault(digest, len(order))
            steps.append(
                Launch(number, tuple(numbering[b] for b in launch.buffers), launch.sizes, free)
            )
        elif isinstance(step, External) and step.reason == "constant":
            data = step.args[0]
            (output,) = step.outputs
            assert isinstance(data, bytes)
            assert output is not None
            constants.append(Constant(numbering[output], data))
        elif isinstance(step, External):
            steps.append(_call(step, numbering, free))
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
        tuple(launch for launch in launches if launch is not None),
    )


class _EmitOnce:
    """Code for groups, made once for all groups that differ in their buffers' numbers alone."""

    def __init__(self, program: LoopProgram, emit: Emit) -> None:
        self.program = program
        self.make = emit
        self.made: dict[tuple[object, ...], tuple[Emitted, tuple[int, ...]]] = {}

    def emit(self, group: Group, needed: frozenset[int]) -> Emitted:
        key = group_key(self.program, group, needed)
        found = self.made.get(key.shape)
        if found is None:
            loop = simplify_axes(build_kernel_loop(self.program, group, needed))
            verify_kernel(loop)
            made = replace(self.make(loop), in_place=in_place_pairs(loop))
            self.made[key.shape] = (made, key.buffers)
            return made
        made, numbers = found
        here = dict(zip(numbers, key.buffers, strict=True))
        return replace(
            made,
            buffers=tuple(here[b] for b in made.buffers),
            in_place=tuple((here[a], here[b]) for a, b in made.in_place),
        )


def _external_use(step: External) -> Use:
    makes = tuple(o for o in step.outputs if o is not None)
    reads = tuple(view.buffer for view in lp.external_reads(step))
    return Use(makes, reads, calls=step.target not in OUT_FORMS)


def _group_use(program: LoopProgram, group: Group, made: Emitted, needed: frozenset[int]) -> Use:
    makes = []
    for number in group.members:
        step = program.steps[number]
        if isinstance(step, Compute) and step.output in needed:
            makes.append(step.output)
    reads = tuple(b for b in made.buffers if b not in makes)
    return Use(tuple(makes), reads, in_place=made.in_place)


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
