"""Program: the host side of an artifact as data. Memory, kernel launches and library calls.

A slot is where a tensor lives while the program runs. Steps name slots by number. Nothing here is
code: the runtime (`fusec.runtime.program`) turns a program into the fastest callable it can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fusec.ir.expr import Expr
from fusec.ir.graph import SymbolRange
from fusec.ir.loop import ExternArg, Output


@dataclass(frozen=True, slots=True)
class Slot:
    """``kind``:

    - ``input``: the tensor passed at position ``number``;
    - ``arena``: ``number`` bytes into the arena;
    - ``fresh``: a new tensor each call (what is returned, or of a size known only then);
    - ``result``: made by a call;
    - ``alias``: the memory of slot ``number``, overwritten.

    Sizes and strides in elements.
    """

    kind: str
    number: int
    dtype: str
    shape: tuple[Expr, ...]
    stride: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """Run kernel number ``kernel`` over slots and sizes; ``free``: slots dead afterwards."""

    kernel: int
    slots: tuple[int, ...]
    sizes: tuple[Expr, ...]
    free: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """Call ATen operator ``target``.

    ``outputs``: slots of its results (None: not used); ``into``: results are written into those
    slots' memory by the operator's out form ``target``. Views in arguments name slots.
    """

    target: str
    args: tuple[ExternArg, ...]
    kwargs: tuple[tuple[str, ExternArg], ...]
    outputs: tuple[int | None, ...]
    multiple: bool
    into: bool
    reason: str
    free: tuple[int, ...] = ()


ProgramStep: TypeAlias = "Launch | Call"


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal tensor: little-endian bytes, contiguous, put in its slot when loaded."""

    slot: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Program:
    """``inputs``: for each position the slot, the expression a number stands for, or None.
    ``kernels``: (blob name, function name) of each kernel. ``device``: where its memory is and
    its kernels run, cpu or cuda."""

    inputs: tuple[int | Expr | None, ...]
    slots: tuple[Slot, ...]
    constants: tuple[Constant, ...]
    steps: tuple[ProgramStep, ...]
    outputs: tuple[Output, ...]
    kernels: tuple[tuple[str, str], ...]
    symbols: tuple[SymbolRange, ...]
    arena_bytes: int
    device: str = "cpu"
