"""A GPU made of the host: a driver in C whose kernels are C functions, run program by program.

It takes the place of the driver's library alone. What the runtime hands it (arguments, grids,
streams, handles) is used as a GPU would use it, so a wrong address or size gives a wrong result.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from fusec.codegen.c_toolchain import compile_shared, detect_isa
from fusec.codegen.gpu_binary import GpuBinary
from fusec.codegen.runner import GPU_RUNNER_NAME, gpu_runner_source
from fusec.ir.program import Program
from fusec.runtime.gpu_devices import Gpus, Replay
from fusec.runtime.gpu_driver import _CUDA, Driver
from fusec.runtime.gpu_launches import NativeRun, native_run, run_by_ctypes
from fusec.runtime.gpu_place import GpuPlace
from fusec.runtime.graph_pool import GraphPools
from fusec.runtime.graphs import GraphRunner
from fusec.runtime.libraries import function_address
from fusec.runtime.program import ProgramRunner
from fusec.trace import Recorder

_SOURCE = """\
typedef unsigned int u32;
typedef void (*kernel)(void **arguments, u32 x, u32 y, u32 z);
/* What a function's handle points at. */
typedef struct { kernel run; long arguments; } function;
typedef struct { function *f; long values[8]; u32 x, y, z; } recorded;
long launches, loads, threads, shared, stream, together, attribute, refuse, contexts;
long recording, records; /* recording: launches are written down from record number `records` */
recorded memory[4096];

int cuModuleLoadData(void **module, const char *image) {
  loads++;
  if (image[0] != 'K') return 200;
  *module = (void *)image;
  return 0;
}
int cuModuleGetFunction(void **function, const char *image, const char *name) {
  if (name[0] == 'z') return 500;
  __builtin_memcpy(function, image + 1, 8);
  return 0;
}
int cuFuncSetAttribute(void *function, int name, int value) {
  attribute = name * 1000000 + value;
  return 0;
}
int cuGetErrorString(int code, const char **text) {
  *text = code == 200 ? "device kernel image is invalid" : "something else";
  return 0;
}
int cuCtxGetCurrent(void **context) { *context = contexts ? &contexts : 0; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &contexts; return 0; }
int cuCtxSetCurrent(void *context) { contexts++; return 0; }
int cuDevicePrimaryCtxGetState(int device, u32 *flags, int *active) { *active = 1; return 0; }

static void programs(function *f, u32 x, u32 y, u32 z, void **arguments) {
  for (u32 k = 0; k < z; k++)
    for (u32 j = 0; j < y; j++)
      for (u32 i = 0; i < x; i++) f->run(arguments, i, j, k);
}
static int run(void *handle, u32 x, u32 y, u32 z, u32 bx, u32 bytes, void *on, void **arguments) {
  launches++;
  if (refuse) {
    int code = refuse;
    refuse = 0;
    return code;
  }
  if (x == 0 || y == 0 || z == 0) return 1;
  threads = bx;
  shared = bytes;
  stream = (long)on;
  function *f = handle;
  if (recording) {
    recorded *r = &memory[records++];
    *r = (recorded){f, {0}, x, y, z};
    for (long k = 0; k < f->arguments; k++) r->values[k] = *(long *)arguments[k];
  } else {
    programs(f, x, y, z, arguments);
  }
  return 0;
}
void replay(long first, long last) {
  for (long i = first; i < last; i++) {
    recorded *r = &memory[i];
    void *arguments[8];
    for (long k = 0; k < r->f->arguments; k++) arguments[k] = &r->values[k];
    programs(r->f, r->x, r->y, r->z, arguments);
  }
}
int cuLaunchKernel(void *function, u32 x, u32 y, u32 z, u32 bx, u32 by, u32 bz, u32 bytes,
                   void *on, void **arguments, void **extra) {
  return by == 1 && bz == 1 && !extra ? run(function, x, y, z, bx, bytes, on, arguments) : 1;
}
int cuLaunchCooperativeKernel(void *function, u32 x, u32 y, u32 z, u32 bx, u32 by, u32 bz,
                              u32 bytes, void *on, void **arguments) {
  together++;
  return by == 1 && bz == 1 ? run(function, x, y, z, bx, bytes, on, arguments) : 1;
}

