"""Loading artifacts: what is missing or damaged is an error of ours; many kernels side by side."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest
import torch

from cache.artifacts import Found
from fusec.capture.dtypes import to_attr
from fusec.codegen.c_toolchain import compile_shared, detect_isa
from fusec.codegen.gpu_binary import GpuBinary
from fusec.codegen.runner import gpu_runner_source
from fusec.errors import ArtifactError, LoadError
from fusec.ir.expr import ONE
from fusec.ir.graph import Attr
from fusec.ir.program import Call
from fusec.ir.program_wire import program_from_bytes, program_to_bytes
from fusec.runtime.libraries import function_address
from fusec.runtime.loader import load
from fusec.runtime.operators import attribute, operator
from fusec.trace import Recorder
from tests.runtime.executables import artifact

_GRAPH = """\
%0 = input "x": f32[6, 6]
%1 = call aten.exp.default(%0): f32[6, 6]
%2 = call aten.mm.default(%1, %0): f32[6, 6]
return %2
"""


def _with(**changes: bytes | None) -> Found:
    found = artifact(_GRAPH)
    blobs = dict(found.blobs)
    for name, value in changes.items():
        key = next(k for k in blobs if k.startswith(name))
        if value is None:
            del blobs[key]
        else:
            blobs[key] = value
    return replace(found, blobs=blobs)


def test_an_artifact_loads_and_counts() -> None:
    recorder = Recorder()
    run = load(artifact(_GRAPH), recorder=recorder)
    x = torch.randn(6, 6)
    torch.testing.assert_close(run([x])[0], x.exp() @ x)
    assert recorder.counters["kernels"] == 1
    assert recorder.counters["external_calls"] + recorder.counters["fallback_calls"] == 1


@pytest.mark.parametrize("name", ["program", "runner", "kernel/"])
def test_a_missing_part_is_named(name: str) -> None:
    with pytest.raises(LoadError) as caught:
        load(_with(**{name: None}), recorder=Recorder())
    assert caught.value.hint


@pytest.mark.parametrize("name", ["program", "runner", "kernel/"])
@pytest.mark.parametrize("data", [b"", b"junk" * 100, b"\x7fELF" + bytes(200)])
def test_a_damaged_part_does_not_load(name: str, data: bytes) -> None:
    with pytest.raises(ArtifactError):
        load(_with(**{name: data}), recorder=Recorder())


def test_a_library_without_the_function() -> None:
    other = compile_shared("void other(void) {}\n", detect_isa(), 60)
    with pytest.raises(LoadError, match="no function"):
        load(_with(**{"kernel/": other}), recorder=Recorder())


def test_an_operator_that_this_torch_lacks() -> None:
    program = program_from_bytes(artifact(_GRAPH).blobs["program"])
    steps = tuple(
        replace(s, target="aten.no_such_thing.default") if isinstance(s, Call) else s
        for s in program.steps
    )
    blob = program_to_bytes(replace(program, steps=steps))
    with pytest.raises(LoadError, match="no_such_thing"):
        load(_with(program=blob), recorder=Recorder())


@pytest.mark.parametrize("target", ["aten", "aten.add", "os.system.default", "aten.add.nope"])
def test_names_that_are_no_operators(target: str) -> None:
    with pytest.raises(LoadError):
        operator(target)


@pytest.mark.parametrize(
    "attr",
    [
        Attr("dtype", "f33"),
        Attr("layout", "nn"),
        Attr("memory_format", "save"),
        Attr("device", "fpga"),
    ],
)
def test_names_that_are_no_enumerations(attr: Attr) -> None:
    with pytest.raises(LoadError):
        attribute(attr)


def test_every_enumeration_of_capture_is_known() -> None:
    formats = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
    for value in (*formats, torch.preserve_format, torch.strided, torch.device("cpu"), torch.half):
        attr = to_attr(value)
        assert attr is not None
        assert attribute(attr) == value


def test_many_libraries_are_open_at_once() -> None:
    """Each from an anonymous file whose descriptor number comes again."""
    isa = detect_isa()
    addresses = []
    for number in range(12):
        binary = compile_shared(f"long answer(void) {{ return {number}; }}\n", isa, 60)
        addresses.append(function_address(binary, "answer"))
        assert function_address(binary, "answer") == addresses[-1]
    assert len(set(addresses)) == 12
    for number, address in enumerate(addresses):
        assert ctypes.CFUNCTYPE(ctypes.c_long)(address)() == number


@pytest.mark.skipif(torch.cuda.is_available(), reason="for a machine without a GPU")
def test_a_program_for_a_gpu_that_is_not_here() -> None:
    program = program_from_bytes(artifact(_GRAPH).blobs["program"])
    kernel = GpuBinary("k", b"image", (ONE,), 128, 0, 2).to_bytes()
    runner = gpu_runner_source()
    blobs = {
        "program": program_to_bytes(replace(program, device="cuda")),
        "runner": compile_shared(runner.source, detect_isa(), 60),
        **{blob: kernel for blob, _ in program.kernels},
    }
    with pytest.raises(LoadError, match="no GPU") as caught:
        load(replace(artifact(_GRAPH), blobs=blobs), recorder=Recorder())
    assert "machine with a GPU" in str(caught.value)
    blobs.update({blob: b"junk" for blob, _ in program.kernels})
    with pytest.raises(ArtifactError):
        load(replace(artifact(_GRAPH), blobs=blobs), recorder=Recorder())
