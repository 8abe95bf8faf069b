"""The native runner: a whole run of kernel launches in one call from Python.

It is a kernel like any other to the farm and the store: built once for an ISA level, shared by
every artifact by its digest, so that a client needs no compiler to have it.
"""

from __future__ import annotations

from fusec.codegen.kernel_source import KernelSource

RUNNER_NAME = "fusec_run"

_SOURCE = """\
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


def runner_source(isa: str) -> KernelSource:
    """The runner for one ISA level."""
    return KernelSource(RUNNER_NAME, _SOURCE, isa)
