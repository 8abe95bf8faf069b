"""Program → callable: what can be done once is done once, the rest a call.

The address table holds the memory of every slot. Runs of kernel launches between library calls go
through the native runner in one call each.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fusec.errors import LoadError
from fusec.ir import expr as ex
from fusec.ir.expr import Expr
from fusec.ir.graph import Attr, Symbolic
from fusec.ir.loop import BufferView, ExternArg
from fusec.ir.program import Call, Launch, Program, Slot
from fusec.runtime.arena import Lease, lease
from fusec.runtime.launches import LaunchTable, LaunchTables
from fusec.runtime.operators import TORCH_DTYPES, attribute, operator, returns_view
from fusec.runtime.pages import LARGE, prefer_large_pages

Sizes = Mapping[str, int]


@dataclass(slots=True)
class _Frame:
    """The state of one run."""

    table: Any  # ctypes array of addresses
    tensors: list[torch.Tensor | None]
    sizes: Sizes
    arena: Lease | None
    launches: int  # address of the launch table


@dataclass(slots=True)
class _ViewOf:
    """How to make the tensor of one argument; ``cached`` holds arena views of a generation."""

    slot: int
    kind: str
    dtype: torch.dtype
    shape: tuple[Expr, ...]
    stride: tuple[Expr, ...]
    offset: Expr
    byte_offset: int
    whole: bool
    static: bool
    numbers: tuple[tuple[int, ...], tuple[int, ...], int] | None = None
    cached: tuple[int, torch.Tensor] | None = field(default=None)

    def tensor(self, frame: _Frame) -> torch.Tensor:
        if self.kind == "arena":
            return self._arena(frame)
        base = frame.tensors[self.slot]
        assert base is not None
        if self.whole:
            return base
        shape, stride, offset = self.numbers or self._evaluate(frame.sizes)
        return base.as_strided(shape, stride, base.storage_offset() + offset)

    def _evaluate(self, sizes: Sizes) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        return (
            tuple(ex.evaluate(e, sizes) for e in self.shape),
            tuple(ex.evaluate(e, sizes) for e in self.stride),
            ex.evaluate(self.offset, sizes),
        )

    def _arena(self, frame: _Frame) -> torch.Tensor:
        arena = frame.arena
        assert arena is not None
        if self.cached is not None and self.cached[0] == arena.generation and arena.shared:
            return self.cached[1]
        shape, stride, offset = self.numbers or self._evaluate(frame.sizes)
        flat = arena.block[self.byte_offset :].view(torch.uint8)
        usable = flat[: flat.numel() // self.dtype.itemsize * self.dtype.itemsize].view(self.dtype)
        made = usable.as_strided(shape, stride, usable.storage_offset() + offset)
        if arena.shared and self.static:
            self.cached = (arena.generation, made)
        return made


class ProgramRunner:
    """The callable of a program: takes a list of inputs (which it clears), returns a list."""

    _boxed_call = True

    def __init__(self, program: Program, functions: Sequence[int], runner: int) -> None:
        """``functions``: the address of each kernel; ``runner``: of the native runner.

        Raises LoadError where this torch lacks an operator or the program makes no sense.
        """
        self.program = program
        self._run_native = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_long, ctypes.c_long, ctypes.c_void_p
        )(runner)
        self._table = ctypes.c_void_p * max(len(program.slots), 1)
        self._symbols = _bindings(program)
        self._dynamic = bool(program.symbols)
        self._inputs = [(p, slot) for p, slot in enumerate(program.inputs) if isinstance(slot, int)]
        self._constants = [
            (c.slot, _constant(program.slots[c.slot], c.data)) for c in program.constants
        ]
        self._fresh_before = _fresh_before(program)
        self._template = self._make_template()
        self._launches = LaunchTables(
            lambda: LaunchTable(program, functions, self._memory), sized=self._dynamic
        )
        self._steps = self._make_steps()
        self._outputs = [self._make_output(o) for o in program.outputs]

    # -- preparation ------------------------------------------------------------------------

    def _view(self, view: BufferView) -> _ViewOf:
        slot = self.program.slots[view.buffer]
        kind, number, byte_offset = slot.kind, view.buffer, 0
        if kind == "alias":
            number = slot.number
            kind = self.program.slots[number].kind
        if kind == "arena":
            byte_offset = slot.number
        static = all(ex.is_int(e) for e in (*view.shape, *view.stride, view.offset))
        whole = (
            kind != "arena"
            and view.shape == slot.shape
            and view.stride == slot.stride
            and view.offset is ex.ZERO
        )
        made = _ViewOf(
            number, kind, TORCH_DTYPES[slot.dtype], view.shape, view.stride, view.offset,
            byte_offset, whole, static,
        )  # fmt: skip
        if static:
            made.numbers = made._evaluate({})
        return made

    def _make_template(self) -> list[tuple[int, int]]:
        """(slot, byte offset) of every arena slot: their addresses follow from the arena's."""
        return [(i, s.number) for i, s in enumerate(self.program.slots) if s.kind == "arena"]

    def _memory(self, slot: int) -> int:
        found = self.program.slots[slot]
        return found.number if found.kind == "alias" else slot

    def _make_steps(self) -> list[Callable[[_Frame], None]]:
        """Runs of launches become one step each; a slot made or freed in between splits a run."""
        made: list[Callable[[_Frame], None]] = []
        position = 0
        numbered = enumerate(self.program.steps)
        for is_launch, run in itertools.groupby(numbered, lambda item: isinstance(item[1], Launch)):
            steps = list(run)
            if is_launch:
                made.append(self._launch_run(position, steps))
                position += len(steps)
            else:
                for number, step in steps:
                    assert isinstance(step, Call)
                    made.append(self._call(number, step))
        return made

    def _launch_run(self, first: int, steps: list[tuple[int, Any]]) -> Callable[[_Frame], None]:
        fresh = [slot for number, _ in steps for slot in self._fresh_before[number]]
        free = [slot for _, step in steps for slot in step.free]
        last = first + len(steps)
        run = self._run_native
        make = [self._make_fresh(slot) for slot in fresh]

        def launch(frame: _Frame) -> None:
            for allocate in make:
                allocate(frame)
            run(frame.launches, first, last, ctypes.addressof(frame.table))
            for slot in free:
                frame.tensors[slot] = None

        return launch

    def _make_fresh(self, number: int) -> Callable[[_Frame], None]:
        slot = self.program.slots[number]
        dtype = TORCH_DTYPES[slot.dtype]
        fixed = _numbers(slot)
        bytes_of = 0
        if fixed is not None:
            sample = torch.empty_strided(*fixed, dtype=dtype, device="meta")
            bytes_of = sample.untyped_storage().nbytes()

        def allocate(frame: _Frame) -> None:
            shape, stride = fixed or _numbers_at(slot, frame.sizes)
            tensor = torch.empty_strided(shape, stride, dtype=dtype)
            size = bytes_of or tensor.untyped_storage().nbytes()
            if size >= LARGE:
                prefer_large_pages(tensor, size)
            frame.tensors[number] = tensor
            frame.table[number] = tensor.data_ptr()

        return allocate

    def _call(self, number: int, step: Call) -> Callable[[_Frame], None]:
        op = operator(step.target)
        args = [self._argument(a) for a in step.args]
        kwargs = {k: self._argument(v) for k, v in step.kwargs}
        make = [self._make_fresh(slot) for slot in self._fresh_before[number]]
        free = step.free
        if step.into:
            outs = [self._view(self._whole(o)) for o in step.outputs if o is not None]

            def call_into(frame: _Frame) -> None:
                for allocate in make:
                    allocate(frame)
                op(
                    *[a(frame) for a in args],
                    **{k: v(frame) for k, v in kwargs.items()},
                    out=outs[0].tensor(frame),
                )
                for slot in free:
                    frame.tensors[slot] = None

            return call_into
        views = returns_view(op)
        copies = views and self._reads_scratch(step)
        takes = [(i, o, self._adopt(o)) for i, o in enumerate(step.outputs) if o is not None]

        def call(frame: _Frame) -> None:
            result = op(*[a(frame) for a in args], **{k: v(frame) for k, v in kwargs.items()})
            results = result if step.multiple else (result,)
            for position, slot, adopt in takes:
                tensor = results[position]
                if copies:
                    tensor = tensor.clone()
                elif views and tensor.is_neg():
                    tensor = tensor.resolve_neg()  # kernels read memory as it is
                adopt(frame, slot, tensor)
            for slot in free:
                frame.tensors[slot] = None

        return call

    def _whole(self, slot: int) -> BufferView:
        found = self.program.slots[slot]
        return BufferView(slot, found.shape, found.stride, ex.ZERO)

    def _reads_scratch(self, step: Call) -> bool:
        """Whether a view that the call returns could outlive the memory under it."""
        stack: list[ExternArg] = [*step.args, *(v for _, v in step.kwargs)]
        while stack:
            arg = stack.pop()
            if isinstance(arg, BufferView) and self.program.slots[arg.buffer].kind != "input":
                return True
            if isinstance(arg, tuple):
                stack.extend(arg)
        return False

    def _adopt(self, number: int) -> Callable[[_Frame, int, torch.Tensor], None]:
        """Take a call's result into its slot, with the strides that its readers were promised."""
        slot = self.program.slots[number]
        fixed = _numbers(slot)
        dtype = TORCH_DTYPES[slot.dtype]

        def adopt(frame: _Frame, number: int, tensor: torch.Tensor) -> None:
            shape, stride = fixed or _numbers_at(slot, frame.sizes)
            if tensor.stride() != stride and not _same_layout(shape, tensor.stride(), stride):
                moved = torch.empty_strided(shape, stride, dtype=dtype)
                tensor = moved.copy_(tensor)
            frame.tensors[number] = tensor
            frame.table[number] = tensor.data_ptr()

        return adopt

    def _argument(self, arg: ExternArg) -> Callable[[_Frame], Any]:
        if isinstance(arg, BufferView):
            return self._view(arg).tensor
        if isinstance(arg, tuple):
            parts = [self._argument(a) for a in arg]
            return lambda frame: [p(frame) for p in parts]
        if isinstance(arg, Symbolic):
            value = arg.value
            return lambda frame: ex.evaluate(value, frame.sizes)
        plain = attribute(arg) if isinstance(arg, Attr) else arg
        return lambda frame: plain

    def _make_output(self, output: object) -> Callable[[_Frame], Any]:
        if isinstance(output, BufferView):
            return self._view(output).tensor
        if isinstance(output, Expr):
            return lambda frame: ex.evaluate(output, frame.sizes)
        return lambda frame: output

    # -- a call -----------------------------------------------------------------------------

    def __call__(self, inputs: list[Any]) -> list[Any]:
        program = self.program
        tensors: list[torch.Tensor | None] = [None] * len(program.slots)
        table = self._table()
        for position, slot in self._inputs:
            tensor = inputs[position]
            tensors[slot] = tensor
            table[slot] = tensor.data_ptr()
        for slot, tensor in self._constants:
            tensors[slot] = tensor
            table[slot] = tensor.data_ptr()
        sizes: Sizes = {}
        if self._dynamic:
            sizes = {name: read(inputs) for name, read in self._symbols}
        inputs.clear()
        launches = self._launches.take(sizes)
        arena = lease(program.arena_bytes) if program.arena_bytes else None
        try:
            if arena is not None:
                base = arena.block.data_ptr()
                for slot, offset in self._template:
                    table[slot] = base + offset
            frame = _Frame(table, tensors, sizes, arena, launches.address)
            if not torch.is_grad_enabled():  # as in every forward and backward of AOTAutograd
                return self._run(frame)
            with torch.no_grad():
                return self._run(frame)
        finally:
            self._launches.give_back(launches)
            if arena is not None:
                arena.give_back()

    def _run(self, frame: _Frame) -> list[Any]:
        for step in self._steps:
            step(frame)
        return [output(frame) for output in self._outputs]


