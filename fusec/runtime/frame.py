"""The state of one run of a program, and where it runs: memory and launches by processor.

`ProgramRunner` (`fusec.runtime.program`) knows steps; a `Place` knows how a processor gives memory
and starts kernels. There is one for CPUs (`cpu_place`) and one for GPUs (`gpu_place`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from fusec.errors import LoadError
from fusec.ir import expr as ex
from fusec.ir.expr import Expr
from fusec.ir.loop import BufferView
from fusec.ir.program import Program, Slot
from fusec.runtime.arena import Lease
from fusec.runtime.operators import TORCH_DTYPES
from fusec.runtime.seams import window
from fusec.runtime.sizes import NO_SIZES, Sizes


@dataclass(slots=True)
class Frame:
    """table: a ctypes array with the address of each slot's memory; launches: what the place's
    launcher takes."""

    table: Any
    tensors: list[torch.Tensor | None]
    sizes: Sizes
    arena: Lease | None
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


@dataclass(slots=True)
class ViewOf:
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

    def tensor(self, frame: Frame) -> torch.Tensor:
        """For a call's argument."""
        if self.kind == "arena":
            return self._arena(frame)
        base = frame.tensors[self.slot]
        assert base is not None
        if self.whole:
            return base
        return window(base, *(self.numbers or self._evaluate(frame.sizes)))

    def output(self, frame: Frame) -> torch.Tensor:
        """For who must know it for a view: the caller, and calls that return views."""
        if self.kind == "arena":
            return self._arena(frame)
        base = frame.tensors[self.slot]
        assert base is not None
        return self.over(base, frame.sizes)

    def over(self, base: torch.Tensor, sizes: Sizes) -> torch.Tensor:
        """The view of a tensor that is in the slot."""
        if self.whole:
            return base
        shape, stride, offset = self.numbers or self._evaluate(sizes)
        return base.as_strided(shape, stride, base.storage_offset() + offset)

    def _evaluate(self, sizes: Sizes) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        return (
            sizes.row(self.shape),
            sizes.row(self.stride),
            sizes.value(self.offset),
        )

    def _arena(self, frame: Frame) -> torch.Tensor:
        arena = frame.arena
        assert arena is not None
        if self.cached is not None and self.cached[0] == arena.generation and arena.shared:
            return self.cached[1]
        shape, stride, offset = self.numbers or self._evaluate(frame.sizes)
        start = self.byte_offset // self.dtype.itemsize
        made = window(arena.elements(self.dtype), shape, stride, start + offset)
        if arena.shared and self.static:
            self.cached = (arena.generation, made)
        return made


def view_of(program: Program, view: BufferView) -> ViewOf:
    """How to make the tensor of a view of a slot."""
    slot = program.slots[view.buffer]
    kind, number, byte_offset = slot.kind, view.buffer, 0
    if kind == "alias":
        number = slot.number
        kind = program.slots[number].kind
    if kind == "arena":
        byte_offset = slot.number
    static = all(ex.is_int(e) for e in (*view.shape, *view.stride, view.offset))
    whole = (
        kind != "arena"
        and view.shape == slot.shape
        and view.stride == slot.stride
        and view.offset is ex.ZERO
    )
    made = ViewOf(
        number, kind, TORCH_DTYPES[slot.dtype], view.shape, view.stride, view.offset,
        byte_offset, whole, static,
    )  # fmt: skip
    if static:
        made.numbers = made._evaluate(NO_SIZES)
    return made


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
