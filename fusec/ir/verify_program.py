"""The verifier of programs: an independent check of the memory plan and of what steps name.

Liveness is taken from the program alone: a slot lives from the first step that names it to the last
one, or to the end where it is returned. Slots that live at the same time never share arena bytes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from fusec.errors import VerifyError
from fusec.ir import expr as ex
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr, Sym, symbols
from fusec.ir.loop import BufferView, ExternArg, extern_views
from fusec.ir.program import Call, Launch, Program, ProgramStep, Slot


@dataclass(slots=True)
class _Life:
    """Steps that name each slot: the first and the last of them; alias counts for its base."""

    first: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)

    def see(self, slot: int, step: int) -> None:
        self.first.setdefault(slot, step)
        self.last[slot] = step


def verify_host_program(program: Program) -> None:
    """Check a program before it is written and after it is read. Raises VerifyError."""
    _verify_slots(program)
    _verify_symbols(program)
    life = _verify_steps(program)
    _verify_arena(program, life)


def _verify_slots(program: Program) -> None:
    if program.arena_bytes < 0:
        raise VerifyError(f"an arena of {program.arena_bytes} bytes")
    for number, slot in enumerate(program.slots):
        where = f"slot {number}"
        if slot.kind == "input":
            if not 0 <= slot.number < len(program.inputs) or program.inputs[slot.number] != number:
                raise VerifyError(f"{where}: is no input of the program")
        elif slot.kind == "alias":
            base = program.slots[slot.number] if 0 <= slot.number < len(program.slots) else None
            if base is None or base.kind != "input" or base.dtype != slot.dtype:
                raise VerifyError(f"{where}: overwrites something that is no input")
        elif slot.kind == "arena":
            size = slot_bytes(slot)
            if size is None:
                raise VerifyError(f"{where}: an unknown size in the arena")
            if slot.number < 0 or slot.number + size > program.arena_bytes:
                raise VerifyError(f"{where}: lies outside the arena")
            if slot.number % DTYPES[slot.dtype].size:
                raise VerifyError(f"{where}: is not aligned to its elements")
    for constant in program.constants:
        if program.slots[constant.slot].kind != "result":
            raise VerifyError(f"slot {constant.slot}: a constant in planned memory")


def _verify_symbols(program: Program) -> None:
    declared = {s.name for s in program.symbols}
    for e in _expressions(program):
        for symbol in symbols(e):
            if symbol.upper is not None or symbol.name not in declared:
                raise VerifyError(f"the program uses {symbol.name}, which is no size of it")
    told = {item.name for item in program.inputs if isinstance(item, Sym)}
    for item in program.inputs:
        if isinstance(item, int):
            slot = program.slots[item]
            told.update(e.name for e in (*slot.shape, *slot.stride) if isinstance(e, Sym))
    if not declared <= told:
        raise VerifyError(f"no input tells the size {min(declared - told)}")


def _expressions(program: Program) -> Iterator[Expr]:
    for slot in program.slots:
        yield from slot.shape
        yield from slot.stride
    for step in program.steps:
        if isinstance(step, Launch):
            yield from step.sizes
        for view in _views(step):
            yield from (*view.shape, *view.stride, view.offset)
    for output in program.outputs:
        if isinstance(output, Expr):
            yield output
        elif isinstance(output, BufferView):
            yield from (*output.shape, *output.stride, output.offset)


def _views(step: ProgramStep) -> Iterator[BufferView]:
    if isinstance(step, Call):
        args: tuple[ExternArg, ...] = (*step.args, *(v for _, v in step.kwargs))
        for arg in args:
            yield from extern_views(arg)


def _verify_steps(program: Program) -> _Life:
    """Names of kernels; slots are made before they are read, never after they were freed."""
    life = _Life()
    made = {i for i in program.inputs if isinstance(i, int)}
    made.update(c.slot for c in program.constants)
    freed: dict[int, int] = {}
    for number, step in enumerate(program.steps):
        where = f"step {number}"
        named = _named(program, step)
        if isinstance(step, Launch):
            if not 0 <= step.kernel < len(program.kernels):
                raise VerifyError(f"{where}: kernel {step.kernel} of {len(program.kernels)}")
            for slot in named:
                if slot not in made and program.slots[slot].kind == "result":
                    raise VerifyError(f"{where}: uses slot {slot} before the call that makes it")
        else:
            where = f"{where} ({step.target})"
            outputs = {o for o in step.outputs if o is not None}
            for slot in outputs:
                if (program.slots[slot].kind == "result") == step.into:
                    raise VerifyError(f"{where}: slot {slot} is not where its result can go")
            for view in _views(step):
                base = _memory(program, view.buffer)
                if base not in made:
                    raise VerifyError(f"{where}: reads slot {base} before it is made")
                _verify_inside(program, view, where)
        for slot in named:
            if slot in freed:
                raise VerifyError(f"{where}: uses slot {slot}, freed by step {freed[slot]}")
            life.see(slot, number)
            made.add(slot)
        for slot in step.free:
            if slot not in made or program.slots[slot].kind not in ("fresh", "result"):
                raise VerifyError(f"{where}: frees slot {slot}, which it cannot")
            freed[slot] = number
    for output in program.outputs:
        if isinstance(output, BufferView):
            base = _memory(program, output.buffer)
            if base not in made or base in freed or program.slots[base].kind == "arena":
                raise VerifyError(f"the program returns slot {base}, which is not there at the end")
            _verify_inside(program, output, "an output")
    return life


def _named(program: Program, step: ProgramStep) -> list[int]:
    if isinstance(step, Launch):
        slots = list(step.slots)
    else:
        slots = [v.buffer for v in _views(step)] + [o for o in step.outputs if o is not None]
    return [_memory(program, s) for s in slots]


def _memory(program: Program, slot: int) -> int:
    found = program.slots[slot]
    return found.number if found.kind == "alias" else slot


def _verify_inside(program: Program, view: BufferView, where: str) -> None:
    """A view stays inside the memory that the program itself made (an input's may be larger)."""
    slot = program.slots[view.buffer]
    if slot.kind in ("input", "alias"):
        return
    room, reach = _extent(slot.shape, slot.stride), _extent(view.shape, view.stride)
    offset = ex.as_int(view.offset)
    if room is None or reach is None or offset is None or not reach:
        return
    if offset < 0 or offset + reach > room:
        raise VerifyError(f"{where}: a view of slot {view.buffer} reaches beyond its memory")


def _verify_arena(program: Program, life: _Life) -> None:
    """Sweep over the steps: what lives at one time lies apart."""
    starts = sorted(
        (first, slot) for slot, first in life.first.items() if program.slots[slot].kind == "arena"
    )
    living: list[tuple[int, int]] = []  # (last step, slot)
    for first, slot in starts:
        while living and living[0][0] < first:
            heapq.heappop(living)
        start = program.slots[slot].number
        end = start + (slot_bytes(program.slots[slot]) or 0)
        for _, other in living:
            other_start = program.slots[other].number
            other_end = other_start + (slot_bytes(program.slots[other]) or 0)
            if start < other_end and other_start < end:
                raise VerifyError(
                    f"slots {other} and {slot} live at once in one place of the arena"
                )
        heapq.heappush(living, (life.last[slot], slot))


def slot_bytes(slot: Slot) -> int | None:
    """The bytes that a slot's elements span; None where that depends on sizes."""
    extent = _extent(slot.shape, slot.stride)
    return None if extent is None else extent * DTYPES[slot.dtype].size


def _extent(shape: tuple[Expr, ...], stride: tuple[Expr, ...]) -> int | None:
    """Elements from the first to the last; None where it holds symbols."""
    reach = 1
    for size, step in zip(shape, stride, strict=True):
        n, s = ex.as_int(size), ex.as_int(step)
        if n is None or s is None or s < 0:
            return None
        if n == 0:
            return 0
        reach += (n - 1) * s
    return reach
