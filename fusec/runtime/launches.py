"""The launches of a program as the native runner reads them, with the sizes of one call.

Sizes are read while kernels run, and kernels run without Python's lock: calls at the same time, in
other threads or one inside the other, must not share a table that holds sizes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from fusec.ir.expr import Expr
from fusec.ir.program import Launch, Program
from fusec.runtime.sizes import Sizes


class _LaunchStruct(ctypes.Structure):
    _fields_ = (
        ("fn", ctypes.c_void_p),
        ("slots", ctypes.POINTER(ctypes.c_int)),
        ("sizes", ctypes.POINTER(ctypes.c_long)),
        ("count", ctypes.c_long),
    )


class LaunchTable:
    """All launches of a program, in order. ``address`` is what the native runner takes."""

    __slots__ = ("_array", "_cells", "_keep", "address")

    def __init__(
        self, program: Program, functions: Sequence[int], memory: Callable[[int], int]
    ) -> None:
        """functions: the address of each kernel; memory: slot → the slot whose memory it is."""
        launches = [s for s in program.steps if isinstance(s, Launch)]
        self._array = (_LaunchStruct * max(len(launches), 1))()
        self._keep: list[Any] = []
        self._cells: list[tuple[Any, tuple[Expr, ...]]] = []
        for entry, step in zip(self._array, launches, strict=False):
            slots = (ctypes.c_int * max(len(step.slots), 1))(*map(memory, step.slots))
            sizes = (ctypes.c_long * max(len(step.sizes), 1))()
            entry.fn = functions[step.kernel]
            entry.slots = ctypes.cast(slots, ctypes.POINTER(ctypes.c_int))
            entry.sizes = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_long))
            entry.count = len(step.slots)
            self._keep += [slots, sizes]
            if step.sizes:
                self._cells.append((sizes, step.sizes))
        self.address = ctypes.addressof(self._array)

    def set_sizes(self, sizes: Sizes) -> None:
        """Write the sizes of the call that is about to run."""
        for cells, expressions in self._cells:
            for i, e in enumerate(expressions):
                cells[i] = sizes.value(e)


class LaunchTables:
    """Tables that are not in use; one that is free, or else a new one, for each call."""

    def __init__(self, make: Callable[[], LaunchTable], *, sized: bool) -> None:
        """sized: whether tables hold sizes; without sizes one table serves all calls."""
        self._make = make
        self._shared = None if sized else make()
        self._free: list[LaunchTable] = [make()] if sized else []

    def take(self, sizes: Sizes) -> LaunchTable:
        """A table for one call with these sizes; `give_back` when the call is done."""
        if self._shared is not None:
            return self._shared
        try:
            table = self._free.pop()
        except IndexError:  # others are in use by other threads
            table = self._make()
        table.set_sizes(sizes)
        return table

    def give_back(self, table: LaunchTable) -> None:
        if self._shared is None:
            self._free.append(table)
