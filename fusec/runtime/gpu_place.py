"""Programs on GPUs: memory from torch's caching allocator, kernels started on torch's stream.

A call runs on the GPU that its inputs are on, whichever that is, and on the stream that is current
there. All of it is on that one stream, so memory that is given back while its kernels still run is
safe: whoever gets it next comes after them. (`Tensor.record_stream` is for other streams.)

Kernels may count on 16-byte aligned pointers to the GPU's memory. An input or a result that is not
so, or is on the CPU, is copied for them; library calls and outputs have the tensor itself. What
kernels overwrite in a copy is copied back at once.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fusec.codegen.gpu_binary import GpuBinary
from fusec.errors import LoadError
from fusec.ir.program import Launch, Program
from fusec.runtime.arena import NOTHING, lease_on_gpu
from fusec.runtime.frame import (
    Frame,
    Step,
    arena_template,
    constants,
    memory_of,
    numbers,
    numbers_at,
)
from fusec.runtime.gpu_devices import Gpus
from fusec.runtime.gpu_driver import INVALID_CONTEXT
from fusec.runtime.gpu_launches import GpuCall, GpuCalls, LaunchPlan, NativeRun
from fusec.runtime.inputs import TensorInputs, addresses
from fusec.runtime.operators import TORCH_DTYPES
from fusec.runtime.sizes import Sizes


@dataclass(slots=True)
class _OnDevice:
    """A program on one GPU."""

    ordinal: int
    device: torch.device
    constants: list[tuple[int, torch.Tensor]]
    calls: GpuCalls


@dataclass(slots=True)
class GpuFrame(Frame):
    """previous: the GPU that was current before the run, where it is another; copies: by slot, the
    copy of its tensor that kernels see."""

    on: _OnDevice
    previous: int | None = None
    copies: dict[int, torch.Tensor] = field(default_factory=dict)


class GpuPlace:
    """A `fusec.runtime.frame.Place`."""

    def __init__(
        self, program: Program, binaries: Sequence[GpuBinary], run: NativeRun, gpus: Gpus
    ) -> None:
        """binaries: of the program's kernels; run: the native runner. Raises LoadError."""
        self.gpus = gpus
        self._program = program
        self._driver = gpus.driver()
        self._run = run
        self._plan = LaunchPlan(program, binaries)
        self._table = ctypes.c_void_p * max(len(program.slots), 1)
        self._inputs = TensorInputs(program)
        self._constants = constants(program)
        self._template = arena_template(program)
        self._arena_bytes = program.arena_bytes
        self._in_kernels = {memory_of(program, s) for step in self._plan.steps for s in step.slots}
        self._devices: dict[int, _OnDevice] = {}
        self._lock = threading.Lock()

    # -- a call -----------------------------------------------------------------------------

    def begin(self, inputs: list[Any], sizes: Sizes) -> GpuFrame:
        gpus = self.gpus
        current = gpus.current()
        ordinal = self.ordinal(inputs, current)
        previous = None if ordinal == current else current
        if previous is not None:
            gpus.select(ordinal)
        try:
            return self._begin(inputs, sizes, ordinal, previous)
        except BaseException:
            if previous is not None:
                gpus.select(previous)
            raise

    def ordinal(self, inputs: list[Any], current: int) -> int:
        """The GPU that a call runs on: that of the first input on one, else the current one."""
        ordinal = self.gpus.ordinal
        for position in self._inputs.positions:
            found = ordinal(inputs[position])
            if found >= 0:
                return found
        return current

    def _begin(
        self, inputs: list[Any], sizes: Sizes, ordinal: int, previous: int | None
    ) -> GpuFrame:
        on = self._devices.get(ordinal) or self.open(ordinal)
        tensors: list[Any] = [None] * len(self._program.slots)
        table = self._table()
        frame = GpuFrame(
            table, ctypes.addressof(table), tensors, sizes, NOTHING, None, on.device, on, previous
        )
        of = self.gpus.ordinal
        given = self._inputs.of(inputs)
        at = addresses(given)
        self._inputs.put(tensors, given)
        self._inputs.write(table, at)
        if functools.reduce(operator.or_, at, 0) & 15 or {*map(of, given)} != {ordinal}:
            for slot, tensor, address in zip(self._inputs.slots, given, at, strict=True):
                if address & 15 or of(tensor) != ordinal:
                    self._show(frame, slot)
        for slot, tensor in on.constants:
            tensors[slot] = tensor
            table[slot] = tensor.data_ptr()
        inputs.clear()
        stream = self.gpus.stream(ordinal)
        frame.launches = on.calls.take(sizes, stream)
        if self._arena_bytes:
            frame.arena = lease_on_gpu(self._arena_bytes, self, ordinal, stream, self.gpus)
            base = frame.arena.block.address
            for slot, offset in self._template:
                table[slot] = base + offset
        return frame

    def end(self, frame: GpuFrame) -> None:
        frame.arena.give_back()
        frame.on.calls.give_back(frame.launches)
        if frame.previous is not None:
            self.gpus.select(frame.previous)

    def open(self, ordinal: int) -> _OnDevice:
        """Load the program onto the current GPU, where that is not done. Raises LoadError."""
        with self._lock:
            found = self._devices.get(ordinal)
            if found is None:
                device = self.gpus.device(ordinal)
                driver = self._driver
                functions = [driver.function(b, ordinal) for b in self._plan.binaries]
                calls = GpuCalls(self._plan, functions, driver.launch, driver.together)
                placed = [(slot, tensor.to(device)) for slot, tensor in self._constants]
                found = self._devices[ordinal] = _OnDevice(ordinal, device, placed, calls)
            return found

    # -- memory -----------------------------------------------------------------------------

    def fresh(self, slot: int) -> Step:
        found = self._program.slots[slot]
        dtype = TORCH_DTYPES[found.dtype]
        fixed = numbers(found)
        empty = self.gpus.empty

        def allocate(frame: GpuFrame) -> None:
            shape, stride = fixed or numbers_at(found, frame.sizes)
            tensor = empty(shape, stride, dtype)
            frame.tensors[slot] = tensor
            frame.table[slot] = tensor.data_ptr()

        return allocate

    def taken(self, slot: int) -> Step | None:
        if slot not in self._in_kernels:
            return None
        of = self.gpus.ordinal

        def settle(frame: GpuFrame) -> None:
            tensor = frame.tensors[slot]
            assert tensor is not None
            if tensor.data_ptr() & 15 or of(tensor) != frame.on.ordinal:
                self._show(frame, slot)

        return settle

    def written(self, slot: int) -> Step | None:
        if self._program.slots[slot].kind != "alias":
            return None
        base = memory_of(self._program, slot)

        def refresh(frame: GpuFrame) -> None:
            copy, tensor = frame.copies.get(base), frame.tensors[base]
            if copy is not None and tensor is not None:
                copy.copy_(tensor.data)

        return refresh

    def _show(self, frame: GpuFrame, slot: int) -> None:
        """Copy a slot's tensor to where kernels can use it."""
        tensor = frame.tensors[slot]
        assert tensor is not None
        found = self.gpus.ordinal(tensor)
        if found not in (-1, frame.on.ordinal):
            raise LoadError(
                f"inputs are on GPU {frame.on.ordinal} and on GPU {found}",
                hint="a compiled graph runs on one GPU",
            )
        if slot in self._in_kernels:
            copy = frame.copies[slot] = copy_to(tensor, frame.device)
            frame.table[slot] = copy.data_ptr()

    # -- launches ---------------------------------------------------------------------------

    def launches(self, first: int, last: int) -> Step:
        run = self._run
        overwritten = self._overwritten(self._plan.steps[first:last])

        def launch(frame: GpuFrame) -> None:
            done = run(frame.launches.address, first, last, frame.address)
            if done != last:
                self._again(frame, done, last)
            if frame.copies and overwritten:
                _copy_back(frame, overwritten)

        return launch

    def _overwritten(self, steps: Sequence[Launch]) -> list[int]:
        """The inputs that these launches overwrite."""
        slots = self._program.slots
        named = [s for step in steps for s in step.slots if slots[s].kind == "alias"]
        return sorted({memory_of(self._program, s) for s in named})

    def _again(self, frame: GpuFrame, failed: int, last: int) -> None:
        """After a refusal: a thread may have no context yet. Raises LoadError for any other."""
        call: GpuCall = frame.launches
        if call.structure.error == INVALID_CONTEXT:
            self._driver.make_current(frame.on.ordinal)
            failed = self._run(call.address, failed, last, frame.address)
            if failed == last:
                return
        name = self._plan.binaries[self._plan.steps[failed].kernel].name
        message = self._driver.message(call.structure.error)
        raise LoadError(f"kernel {name} does not start on GPU {frame.on.ordinal}: {message}")


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The memory from a tensor's first element to its last, gaps included, in one dimension."""
    extent = 0
    if tensor.numel():
        pairs = zip(tensor.shape, tensor.stride(), strict=True)
        extent = 1 + sum((n - 1) * s for n, s in pairs)
    return tensor.detach().as_strided((extent,), (1,), tensor.storage_offset())


def copy_to(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on a device in memory of its own with the same strides, gaps and overlaps included."""
    source = flat(tensor)
    moved = torch.empty(source.shape, dtype=tensor.dtype, device=device)
    copy_into(moved, source)
    return moved.as_strided(tensor.shape, tensor.stride())


def copy_into(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy without waiting for the GPU. Out of pageable memory the copy is done when the call
    returns; out of pinned memory the caller could change what is still to be copied."""
    target.copy_(source, non_blocking=source.is_cuda or not source.is_pinned())


def _copy_back(frame: GpuFrame, slots: Sequence[int]) -> None:
    for slot in slots:
        copy, tensor = frame.copies.get(slot), frame.tensors[slot]
        if copy is not None and tensor is not None:
            tensor.data.copy_(copy)  # by .data: the kernel's own write would bump no version either
