"""The launches of a program on a GPU as the native runner reads them, and the sizes of one call.

Sizes, and the counts of programs that follow from them, are cells of one array: each distinct
expression is evaluated once a call, however many launches use it. Launches name cells by number, so
that they are written once a device; only the cells belong to a call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Final

from fusec.codegen.gpu_binary import GpuBinary
from fusec.errors import LoadError
from fusec.ir import expr as ex
from fusec.ir.expr import Expr
from fusec.ir.program import Launch, Program
from fusec.runtime.frame import memory_of
from fusec.runtime.sizes import Sizes

NativeRun = Callable[[int, int, int, int], int]
"""(address of a call, first, last, address of the table) → last, or the launch that failed."""

_MAX_GRID: Final = ((1 << 31) - 1, 65535, 65535)
_INT64: Final = (1 << 63) - 1
_INT32: Final = (1 << 31) - 1


class _LaunchStruct(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("slots", ctypes.POINTER(ctypes.c_int)),
        ("cells", ctypes.POINTER(ctypes.c_int)),
        ("buffers", ctypes.c_int),
        ("numbers", ctypes.c_int),
        ("grid", ctypes.c_int * 3),
        ("threads", ctypes.c_uint),
        ("shared", ctypes.c_uint),
        ("together", ctypes.c_int),
    )


class _CallStruct(ctypes.Structure):
    _fields_ = (
        ("alone", ctypes.c_void_p),
        ("together", ctypes.c_void_p),
        ("launches", ctypes.POINTER(_LaunchStruct)),
        ("cells", ctypes.POINTER(ctypes.c_long)),
        ("stream", ctypes.c_void_p),
        ("error", ctypes.c_long),
    )


class Cells:
    """Distinct expressions by number. The first is zero, which scratch pointers point at."""

    def __init__(self) -> None:
        self.expressions: list[Expr] = [ex.ZERO]
        self.limits: list[int] = [0]
        self._numbers: dict[Expr, int] = {}

    def number(self, expression: Expr, limit: int) -> int:
        """The cell of an expression whose value must not pass ``limit``."""
        found = self._numbers.setdefault(expression, len(self.expressions))
        if found == len(self.expressions):
            self.expressions.append(expression)
            self.limits.append(limit)
        self.limits[found] = min(self.limits[found], limit)
        return found


class LaunchPlan:
    """What the launches of a program are on every device."""

    def __init__(self, program: Program, binaries: Sequence[GpuBinary]) -> None:
        """binaries: of the program's kernels. Raises LoadError where the two do not fit."""
        self.binaries = tuple(binaries)
        self.steps = [s for s in program.steps if isinstance(s, Launch)]
        self.cells = Cells()
        self.dynamic = bool(program.symbols)
        self._rows = [self._row(program, step) for step in self.steps]

    def _row(self, program: Program, step: Launch) -> tuple[Launch, Any, Any, list[int]]:
        binary = self.binaries[step.kernel]
        if len(step.sizes) != len(binary.sizes):
            raise LoadError(
                f"kernel {binary.name} takes {len(binary.sizes)} sizes, not {len(step.sizes)}"
            )
        counts = [_grid(e, step, binary) for e in binary.grid]
        numbers = []
        for e, kind in zip(step.sizes, binary.sizes, strict=True):
            if kind == "i64":
                numbers.append(self.cells.number(e, _INT64))
            else:  # for a call that is too large there is a grid without programs
                numbers.append(self.cells.number(e * ex.compare("<", 0, counts[0]), _INT32))
        numbers += [0] * binary.scratch
        grid = [self.cells.number(e, n) for e, n in zip(counts, _MAX_GRID, strict=False)]
        grid += [self.cells.number(ex.ONE, 1)] * (3 - len(grid))
        slots = [memory_of(program, s) for s in step.slots]
        return (
            step,
            (ctypes.c_int * max(len(slots), 1))(*slots),
            (ctypes.c_int * max(len(numbers), 1))(*numbers),
            grid,
        )

    def structures(self, functions: Sequence[int]) -> Any:
        """The array of launches, given the handle of each kernel on one device."""
        made = (_LaunchStruct * max(len(self._rows), 1))()
        for entry, (step, slots, numbers, grid) in zip(made, self._rows, strict=False):
            binary = self.binaries[step.kernel]
            entry.function = functions[step.kernel]
            entry.slots = ctypes.cast(slots, ctypes.POINTER(ctypes.c_int))
            entry.cells = ctypes.cast(numbers, ctypes.POINTER(ctypes.c_int))
            entry.buffers = len(step.slots)
            entry.numbers = len(step.sizes) + binary.scratch
            entry.grid[:] = grid
            entry.threads = binary.threads
            entry.shared = binary.shared
            entry.together = int(binary.cooperative)
        return made


