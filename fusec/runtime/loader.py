"""Artifact → executable."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Final

from cache.artifacts import Found
from fusec.codegen.gpu_binary import GpuBinary
from fusec.codegen.runner import GPU_RUNNER_NAME, RUNNER_NAME
from fusec.errors import LoadError
from fusec.ir.program import Program
from fusec.ir.program_wire import program_from_bytes
from fusec.runtime.cpu_place import CpuPlace
from fusec.runtime.format import PROGRAM_BLOB, RUNNER_BLOB
from fusec.runtime.gpu_devices import Gpus
from fusec.runtime.gpu_launches import NativeRun, native_run, run_by_ctypes
from fusec.runtime.gpu_place import GpuPlace
from fusec.runtime.graph_pool import GraphPools
from fusec.runtime.graphs import GraphRunner
from fusec.runtime.libraries import function_address
from fusec.runtime.program import ProgramRunner
from fusec.runtime.report import report_of
from fusec.trace import Recorder

_GPU_RUNNER_HOST: Final = "x86_64"  # what `fusec.codegen.runner` builds the GPU's runner for


def load(
    found: Found, *, recorder: Recorder, graphs: GraphPools | None = None
) -> ProgramRunner | GraphRunner:
    """The callable of an artifact: takes a list of inputs, which it clears, and returns a list.

    graphs: where programs on a GPU are recorded as CUDA graphs; None: they are not. Raises
    LoadError or WireError for an artifact that this process cannot run.
    """
    with recorder.span("load"):
        blobs = found.blobs
        if PROGRAM_BLOB not in blobs or RUNNER_BLOB not in blobs:
            raise LoadError("the artifact holds no program", hint="it is compiled here instead")
        program = program_from_bytes(blobs[PROGRAM_BLOB])
        for blob, _ in program.kernels:
            if blob not in blobs:
                raise LoadError(f"the artifact lacks {blob}", hint="it is compiled here instead")
        made: ProgramRunner | GraphRunner
        if program.device == "cuda":
            place = _on_gpu(program, blobs)
            made = ProgramRunner(program, place)
            if graphs is not None:
                made = GraphRunner(made, place, graphs, recorder)
        else:
            made = ProgramRunner(program, _on_cpu(program, blobs))
    for name, value in report_of(found.manifest.meta).items():
        if not name.startswith("fallback:") and name != "arena_bytes":
            recorder.count(name, value)
    return made


def _on_cpu(program: Program, blobs: Mapping[str, bytes]) -> CpuPlace:
    functions = [function_address(blobs[blob], name) for blob, name in program.kernels]
    return CpuPlace(program, functions, function_address(blobs[RUNNER_BLOB], RUNNER_NAME))


def _on_gpu(program: Program, blobs: Mapping[str, bytes]) -> GpuPlace:
    """Loaded onto the current GPU at once, so that a fault shows now, unless this process has
    nothing there: then its inputs are on another, which the first call tells."""
    run: NativeRun = run_by_ctypes
    if platform.machine() == _GPU_RUNNER_HOST:
        run = native_run(function_address(blobs[RUNNER_BLOB], GPU_RUNNER_NAME))
    gpus = Gpus()
    binaries = [GpuBinary.from_bytes(blobs[blob]) for blob, _ in program.kernels]
    place = GpuPlace(program, binaries, run, gpus)
    current = gpus.current()
    if gpus.driver().in_use(current):
        place.open(current)
    return place
