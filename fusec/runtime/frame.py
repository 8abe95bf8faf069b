"""The state of one run of a program, and where it runs: memory and launches by processor.

`ProgramRunner` (`fusec.runtime.program`) knows steps; a `Place` knows how a processor gives memory
and starts kernels. There is one for CPUs (`cpu_place`) and one for GPUs (`gpu_place`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from fusec.errors import LoadError
from fusec.ir import expr as ex
from fusec.ir.loop import BufferView
from fusec.ir.program import Program, Slot
from fusec.runtime.arena import Lease
from fusec.runtime.operators import TORCH_DTYPES
from fusec.runtime.seams import window
from fusec.runtime.sizes import NO_SIZES, Sizes


@dataclass(slots=True)
class Frame:
    """table: a ctypes array with the address of each slot's memory; address: of the table itself;
    tensors: by slot, None where there is none now; launches: what the place's launcher takes."""

    table: Any
    address: int
    tensors: list[Any]
    sizes: Sizes
    arena: Lease
    launches: Any
    device: torch.device


Step = Callable[[Any], None]
"""A prepared part of a run: takes the frame that its own place made."""


class Place(Protocol):
    """Where a program runs."""

    def begin(self, inputs: list[Any], sizes: Sizes) -> Frame:
        """A frame with the inputs and the constants in it; clears the list of inputs."""
        ...

    def end(self, frame: Any) -> None:
        """Give back what `begin` took, after the run or its failure."""
        ...

    def launches(self, first: int, last: int) -> Step:
        """Starts launches first to last, counted among the launches of the program."""
        ...

    def fresh(self, slot: int) -> Step:
        """Makes the tensor of a fresh slot."""
        ...

    def taken(self, slot: int) -> Step | None:
        """What to do when a call's result came into the slot's tensor, beside its address."""
        ...

    def written(self, slot: int) -> Step | None:
        """What to do after a call has written into the tensor of a slot."""
        ...


Reader = Callable[[Frame], torch.Tensor]
"""Gives a tensor of a run."""


class ViewOf:
    """A view of a slot, prepared."""

    def __init__(self, program: Program, view: BufferView, number: int = 0) -> None:
        """number: of the view among those of the program; no two views share one."""
        slot = program.slots[view.buffer]
        self.slot = memory_of(program, view.buffer)
        self.kind = program.slots[self.slot].kind
        self._number = number
        self._view = view
        self._dtype = TORCH_DTYPES[slot.dtype]
        self._whole = (
            self.kind != "arena"
            and view.shape == slot.shape
            and view.stride == slot.stride
            and view.offset is ex.ZERO
        )
        self._start = (
            program.slots[self.slot].number // self._dtype.itemsize if self.kind == "arena" else 0
        )
        fixed = all(ex.is_int(e) for e in (*view.shape, *view.stride, view.offset))
        self._numbers = self._evaluate(NO_SIZES) if fixed else None

    def tensor(self) -> Reader:
        """For a call's argument."""
        if self.kind == "arena":
            return self._arena()
        slot, evaluate = self.slot, self._evaluate
        if self._whole:
            return lambda frame: frame.tensors[slot]
        if self._numbers is None:
            return lambda frame: window(frame.tensors[slot], *evaluate(frame.sizes))
        shape, stride, offset = self._numbers
        return lambda frame: window(frame.tensors[slot], shape, stride, offset)

    def output(self) -> Reader:
        """For who must know it for a view: the caller, and calls that return views."""
        if self.kind == "arena" or self._whole:
            return self.tensor()
        slot = self.slot
        return lambda frame: self.over(frame.tensors[slot], frame.sizes)

    def over(self, base: torch.Tensor, sizes: Sizes) -> torch.Tensor:
        """The view of a tensor that is in the slot."""
        if self._whole:
            return base
        shape, stride, offset = self._numbers or self._evaluate(sizes)
        return base.as_strided(shape, stride, base.storage_offset() + offset)

    def _evaluate(self, sizes: Sizes) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        view = self._view
        return sizes.row(view.shape), sizes.row(view.stride), sizes.value(view.offset)

    def _arena(self) -> Reader:
        dtype, start, number, fixed = self._dtype, self._start, self._number, self._numbers

        def make(frame: Frame) -> torch.Tensor:
            shape, stride, offset = fixed or self._evaluate(frame.sizes)
            return window(frame.arena.block.elements(dtype), shape, stride, start + offset)

        if fixed is None:
            return make

        def remembered(frame: Frame) -> torch.Tensor:
            views = frame.arena.views
            found = views.get(number)
            if found is None:
                found = views[number] = make(frame)
            return found

        return remembered


def memory_of(program: Program, slot: int) -> int:
    """The slot whose memory a slot names: its own, or that of the input it overwrites."""
    found = program.slots[slot]
    return found.number if found.kind == "alias" else slot


def arena_template(program: Program) -> list[tuple[int, int]]:
    """(slot, byte offset) of every arena slot: their addresses follow from the arena's."""
    return [(i, s.number) for i, s in enumerate(program.slots) if s.kind == "arena"]


def numbers(slot: Slot) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Shape and stride of a slot; None where they depend on the call."""
    if all(ex.is_int(e) for e in (*slot.shape, *slot.stride)):
        return numbers_at(slot, NO_SIZES)
    return None


def numbers_at(slot: Slot, sizes: Sizes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and stride of a slot at the sizes of a call."""
    return sizes.row(slot.shape), sizes.row(slot.stride)


def constants(program: Program) -> list[tuple[int, torch.Tensor]]:
    """Slot and tensor of every constant, in the memory of the CPU. Raises LoadError."""
    return [(c.slot, _constant(program.slots[c.slot], c.data)) for c in program.constants]


def _constant(slot: Slot, data: bytes) -> torch.Tensor:
    fixed = numbers(slot)
    if fixed is None:
        raise LoadError("a constant has a symbolic size")
    shape, _ = fixed
    dtype = TORCH_DTYPES[slot.dtype]
    count = 1
    for size in shape:
        count *= size
    if count * dtype.itemsize != len(data):
        raise LoadError(f"a constant of {len(data)} bytes for {count} elements of {slot.dtype}")
    if not data:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).reshape(shape)