def _grid(e: Expr, step: Launch, binary: GpuBinary) -> Expr:
    """A count of programs over the program's symbols instead of the kernel's n0, n1, …"""
    sizes = {f"n{i}": size for i, size in enumerate(step.sizes)}
    try:
        return ex.substitute(e, {symbol: sizes[symbol.name] for symbol in ex.symbols(e)})
    except KeyError as error:
        raise LoadError(f"kernel {binary.name} has no size {error.args[0]}") from error


class GpuCall:
    """What one call hands to the native runner: cells with its sizes, and the stream."""

    __slots__ = ("_cells", "_limits", "_sizes", "_varying", "address", "structure")

    def __init__(self, plan: LaunchPlan, structures: Any, alone: int, together: int) -> None:
        cells = plan.cells
        self._limits = cells.limits
        self._cells = (ctypes.c_long * len(cells.expressions))()
        self._sizes: Sizes | None = None
        self._varying: list[tuple[int, Expr]] = []
        for number, e in enumerate(cells.expressions):
            value = ex.as_int(e)
            if value is None:
                self._varying.append((number, e))
            else:
                self._put(number, value)
        self.structure = _CallStruct(alone, together, structures, self._cells, 0, 0)
        self.address = ctypes.addressof(self.structure)

    def _put(self, number: int, value: int) -> None:
        limit = self._limits[number]
        if not -limit - 1 <= value <= limit:
            raise LoadError(
                f"a kernel was made for sizes up to {limit}, and this one is {value}",
                hint="torch._dynamo.mark_static or smaller inputs avoid it",
            )
        self._cells[number] = value

    def set_sizes(self, sizes: Sizes) -> None:
        """Write the sizes of the call that is about to run. Raises LoadError for one too large."""
        if sizes is self._sizes:
            return
        self._sizes = None
        for number, e in self._varying:
            self._put(number, sizes.value(e))
        self._sizes = sizes


class GpuCalls:
    """Calls that are not in use; one that is free, or else a new one, for each run."""

    def __init__(self, plan: LaunchPlan, functions: Sequence[int], alone: int, together: int):
        self._plan = plan
        self._structures = plan.structures(functions)
        self._addresses = alone, together
        self._free: list[GpuCall] = []

    def take(self, sizes: Sizes, stream: int) -> GpuCall:
        """For one run; `give_back` when its kernels are started."""
        try:
            call = self._free.pop()
        except IndexError:
            call = GpuCall(self._plan, self._structures, *self._addresses)
        if self._plan.dynamic:
            call.set_sizes(sizes)
        call.structure.stream = stream
        return call

    def give_back(self, call: GpuCall) -> None:
        self._free.append(call)


_ALONE: Final = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3
)
_TOGETHER: Final = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 2
)


def native_run(address: int) -> NativeRun:
    """The native runner (`fusec.codegen.runner.gpu_runner_source`) at an address."""
    kind = ctypes.CFUNCTYPE(
        ctypes.c_long, ctypes.c_void_p, ctypes.c_long, ctypes.c_long, ctypes.c_void_p
    )
    return kind(address)


def run_by_ctypes(address: int, first: int, last: int, table: int) -> int:
    """What the native runner does, on a host that has no native runner."""
    call = _CallStruct.from_address(address)
    cells = ctypes.cast(call.cells, ctypes.c_void_p).value or 0
    for number in range(first, last):
        launch = call.launches[number]
        grid = [call.cells[i] for i in launch.grid]
        if 0 in grid:
            continue
        places = [table + 8 * launch.slots[k] for k in range(launch.buffers)]
        places += [cells + 8 * launch.cells[k] for k in range(launch.numbers)]
        arguments = (ctypes.c_void_p * max(len(places), 1))(*places)
        shape = (*grid, launch.threads, 1, 1, launch.shared)
        if launch.together:
            start = _TOGETHER(call.together)
            error = start(launch.function, *shape, call.stream, arguments)
        else:
            start = _ALONE(call.alone)
            error = start(launch.function, *shape, call.stream, arguments, None)
        if error:
            call.error = error
            return number
    return last
