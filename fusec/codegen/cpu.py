"""The CPU target: C through the system's compiler."""

from __future__ import annotations

from collections.abc import Callable

from fusec.codegen.c_kernel import emit_kernel
from fusec.codegen.host import Emitted
from fusec.codegen.kernel_source import KernelSource
from fusec.ir.kernel import KernelLoop


def cpu_emitter(isa: str) -> Callable[[KernelLoop], Emitted]:
    """The code generator for one ISA level."""

    def emit(loop: KernelLoop) -> Emitted:
        made = emit_kernel(loop, isa)
        return Emitted(KernelSource(made.name, made.source, isa), made.buffers, made.sizes)

    return emit
