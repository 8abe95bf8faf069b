"""Programs on the CPU: memory from the thread's arena, kernels as functions in this process."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final

import torch

from fusec.ir.program import Program
from fusec.runtime.arena import NOTHING, lease
from fusec.runtime.frame import (
    Frame,
    Step,
    arena_template,
    constants,
    memory_of,
    numbers,
    numbers_at,
)
from fusec.runtime.inputs import TensorInputs, addresses
from fusec.runtime.launches import LaunchTable, LaunchTables
from fusec.runtime.operators import TORCH_DTYPES
from fusec.runtime.pages import LARGE, prefer_large_pages
from fusec.runtime.seams import empty_cpu
from fusec.runtime.sizes import Sizes

_CPU: Final = torch.device("cpu")


class CpuPlace:
    """A `fusec.runtime.frame.Place`."""

    def __init__(self, program: Program, functions: Sequence[int], runner: int) -> None:
        """``functions``: the address of each kernel; ``runner``: of the native runner."""
        self._run_native = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_long, ctypes.c_long, ctypes.c_void_p
        )(runner)
        self._program = program
        self._slots = len(program.slots)
        self._arena_bytes = program.arena_bytes
        self._table = ctypes.c_void_p * max(len(program.slots), 1)
        self._inputs = TensorInputs(program)
        self._constants = constants(program)
        self._template = arena_template(program)
        self._launches = LaunchTables(
            lambda: LaunchTable(program, functions, lambda slot: memory_of(program, slot)),
            sized=bool(program.symbols),
        )

    def begin(self, inputs: list[Any], sizes: Sizes) -> Frame:
        tensors: list[Any] = [None] * self._slots
        table = self._table()
        given = self._inputs.of(inputs)
        self._inputs.put(tensors, given)
        self._inputs.write(table, addresses(given))
        for slot, tensor in self._constants:
            tensors[slot] = tensor
            table[slot] = tensor.data_ptr()
        inputs.clear()
        launches = self._launches.take(sizes)
        arena = NOTHING
        if self._arena_bytes:
            arena = lease(self._arena_bytes, self)
            base = arena.block.address
            for slot, offset in self._template:
                table[slot] = base + offset
        return Frame(table, ctypes.addressof(table), tensors, sizes, arena, launches, _CPU)

    def end(self, frame: Frame) -> None:
        self._launches.give_back(frame.launches)
        frame.arena.give_back()

    def launches(self, first: int, last: int) -> Step:
        run = self._run_native

        def launch(frame: Frame) -> None:
            run(frame.launches.address, first, last, frame.address)

        return launch

    def fresh(self, slot: int) -> Step:
        found = self._program.slots[slot]
        dtype = TORCH_DTYPES[found.dtype]
        fixed = numbers(found)
        bytes_of = 0
        if fixed is not None:
            sample = torch.empty_strided(*fixed, dtype=dtype, device="meta")
            bytes_of = sample.untyped_storage().nbytes()

        def allocate(frame: Frame) -> None:
            shape, stride = fixed or numbers_at(found, frame.sizes)
            tensor = empty_cpu(shape, stride, dtype)
            size = bytes_of or tensor.untyped_storage().nbytes()
            if size >= LARGE:
                prefer_large_pages(tensor, size)
            frame.tensors[slot] = tensor
            frame.table[slot] = tensor.data_ptr()

        return allocate

    def taken(self, slot: int) -> Step | None:
        return None

    def written(self, slot: int) -> Step | None:
        return None