def _numbers(slot: Slot) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    if all(ex.is_int(e) for e in (*slot.shape, *slot.stride)):
        return _numbers_at(slot, {})
    return None


def _numbers_at(slot: Slot, sizes: Sizes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (
        tuple(ex.evaluate(e, sizes) for e in slot.shape),
        tuple(ex.evaluate(e, sizes) for e in slot.stride),
    )


def _same_layout(shape: Sequence[int], a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two strides address the same elements: sizes of 0 and 1 do not matter."""
    return 0 in shape or all(n == 1 or x == y for n, x, y in zip(shape, a, b, strict=True))


def _constant(slot: Slot, data: bytes) -> torch.Tensor:
    numbers = _numbers(slot)
    if numbers is None:
        raise LoadError("a constant has a symbolic size")
    shape, _ = numbers
    dtype = TORCH_DTYPES[slot.dtype]
    count = 1
    for size in shape:
        count *= size
    if count * dtype.itemsize != len(data):
        raise LoadError(f"a constant of {len(data)} bytes for {count} elements of {slot.dtype}")
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).reshape(shape)


def _number_at(position: int) -> Callable[[list[Any]], int]:
    return lambda inputs: int(inputs[position])


def _size_at(position: int, dim: int) -> Callable[[list[Any]], int]:
    return lambda inputs: int(inputs[position].shape[dim])


def _stride_at(position: int, dim: int) -> Callable[[list[Any]], int]:
    return lambda inputs: int(inputs[position].stride(dim))


def _bindings(program: Program) -> list[tuple[str, Callable[[list[Any]], int]]]:
    """For each symbol how to read it from the inputs. Raises LoadError where none has it."""
    found: dict[str, Callable[[list[Any]], int]] = {}
    for position, item in enumerate(program.inputs):
        if isinstance(item, ex.Sym):
            found.setdefault(item.name, _number_at(position))
        elif isinstance(item, int):
            slot = program.slots[item]
            for dim, (size, step) in enumerate(zip(slot.shape, slot.stride, strict=True)):
                if isinstance(size, ex.Sym):
                    found.setdefault(size.name, _size_at(position, dim))
                if isinstance(step, ex.Sym):
                    found.setdefault(step.name, _stride_at(position, dim))
    missing = [s.name for s in program.symbols if s.name not in found]
    if missing:
        raise LoadError(f"no input tells the size {missing[0]}")
    return [(s.name, found[s.name]) for s in program.symbols]


def _fresh_before(program: Program) -> list[list[int]]:
    """For each step the fresh slots that it is the first to use."""
    seen: set[int] = set()
    fresh: list[list[int]] = []
    for step in program.steps:
        used = step.slots if isinstance(step, Launch) else step.outputs
        first = [
            u for u in used if u is not None and program.slots[u].kind == "fresh" and u not in seen
        ]
        seen.update(first)
        fresh.append(first)
    return fresh
