"""The native runners: a whole run of kernel launches in one call from Python.

A runner is a kernel like any other to the farm and the store: built once for an ISA level, shared
by every artifact by its digest, so that a client needs no compiler to have it. The one for GPUs
calls the driver's own launch function, whose address it is given: it needs no header and no
library, and is built for the oldest ISA level so that it runs on whatever host the GPU is in.
"""

from __future__ import annotations

from typing import Final

from fusec.codegen.kernel_source import KernelSource

RUNNER_NAME: Final = "fusec_run"
GPU_RUNNER_NAME: Final = "fusec_launch"
_GPU_HOST_ISA: Final = "x86-64-v2"

_SOURCE: Final = """\
typedef void (*kernel_fn)(void **buffers, const long *sizes);
typedef struct { kernel_fn fn; const int *slots; const long *sizes; long count; } launch;

/* Run launches first..last; table holds the address of each slot's memory. */
void fusec_run(const launch *launches, long first, long last, void *const *table) {
  for (long i = first; i < last; i++) {
    const launch *l = launches + i;
    void *buffers[l->count > 0 ? l->count : 1];
    for (long k = 0; k < l->count; k++) buffers[k] = table[l->slots[k]];
    l->fn(buffers, l->sizes);
  }
}
"""

# The structures are `fusec.runtime.gpu_launches`' too. Arguments are copied by the driver before
# its launch function returns, so they need not outlive the call.
_GPU_SOURCE: Final = """\
typedef unsigned int u32;
typedef int (*launch_fn)(void *function, u32 x, u32 y, u32 z, u32 bx, u32 by, u32 bz, u32 shared,
                         void *stream, void **arguments, void **extra);
typedef int (*together_fn)(void *function, u32 x, u32 y, u32 z, u32 bx, u32 by, u32 bz, u32 shared,
                           void *stream, void **arguments);
/* slots: of the buffers; cells: of the numbers after them; grid: cells of program counts. */
typedef struct {
  void *function;
  const int *slots, *cells;
  int buffers, numbers, grid[3];
  u32 threads, shared;
  int together;
} launch;
typedef struct {
  launch_fn alone;
  together_fn together;
  const launch *launches;
  long *cells;
  void *stream;
  long error;
} call;

/* Start launches first..last; table holds the address of each slot's memory. Returns last, or the
   number of the launch that the driver refused, with its code in c->error. */
long fusec_launch(call *c, long first, long last, void **table) {
  for (long i = first; i < last; i++) {
    const launch *l = c->launches + i;
    u32 x = c->cells[l->grid[0]], y = c->cells[l->grid[1]], z = c->cells[l->grid[2]];
    if (x == 0 || y == 0 || z == 0) continue;
    void *arguments[l->buffers + l->numbers + 1];
    for (int k = 0; k < l->buffers; k++) arguments[k] = table + l->slots[k];
    for (int k = 0; k < l->numbers; k++) arguments[l->buffers + k] = c->cells + l->cells[k];
    int error = l->together ? c->together(l->function, x, y, z, l->threads, 1, 1, l->shared,
                                          c->stream, arguments)
                            : c->alone(l->function, x, y, z, l->threads, 1, 1, l->shared,
                                       c->stream, arguments, 0);
    if (error) {
      c->error = error;
      return i;
    }
  }
  return last;
}
"""


def runner_source(isa: str) -> KernelSource:
    """The runner of CPU kernels for one ISA level."""
    return KernelSource(RUNNER_NAME, _SOURCE, isa)


def gpu_runner_source() -> KernelSource:
    """The runner of GPU kernels, for the processor of the machine that the GPU is in."""
    return KernelSource(GPU_RUNNER_NAME, _GPU_SOURCE, _GPU_HOST_ISA)
