"""What a kernel needs to be launched for timing: how large its buffers and its sizes are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from fusec.codegen.gpu_binary import GpuBinary
from fusec.codegen.gpu_source import GpuSource, Variant, counts_at
from fusec.codegen.kernel_source import KernelSource
from fusec.errors import WireError
from fusec.ir import expr as ex
from fusec.ir.dtypes import DTYPES
from fusec.ir.program import Launch, Program, Slot
from fusec.ir.typical import typical_sizes


@dataclass(frozen=True, slots=True)
class Buffer:
    """``count`` elements of type ``dtype``, as `fusec.ir.dtypes` names it.

    below: integers are filled with values from 0 to this, exclusive. 1 fits where they are places
    in another buffer of unknown size.
    """

    count: int
    dtype: str
    below: int = 1

    @property
    def bytes(self) -> int:
        return self.count * DTYPES[self.dtype].size


@dataclass(frozen=True, slots=True)
class Problem:
    """A kernel, its buffers in the order of its pointers, and the values of its sizes."""

    source: GpuSource
    buffers: tuple[Buffer, ...]
    sizes: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return sum(b.bytes for b in self.buffers)

    def grid(self, built: Variant | GpuBinary) -> tuple[int, ...]:
        """Programs along each dimension."""
        return counts_at(built.programs if isinstance(built, Variant) else built.grid, self.sizes)

    def to_wire(self) -> dict[str, Any]:
        """What the process that times kernels needs of it."""
        types = [t.partition(":")[0] for t in self.source.signature if not t.startswith("*")]
        return {
            "buffers": [[b.count, b.dtype, b.below] for b in self.buffers],
            "sizes": [[kind, value] for kind, value in zip(types, self.sizes, strict=True)],
        }


def problem_to_bytes(problem: Problem) -> bytes:
    """A problem for another machine."""
    buffers = [[b.count, b.dtype, b.below] for b in problem.buffers]
    body = [problem.source.to_bytes(), buffers, list(problem.sizes)]
    return bytes(msgpack.packb(body, use_bin_type=True))


def problem_from_bytes(data: bytes) -> Problem:
    """Raises WireError for anything that `problem_to_bytes` does not write."""
    try:
        source, buffers, sizes = msgpack.unpackb(data, raw=False)
        made = tuple(Buffer(int(n), DTYPES[kind].name, int(top)) for n, kind, top in buffers)
        return Problem(GpuSource.from_bytes(source), made, tuple(int(n) for n in sizes))
    except (ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
        raise WireError(f"a tuning problem does not decode: {error}") from error


def problems(
    program: Program,
    kernels: Sequence[GpuSource | KernelSource],
    sizes: Mapping[str, int] | None = None,
) -> tuple[Problem, ...]:
    """The problems of a program's GPU kernels, each with the largest of its launches; none of those
    that have no programs at these sizes.

    kernels: of the program, in its order. sizes: values of the program's symbols; where one is not
    given it is a typical one that the symbol's range allows.
    """
    values = {**typical_sizes(program.symbols), **(sizes or {})}
    found: dict[int, Problem] = {}
    for step in program.steps:
        if not isinstance(step, Launch):
            continue
        source = kernels[step.kernel]
        if isinstance(source, KernelSource):
            continue
        made = _problem(source, step, program, values)
        if 0 in made.grid(source.variants[0]):
            continue
        if step.kernel not in found or made.bytes > found[step.kernel].bytes:
            found[step.kernel] = made
    return tuple(found[number] for number in sorted(found))


def starts(program: Program, found: Sequence[Problem]) -> Counter[str]:
    """How often a program starts the kernels of its problems, by their digests."""
    digests = {p.source.digest for p in found}
    blobs = [blob.removeprefix("kernel/") for blob, _ in program.kernels]
    named = (blobs[s.kernel] for s in program.steps if isinstance(s, Launch))
    return Counter(digest for digest in named if digest in digests)


def _problem(
    source: GpuSource, launch: Launch, program: Program, values: Mapping[str, int]
) -> Problem:
    below = (*source.below, *[0] * len(launch.slots))
    buffers = tuple(
        _buffer(program.slots[number], max(1, bound), values)
        for number, bound in zip(launch.slots, below)
    )
    return Problem(source, buffers, tuple(ex.evaluate(e, values) for e in launch.sizes))


def _buffer(slot: Slot, below: int, values: Mapping[str, int]) -> Buffer:
    shape = [ex.evaluate(e, values) for e in slot.shape]
    stride = [ex.evaluate(e, values) for e in slot.stride]
    if 0 in shape:
        return Buffer(0, slot.dtype, below)
    reach = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    return Buffer(reach + 1, slot.dtype, below)
