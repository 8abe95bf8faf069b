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
    **dict.fromkeys("tan asin acos atan2 asinh acosh atanh erfc logcumsumexp".split(), 35.0),
    "philox_uniform": 50.0,
    "pow": 60.0,
}


@dataclass(frozen=True, slots=True)
class Splits:
    """How `fusec.schedule.split_folds` cuts long folds on a target."""

    rows: int  # kept points that occupy the machine: with fewer, a long fold is split
    fold_points: int  # what counts as long for that
    programs: int  # wanted then in all
    chunk_points: int  # fewest points of a chunk
    columns: int  # chunks of a fold over columns
    column_programs: int  # programs wanted of a fold over columns alone; 0: columns decides
    chunk_rows: int  # fewest rows of a chunk
    ragged: bool  # whether chunks of unequal size are worth their guards
    centred: (
        bool  # whether chunks of a variance or a softmax are about means or maxima of their own
    )


@dataclass(frozen=True, slots=True)
class Machine:
    """What the search and the passes before it know of a target. Rates are bytes a nanosecond."""

    memory_rate: float
    cache_rate: float
    cache_bytes: int  # a kernel that moves less works in the cache
    write_cost: float  # of a byte written, in bytes read: a store may read the line first
    # A row whose values take up to row_bytes, 4 each, stays where it can be read again at row_rate;
    # one of up to near_bytes in memory is read again from the cache.
    row_bytes: int
    row_rate: float
    near_bytes: int
    # Points of the kept axes that keep all arithmetic, and all of the memory's rate, in use.
    busy_arithmetic: float
    busy_memory: float
    vector_rate: float  # vector operations a nanosecond over all threads
    lanes: int  # of a 4-byte vector
    parallel_points: int  # a kernel of fewer points runs in one thread
    parallel_start: float  # nanoseconds to start a parallel and a serial kernel
    serial_start: float
    streams: int  # arrays a loop can walk before the prefetchers lose track
    values: int  # operations in a body before registers spill
    carried_values: int  # results of columns that a program can carry along rows
    column_points: int  # kept points that share a program where the last axis is kept
    splits: Splits
    alignment: int  # bytes, of memory planned in an arena
    own_bytes: int | None  # a buffer of so many is not in the arena; None: all are
    batched: int  # so many equal kernels start as a batch (`fusec.codegen`); 0: none do


CPU: Final = Machine(
    memory_rate=12.0,
    cache_rate=60.0,
    cache_bytes=2 << 20,
    write_cost=2.0,
    row_bytes=256 << 10,
    row_rate=60.0,
    near_bytes=0,
    busy_arithmetic=2.0,
    busy_memory=1.5,
    vector_rate=3.0,
    lanes=16,
    parallel_points=16384,
    parallel_start=3000.0,
    serial_start=300.0,
    streams=14,
    values=120,
    carried_values=32 << 10,
    column_points=1,
    splits=Splits(
        rows=16,
        fold_points=0,
        programs=64,
        chunk_points=1024,
        columns=64,
        column_programs=0,
        chunk_rows=4,
        ragged=False,
        centred=False,
    ),
    alignment=64,
    own_bytes=None,
    batched=0,
)

# An H200-class GPU: 132 multiprocessors; a program is a few hundred threads of one of them.
GPU: Final = Machine(
    memory_rate=4200.0,
    cache_rate=9000.0,
    cache_bytes=32 << 20,
    write_cost=1.0,
    row_bytes=192 << 10,
    row_rate=1e6,  # a row of this size stays in registers
    near_bytes=320 << 10,
    busy_arithmetic=132.0,
    busy_memory=100.0,
    vector_rate=900.0,
    lanes=32,
    parallel_points=0,
    parallel_start=3500.0,
    serial_start=3500.0,
    streams=48,
    values=300,
    carried_values=16 << 10,
    column_points=128,
    splits=Splits(
        rows=132,
        fold_points=32 << 10,
        programs=1056,
        chunk_points=4096,
        columns=264,
        column_programs=528,
        chunk_rows=8,
        ragged=True,
        centred=True,
    ),
    alignment=256,
    own_bytes=16 << 20,  # written and read in longer than it takes to ask for them
    batched=3,
)

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
    weight = 0.0 if step.reduction is None else _WEIGHT.get(step.reduction.op, 1.0)
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
        offset = linear(load.index, buffer.stride)
        if load.indirect or (live and ex.step(offset, live[-1]) not in (0, 1)):
            size *= _JUMPS
        reads[load.buffer] = max(reads.get(load.buffer, 0.0), size)
    return StepFacts(weight, operations, reads, buffer_bytes(program.buffers[step.output]))


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
    moved = read + machine.write_cost * written
    rate = machine.cache_rate if moved < machine.cache_bytes else machine.memory_rate
    memory = moved / rate
    if row_bytes < machine.row_bytes:
        memory += again / machine.row_rate
    elif read < machine.near_bytes * rows:
        memory += again / machine.cache_rate
    else:
        memory += again / machine.memory_rate
    if streams > machine.streams:
        memory *= streams / machine.streams
    arithmetic = work / (machine.lanes * machine.vector_rate)
    if operations > machine.values:
        arithmetic *= 1.0 + (operations - machine.values) / machine.values
    parallel = inner_points >= machine.parallel_points
    if parallel:
        arithmetic *= max(1.0, machine.busy_arithmetic / max(rows, 1.0))
        memory *= max(1.0, machine.busy_memory / max(rows, 1.0))
    start = machine.parallel_start if parallel else machine.serial_start
    return max(memory, arithmetic) + 0.3 * min(memory, arithmetic) + start
