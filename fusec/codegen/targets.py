"""What a target is to the compiler: cost model, code generator, toolchain, native runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from fusec.codegen.c_toolchain import compile_shared, compiler
from fusec.codegen.cpu import cpu_emitter
from fusec.codegen.gpu import gpu_emitter
from fusec.codegen.gpu_source import GpuSource
from fusec.codegen.host import Batching, Emit
from fusec.codegen.kernel_source import KernelSource
from fusec.codegen.runner import gpu_runner_source, runner_source
from fusec.codegen.triton_batch import batch, most_launches
from fusec.codegen.triton_toolchain import compile_variant, compiler_version
from fusec.errors import CodegenError, WireError
from fusec.options import Target
from fusec.schedule.cost import CPU, GPU, Machine

Source: TypeAlias = KernelSource | GpuSource

COMPILE_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class CodeGenerator:
    """machine: rates for the search; emit: a loop to source; runner: the native code that runs
    launches; build: source to binary, raising CompileError; compiler: what makes the binary of a
    source, as it enters kernel keys; batching: how launches of a kernel become one, if they do."""

    machine: Machine
    emit: Emit
    runner: KernelSource
    build: Callable[[Source], bytes]
    compiler: Callable[[Source], str]
    batching: Batching | None = None


@lru_cache(maxsize=16)
def code_generator(target: Target) -> CodeGenerator:
    """Raises CodegenError for a target that there is no code generator for."""
    if target.device == "cpu":
        return CodeGenerator(
            CPU, cpu_emitter(target.isa), runner_source(target.isa), _build, _compiler
        )
    if target.device == "cuda":
        emit = gpu_emitter(target.isa)
        batching = Batching(most_launches, batch)
        return CodeGenerator(GPU, emit, gpu_runner_source(), _build, _compiler, batching)
    raise CodegenError(f"no code generator for {target.device}", hint="targets: cpu, cuda")


def source_to_bytes(kernel: Source) -> bytes:
    """A kernel's source with a mark of its kind."""
    return (b"G" if isinstance(kernel, GpuSource) else b"C") + kernel.to_bytes()


def source_from_bytes(data: bytes) -> Source:
    """Raises WireError for anything that `source_to_bytes` does not write."""
    if data[:1] == b"G":
        return GpuSource.from_bytes(data[1:])
    if data[:1] == b"C":
        return KernelSource.from_bytes(data[1:])
    raise WireError("a kernel of an unknown kind")


def _build(kernel: Source) -> bytes:
    if isinstance(kernel, GpuSource):
        return compile_variant(kernel, 0, COMPILE_TIMEOUT_S).to_bytes()
    return compile_shared(kernel.source, kernel.isa, COMPILE_TIMEOUT_S)


def _compiler(kernel: Source) -> str:
    return compiler_version() if isinstance(kernel, GpuSource) else compiler().version
