"""Timing kernels on a GPU, in the process that has the context: memory, rotation, graphs.

A kernel is timed as a graph of many launches in a row, so that what the host does between launches
is not measured. The launches rotate among copies of the buffers that together do not fit into the
device's cache: what a launch reads was not left there by the one before. Copies are few where the
buffers are tiny: those stay in the cache in real use too.
"""

from __future__ import annotations

import ctypes
import functools
import random
import struct
from collections.abc import Sequence
from typing import Any, Final

from fusec.codegen.gpu_binary import GpuBinary
from fusec.ir.dtypes import DTYPES
from fusec.tune.agree import differing
from fusec.tune.cuda import Cuda, CudaError, Kernel

_ALIGNMENT: Final = 256
_MOST_COPIES: Final = 64
_MOST_LAUNCHES: Final = 128
_GRAPH_MS: Final = 0.3  # least time of a graph, so that events' resolution does not show
_MEMORY_PART: Final = 0.9  # of what is free
_PATTERN: Final = 1 << 14  # elements
_COMPARED_BYTES: Final = 16 << 20  # of what a variant leaves in memory
_PIECES: Final = 64
_UNIT: Final = 16  # bytes: a multiple of the size of every type


class Bench:
    """What `bench_worker` does: one method a request, named after it."""

    def __init__(self) -> None:
        self._cuda: Cuda | None = None
        self._memory = (0, 0)  # address and bytes
        self._copies: list[list[Any]] = []
        self._buffers: list[tuple[int, str, int]] = []
        self._places: list[int] = []  # addresses of the first copy
        self._wanted: list[bytes] = []  # what the kernel leaves in its buffers
        self._kernels: dict[int, Kernel] = {}
        self._graphs: dict[int, tuple[ctypes.c_void_p, int]] = {}

    @property
    def cuda(self) -> Cuda:
        assert self._cuda is not None, "the device is opened first"
        return self._cuda

    def open(self, ordinal: int) -> dict[str, Any]:
        """Make a context on a device; what the device is, as `Device.from_wire` takes it."""
        self._cuda = Cuda(ordinal)
        return self.device()

    def device(self) -> dict[str, Any]:
        """What the device is, as `Device.from_wire` takes it."""
        device = self.cuda.device
        return {name: getattr(device, name) for name in device.__slots__}

    def rest(self) -> None:
        """Forget everything, and give the device's memory back."""
        self.clear()
        if self._memory[0]:
            self.cuda.release(self._memory[0])
        self._memory = (0, 0)

    def prepare(self, buffers: list[tuple[int, str, int]], sizes: list[tuple[str, int]]) -> int:
        """Lay out and fill copies of a problem's buffers; how many there are."""
        self.clear()
        places, total = layout(buffers)
        copies = min(_MOST_COPIES, max(1, -(-2 * self.cuda.device.cache // total)))
        start = self._reserve(copies * total, total)
        copies = min(copies, self._memory[1] // total)
        self._buffers, self._places = buffers, [start + place for place in places]
        self._restore()
        self.cuda.fill_from(start, total, copies)
        self.cuda.wait()
        numbers = [(ctypes.c_int64 if t == "i64" else ctypes.c_int32)(v) for t, v in sizes]
        for copy in range(copies):
            base = start + copy * total
            self._copies.append([*(ctypes.c_ulonglong(base + p) for p in places), *numbers])
        return copies

    def probe(self, number: int, binary: bytes, grid: list[int]) -> float:
        """Load a candidate and run it: milliseconds of one launch, its first aside."""
        made = self._kernels[number] = self.cuda.load(GpuBinary.from_bytes(binary), tuple(grid))
        self.cuda.launch(made, self._copies[0])
        self.cuda.wait()
        graph = self._graph(made, 1)
        try:
            return self.cuda.milliseconds(graph)
        finally:
            self.cuda.destroy(graph)

    def reference(self, number: int) -> None:
        """Take what a candidate leaves in memory for what they all must leave there."""
        self._wanted = self._left_by(number)

    def agree(self, number: int) -> bool:
        """Whether a candidate leaves the same."""
        found = self._left_by(number)
        kinds = [dtype for (_, dtype, _), pieces in self._windows() for _ in pieces]
        triples = zip(found, self._wanted, kinds, strict=True)
        return not any(differing(mine, wanted, kind) for mine, wanted, kind in triples)

    def _left_by(self, number: int) -> list[bytes]:
        """What one launch on fresh buffers leaves in them, in pieces where they are large."""
        self._restore()
        self.cuda.wait()  # for copies on the device, which its own stream does not wait for
        self.cuda.launch(self._kernels[number], self._copies[0])
        self.cuda.wait()
        places = zip(self._places, (pieces for _, pieces in self._windows()), strict=True)
        return [
            self.cuda.read(place + start, size)
            for place, pieces in places
            for start, size in pieces
        ]

    def _windows(self) -> list[tuple[tuple[int, str, int], list[tuple[int, int]]]]:
        sizes = [count * DTYPES[dtype].size for count, dtype, _ in self._buffers]
        return list(zip(self._buffers, windows(sizes, _COMPARED_BYTES), strict=True))

    def _restore(self) -> None:
        """Fill the first copy of the buffers as at the beginning."""
        for place, (count, dtype, below) in zip(self._places, self._buffers):
            self.cuda.fill(place, count * DTYPES[dtype].size, pattern(dtype, below))

    def ready(self, number: int, fastest_ms: float) -> int:
        """Make the graph of a candidate, of as many launches as suit a kernel as fast as the
        fastest; how many they are."""
        wanted = min(_MOST_LAUNCHES, int(_GRAPH_MS / max(fastest_ms, 1e-3)))
        launches = max(1, len(self._copies), wanted)
        self._graphs[number] = self._graph(self._kernels[number], launches), launches
        return launches

    def sample(self, number: int) -> float:
        """Milliseconds of one launch of a candidate, the mean over its graph."""
        graph, launches = self._graphs[number]
        return self.cuda.milliseconds(graph) / launches

    def drop(self, number: int) -> None:
        """Forget a candidate."""
        if number in self._graphs:
            self.cuda.destroy(self._graphs.pop(number)[0])
        if number in self._kernels:
            self.cuda.unload(self._kernels.pop(number))

    def clear(self) -> None:
        """Forget all candidates and the buffers."""
        for number in list(self._kernels):
            self.drop(number)
        self._copies = []
        self._wanted = []

    def _graph(self, kernel: Kernel, launches: int) -> ctypes.c_void_p:
        self.cuda.begin_capture()
        try:
            for i in range(launches):
                self.cuda.launch(kernel, self._copies[i % len(self._copies)])
        except CudaError:
            self.cuda.abandon_capture()
            raise
        return self.cuda.end_capture()

    def _reserve(self, wanted: int, least: int) -> int:
        """The address of at least ``least`` bytes, ``wanted`` if the device has as many."""
        address, size = self._memory
        if size < wanted:
            if address:
                self.cuda.release(address)
            self._memory = (0, 0)
            most = int(self.cuda.free_memory() * _MEMORY_PART)
            size = max(least, min(wanted, most))
            self._memory = address, size = self.cuda.allocate(size), size
        return address


def layout(buffers: list[tuple[int, str, int]]) -> tuple[list[int], int]:
    """The place of each buffer in a copy and the bytes of a copy."""
    places, total = [], 0
    for count, dtype, _ in buffers:
        places.append(total)
        size = max(1, count * DTYPES[dtype].size)
        total += -(-size // _ALIGNMENT) * _ALIGNMENT
    return places, max(total, _ALIGNMENT)


@functools.lru_cache(maxsize=64)
def pattern(dtype: str, below: int) -> bytes:
    """Values that a model could hold: numbers around one, or integers below a bound."""
    random_ = random.Random(dtype)
    kind = DTYPES[dtype]
    if kind.kind in ("int", "uint", "bool"):
        top = 2 if kind.kind == "bool" else max(1, below)
        values = (random_.randrange(top) for _ in range(_PATTERN))
        return b"".join(v.to_bytes(kind.size, "little") for v in values)
    floats = [random_.uniform(-2.0, 2.0) for _ in range(_PATTERN)]
    match dtype:
        case "f64" | "c128":
            return struct.pack(f"<{_PATTERN}d", *floats)
        case "f16" | "c32":
            return struct.pack(f"<{_PATTERN}e", *floats)
        case "bf16":  # the upper half of a float
            whole = struct.pack(f"<{_PATTERN}f", *floats)
            return b"".join(whole[i + 2 : i + 4] for i in range(0, len(whole), 4))
        case "f8e4m3fn" | "f8e5m2":  # exponents of about one in both
            return bytes(random_.randrange(0x30, 0x40) for _ in range(_PATTERN))
    return struct.pack(f"<{_PATTERN}f", *floats)


def windows(sizes: Sequence[int], most: int) -> list[list[tuple[int, int]]]:
    """Which bytes of each buffer to look at: (start, length) of pieces evenly over it, all of it
    where the buffers are small enough. sizes: in bytes; most: bytes in all."""
    total = sum(sizes)
    if total <= most:
        return [[(0, size)] if size else [] for size in sizes]
    found: list[list[tuple[int, int]]] = []
    for size in sizes:
        piece = max(_UNIT, size * most // total // _PIECES // _UNIT * _UNIT)
        if piece * _PIECES >= size:
            found.append([(0, size)] if size else [])
            continue
        last = (size - piece) // _UNIT * _UNIT
        starts = [last * n // (_PIECES - 1) // _UNIT * _UNIT for n in range(_PIECES - 1)]
        # To the very end: tails are where a variant goes wrong.
        found.append([*((start, piece) for start in starts), (last, size - last)])
    return found
