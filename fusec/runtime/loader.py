"""Artifact → executable."""

from __future__ import annotations

from cache.artifacts import Found
from fusec.codegen.runner import RUNNER_NAME
from fusec.errors import LoadError
from fusec.ir.program_wire import program_from_bytes
from fusec.runtime.cpu_place import CpuPlace
from fusec.runtime.format import PROGRAM_BLOB, RUNNER_BLOB
from fusec.runtime.libraries import function_address
from fusec.runtime.program import ProgramRunner
from fusec.runtime.report import report_of
from fusec.trace import Recorder


def load(found: Found, *, recorder: Recorder) -> ProgramRunner:
    """The callable of an artifact: takes a list of inputs, which it clears, and returns a list.

    Raises LoadError or WireError for an artifact that this process cannot run.
    """
    with recorder.span("load"):
        blobs = found.blobs
        if PROGRAM_BLOB not in blobs or RUNNER_BLOB not in blobs:
            raise LoadError("the artifact holds no program", hint="it is compiled here instead")
        program = program_from_bytes(blobs[PROGRAM_BLOB])
        functions = []
        for blob, name in program.kernels:
            if blob not in blobs:
                raise LoadError(f"the artifact lacks {blob}", hint="it is compiled here instead")
            functions.append(function_address(blobs[blob], name))
        runner = function_address(blobs[RUNNER_BLOB], RUNNER_NAME)
        made = ProgramRunner(program, CpuPlace(program, functions, runner))
    for name, value in report_of(found.manifest.meta).items():
        if not name.startswith("fallback:") and name != "arena_bytes":
            recorder.count(name, value)
    return made
