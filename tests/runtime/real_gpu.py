"""What the tests on a real GPU share: how a program of hand-written kernels is run there."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
import torch

from fusec.codegen.c_toolchain import compile_shared
from fusec.codegen.gpu_binary import GpuBinary
from fusec.codegen.isa import gpu_target
from fusec.codegen.runner import GPU_RUNNER_NAME, gpu_runner_source
from fusec.ir.program import Program
from fusec.runtime.gpu_devices import Gpus
from fusec.runtime.gpu_launches import NativeRun, native_run
from fusec.runtime.gpu_place import GpuPlace
from fusec.runtime.libraries import function_address
from fusec.runtime.program import ProgramRunner
from tests.runtime.gpu_programs import affine

ON_A_GPU: Final = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.timeout(600),
]
BIG: Final = 1 << 20


@functools.cache
def native() -> NativeRun:
    source = gpu_runner_source()
    return native_run(
        function_address(compile_shared(source.source, source.isa, 60), GPU_RUNNER_NAME)
    )


def run_of(program: Program, *binaries: GpuBinary, run: NativeRun | None = None) -> ProgramRunner:
    """A program on this process's GPU; run: starts launches, if not the native runner."""
    return ProgramRunner(program, GpuPlace(program, binaries, run or native(), Gpus()))


def own_affine() -> GpuBinary:
    """2 x + 1, for this machine's GPU."""
    return affine(gpu_target(0).isa)


def after(x: torch.Tensor, launches: int) -> torch.Tensor:
    """What a chain of launches of 2 x + 1 makes of x."""
    for _ in range(launches):
        x = 2 * x + 1
    return x


@contextmanager
def no_waiting() -> Iterator[None]:
    """What waits for the GPU is an error inside."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
