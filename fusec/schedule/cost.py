"""What a kernel costs on a target: bytes over bandwidth, operations by class, launches.

Nanoseconds of an idle machine, good for comparing partitions and for nothing else. A kernel takes
the larger of its memory time and its arithmetic time, and its launch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr
from fusec.ir.kernel import linear
from fusec.ir.loop import Buffer, Compute, LoopProgram, Op

TYPICAL_SIZE: Final = 64  # for a symbol whose value nobody knows

# Cycles of one vector operation, in additions.
_WEIGHT: Final = {
    **dict.fromkeys("div sqrt rsqrt reciprocal".split(), 6.0),
    **dict.fromkeys("exp exp2 log log2 log10 sigmoid".split(), 12.0),
    **dict.fromkeys("expm1 log1p tanh erf sin cos atan sinh cosh".split(), 20.0),
    **dict.fromkeys("tan asin acos atan2 asinh acosh atanh erfc".split(), 35.0),
    "philox_uniform": 50.0,
    "pow": 60.0,
}


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates of a target: bytes a nanosecond from memory and from the cache that holds
    ``cache_bytes``, vector operations a nanosecond over all threads, lanes of a 4-byte vector,
    nanoseconds to start a parallel and a serial kernel."""

    memory_rate: float
    cache_rate: float
    cache_bytes: int
    row_bytes: int
    vector_rate: float
    lanes: int
    parallel_start: float
    serial_start: float
    streams: int  # arrays a loop can walk before the prefetchers lose track
    values: int  # operations in a body before registers spill
    carried_values: int  # results of columns that a thread can carry along rows


CPU: Final = Machine(
    memory_rate=12.0,
    cache_rate=60.0,
    cache_bytes=2 << 20,
    row_bytes=256 << 10,
    vector_rate=3.0,
    lanes=16,
    parallel_start=3000.0,
    serial_start=300.0,
    streams=14,
    values=120,
    carried_values=32 << 10,
)

_PARALLEL_POINTS: Final = 16384
_JUMPS: Final = 3.0  # a walk that is not contiguous uses a third of each line


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What one computation does: vector operations a point, bytes of each buffer read (with a
    penalty for jumping), bytes of its result."""

    weight: float
    operations: int
    reads: dict[int, float]
    result_bytes: float


def extent(e: Expr) -> int:
    number = ex.as_int(e)
    return TYPICAL_SIZE if number is None else number


def points(sizes: Iterable[Expr]) -> float:
    result = 1.0
    for size in sizes:
        result *= extent(size)
    return result


def buffer_bytes(buffer: Buffer) -> float:
    return points(buffer.shape) * DTYPES[buffer.dtype].size


def step_facts(program: LoopProgram, step: Compute) -> StepFacts:
    """See `StepFacts`."""
    weight = 1.0 if step.reduction is not None else 0.0
    operations = 0
    for node in lp.walk((step.value,)):
        if isinstance(node, Op):
            operations += 1
            weight += _WEIGHT.get(node.name, 1.0)
    order = step.axes if step.reduction is None else step.reduction.order
    live = [a for a in order if a.upper is not ex.ONE]
    visited = points(a.upper for a in order if a.upper is not None)
    reads: dict[int, float] = {}
    for load in lp.loads(step.value):
        buffer = program.buffers[load.buffer]
        size = min(buffer_bytes(buffer), visited * DTYPES[buffer.dtype].size)
        if load.indirect or (live and _jumps(linear(load.index, buffer.stride), live[-1])):
            size *= _JUMPS
        reads[load.buffer] = max(reads.get(load.buffer, 0.0), size)
    return StepFacts(weight, operations, reads, buffer_bytes(program.buffers[step.output]))


def _jumps(offset: Expr, axis: Expr) -> bool:
    """Whether neighbouring points along the axis lie further apart than neighbours in memory."""
    for atom, coefficient in ex.linear_terms(offset)[1]:
        if atom is axis:
            return coefficient != 1
        if any(s is axis for s in ex.symbols(atom)):
            return True
    return False


def kernel_time(
    machine: Machine,
    *,
    work: float,
    operations: int,
    read: float,
    again: float,
    written: float,
    streams: int,
    inner_points: float,
    rows: float,
    row_bytes: float,
) -> float:
    """Nanoseconds of one kernel.

    ``work``: vector operations over all points; ``read`` and ``written``: bytes; ``again``: bytes
    read once more by later stages; ``rows``: points of the kept axes, what threads can share.
    """
    moved = read + 2 * written  # a store reads the line first
    rate = machine.cache_rate if moved < machine.cache_bytes else machine.memory_rate
    memory = moved / rate
    memory += again / (machine.cache_rate if row_bytes < machine.row_bytes else machine.memory_rate)
    if streams > machine.streams:
        memory *= streams / machine.streams
    arithmetic = work / (machine.lanes * machine.vector_rate)
    if operations > machine.values:
        arithmetic *= 1.0 + (operations - machine.values) / machine.values
    parallel = inner_points >= _PARALLEL_POINTS
    if parallel and rows < 2:
        arithmetic, memory = 2 * arithmetic, 1.5 * memory
    start = machine.parallel_start if parallel else machine.serial_start
    return max(memory, arithmetic) + 0.3 * min(memory, arithmetic) + start