#define POINTER(k) (*(float **)arguments[k])
#define BAD(p) ((long)(p) & 15)
/* (x, y, n: i32, scratch): y = 2 x + 1, four elements a program. */
static void run_affine(void **arguments, u32 i, u32 j, u32 k) {
  float *x = POINTER(0), *y = POINTER(1);
  int n = *(int *)arguments[2], bad = BAD(x) || BAD(y) || *(void **)arguments[3] != 0;
  for (long e = 4l * i; e < 4l * i + 4 && e < n; e++) y[e] = bad ? -99 : 2 * x[e] + 1;
}
/* (x, y, rows: i64, columns: i32): y[c][r] = x[r][c] + y[c][r], an element a program. */
static void run_turn(void **arguments, u32 i, u32 j, u32 k) {
  float *x = POINTER(0), *y = POINTER(1);
  long rows = *(long *)arguments[2];
  int columns = *(int *)arguments[3];
  y[j * rows + i] += BAD(x) || BAD(y) ? -99 : x[i * columns + j];
}
function affine = {run_affine, 4}, turn = {run_turn, 4};
"""


@functools.cache
def library() -> ctypes.CDLL:
    """The driver and its kernels."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "driver.so")
        path.write_bytes(compile_shared(_SOURCE, detect_isa(), 60))
        return ctypes.CDLL(str(path))


def seen(name: str) -> int:
    """A number that the driver wrote down."""
    return ctypes.c_long.in_dll(library(), name).value


def tell(name: str, value: int) -> None:
    ctypes.c_long.in_dll(library(), name).value = value


def image(name: str) -> bytes:
    """The binary of a kernel."""
    return b"K" + struct.pack("q", ctypes.addressof(ctypes.c_long.in_dll(library(), name)))


class HostGraph:
    """Launches that were written down, with the addresses they had."""

    def __init__(self, first: int, last: int) -> None:
        self._launches = first, last

    def replay(self) -> None:
        library().replay(*map(ctypes.c_long, self._launches))


class HostGpus(Gpus):
    """One GPU, whose memory is the host's but for tensors ``elsewhere``."""

    def __init__(self) -> None:
        self._driver = Driver(library(), _CUDA)
        self.elsewhere: dict[int, int] = {}  # id of a tensor → its ordinal
        self.now = 0
        self.selected: list[int] = []
        self.stream_handle = 0

    def driver(self) -> Driver:
        return self._driver

    def device(self, ordinal: int) -> torch.device:
        return torch.device("cpu")

    def ordinal(self, tensor: torch.Tensor) -> int:
        tensor.data_ptr()  # an AttributeError for what is no tensor, as get_device
        return self.elsewhere.get(id(tensor), 0)

    @staticmethod
    def empty(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(shape, stride, dtype=dtype)

    def current(self) -> int:
        return self.now

    def select(self, ordinal: int) -> None:
        self.selected.append(ordinal)
        self.now = ordinal

    def stream(self, ordinal: int) -> int:
        return self.stream_handle

    def capturing(self) -> bool:
        return bool(seen("recording"))

    def side_stream(self, ordinal: int) -> Any:
        return None

    def memory_pool(self) -> Any:
        return None

    def record(self, side: Any, pool: Any, run: Callable[[], Any]) -> tuple[Replay, Any]:
        first = seen("records")
        tell("recording", 1)
        try:
            made = run()
        finally:
            tell("recording", 0)
        return HostGraph(first, seen("records")), made


@functools.cache
def runs() -> dict[str, NativeRun]:
    """Both runners by name."""
    source = gpu_runner_source()
    address = function_address(compile_shared(source.source, detect_isa(), 60), GPU_RUNNER_NAME)
    return {"native": native_run(address), "ctypes": run_by_ctypes}


def runner(
    program: Program, binaries: Sequence[GpuBinary], how: str = "native"
) -> tuple[ProgramRunner, HostGpus]:
    """A program on the host's GPU."""
    gpus = HostGpus()
    return ProgramRunner(program, GpuPlace(program, binaries, runs()[how], gpus)), gpus


def graphed(
    program: Program, binaries: Sequence[GpuBinary], pools: GraphPools, recorder: Recorder
) -> tuple[GraphRunner, HostGpus]:
    """A program on the host's GPU that is recorded; it must not free memory: there is no pool."""
    gpus = HostGpus()
    place = GpuPlace(program, binaries, runs()["native"], gpus)
    return GraphRunner(ProgramRunner(program, place), place, pools, recorder), gpus
