"""A graph for a GPU compiles on a machine with none: kernels, runner, artifact."""

import subprocess
import sys

import pytest

from cache.memory import MemoryStore
from fusec.codegen.gpu_binary import GpuBinary
from fusec.codegen.targets import code_generator
from fusec.errors import CodegenError
from fusec.ir.program_wire import program_from_bytes
from fusec.ir.text import parse_graph
from fusec.options import Options, Target
from fusec.pipeline import compile_local, kernel_store_key, plan
from fusec.runtime.format import PROGRAM_BLOB, RUNNER_BLOB
from fusec.trace import Recorder
from tests.lower.on_cpu import cuda_graph

GRAPH = cuda_graph(
    parse_graph("""\
%0 = input "x": bf16[64, 1000]
%1 = call aten.exp.default(%0): bf16[64, 1000]
%2 = call aten.sum.dim_IntList(%1, [1]): bf16[64]
return %2
""")
)
H200 = Target("cuda", "sm_90")


def test_an_artifact_for_a_gpu_holds_images() -> None:
    store, recorder = MemoryStore(), Recorder()
    found = compile_local(GRAPH, H200, Options(), store, recorder=recorder)
    program = program_from_bytes(found.blobs[PROGRAM_BLOB])
    assert program.device == "cuda"
    for blob, name in program.kernels:
        binary = GpuBinary.from_bytes(found.blobs[blob])
        assert binary.name == name
        assert binary.image[:4] == b"\x7fELF"
    assert found.blobs[RUNNER_BLOB][:4] == b"\x7fELF"
    compiles = recorder.counters["kernel_compiles"]
    assert compiles == len(program.kernels) + 1
    again = compile_local(GRAPH, H200, Options(), store, recorder=recorder)
    assert again.blobs == found.blobs
    assert recorder.counters["kernel_compiles"] == compiles


def test_keys_name_the_compiler_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, runner = plan(GRAPH, H200, Options(), recorder=Recorder()).kernels
    before = kernel_store_key(kernel, H200), kernel_store_key(runner, H200)
    monkeypatch.setattr("fusec.codegen.targets.compiler_version", lambda: "triton 0.0")
    assert kernel_store_key(kernel, H200) != before[0]
    assert kernel_store_key(runner, H200) == before[1]


def test_targets_load_neither_torch_nor_triton() -> None:
    code = (
        "import sys, fusec.codegen.targets\n"
        "print(sorted({'torch', 'triton', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_devices_are_refused() -> None:
    with pytest.raises(CodegenError, match="tpu"):
        code_generator(Target("tpu", "v5"))
