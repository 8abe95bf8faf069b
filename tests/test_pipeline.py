"""Plans and artifacts: deterministic in every process, and errors that say what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cache.artifacts import lookup
from cache.errors import StoreFull
from cache.memory import MemoryStore
from fusec.codegen.isa import host_target
from fusec.errors import CodegenError, CompileError, CompilerError, WireError
from fusec.ir.text import parse_graph
from fusec.options import Options, Target
from fusec.pipeline import (
    KernelSource,
    Plan,
    assemble,
    build_kernel,
    compile_local,
    kernel_store_key,
    plan,
)
from fusec.trace import Recorder
from tests.codegen.kernels import KERNELS
from tests.ir.programs import SAMPLE, TARGET, planned

ROOT = Path(__file__).parents[1]
_OPTIONS = Options(progress=False)

_DIGESTS = """
import hashlib
from tests.codegen.kernels import KERNELS
from tests.ir.programs import SAMPLE, planned
for text in [SAMPLE, *KERNELS.values()]:
    print(hashlib.sha256(planned(text).to_bytes()).hexdigest())
"""


def test_plans_are_equal_bytes_in_every_process() -> None:
    found = []
    for seed in ("0", "1", "977"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", _DIGESTS],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.split())
    assert len(found[0]) == 1 + len(KERNELS)
    assert found[0] == found[1] == found[2]


def test_a_plan_does_not_depend_on_what_was_planned_before() -> None:
    first = planned(SAMPLE).to_bytes()
    for text in KERNELS.values():
        planned(text)
    assert planned(SAMPLE).to_bytes() == first


def test_assembling_is_deterministic_and_names_every_kernel() -> None:
    made = planned(SAMPLE)
    binaries = {k.digest: k.digest.encode() for k in made.kernels}
    manifest, blobs = assemble(made, binaries)
    again, _ = assemble(Plan.from_bytes(made.to_bytes()), dict(reversed(binaries.items())))
    assert manifest.encode() == again.encode()
    assert {name for name, _, _ in manifest.blobs} == set(blobs)
    assert set(binaries.values()) < set(blobs.values())
    with pytest.raises(KeyError):
        assemble(made, {})


def test_kernels_are_distinct_and_the_runner_comes_last() -> None:
    made = planned("""\
%0 = input "x": f32[64, 64]
%1 = call aten.exp.default(%0): f32[64, 64]
%2 = call aten.mm.default(%1, %1): f32[64, 64]
%3 = call aten.exp.default(%2): f32[64, 64]
%4 = call aten.mm.default(%3, %3): f32[64, 64]
return %4
""")
    assert len({k.digest for k in made.kernels}) == len(made.kernels) == 2
    assert made.kernels[-1].name == "fusec_run"
    assert made.report["kernels"] == 2
    assert made.report["distinct_kernels"] == 1


def test_a_second_compile_builds_nothing() -> None:
    store = MemoryStore(64 << 20)
    graph = parse_graph(KERNELS["rows_softmax"])
    first, second = Recorder(), Recorder()
    found = compile_local(graph, host_target(), _OPTIONS, store, recorder=first)
    again = compile_local(graph, host_target(), _OPTIONS, store, recorder=second)
    assert first.counters["kernel_compiles"] == 2
    assert "kernel_compiles" not in second.counters
    assert again.manifest.encode() == found.manifest.encode()
    made = plan(graph, host_target(), _OPTIONS, recorder=Recorder())
    for kernel in made.kernels:
        assert lookup(store, kernel_store_key(kernel, host_target())) is not None


class _Full(MemoryStore):
    """A store without room."""

    def put_blob(self, digest: str, data: bytes) -> None:
        raise StoreFull("no room")


def test_a_full_store_is_counted_and_the_artifact_used() -> None:
    recorder = Recorder()
    graph = parse_graph(KERNELS["argmax"])
    found = compile_local(graph, host_target(), _OPTIONS, _Full(1 << 20), recorder=recorder)
    assert found.blobs["program"]
    assert recorder.counters["store_full"] >= 1


def test_the_compilers_message_reaches_the_user() -> None:
    broken = KernelSource("k", "void k(void **b, const long *s) { return nonsense; }\n", TARGET.isa)
    with pytest.raises(CompileError) as caught:
        build_kernel(broken, TARGET)
    assert "nonsense" in caught.value.output
    assert "line 1" in str(caught.value)


def test_no_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(CompileError, match="no-such-compiler"):
        build_kernel(KernelSource("k", "", TARGET.isa), TARGET)


def test_targets_without_code() -> None:
    graph = parse_graph(KERNELS["argmax"])
    with pytest.raises(CodegenError, match="tpu"):
        plan(graph, Target("tpu", "v5"), _OPTIONS, recorder=Recorder())
    with pytest.raises(CompilerError):
        plan(graph, Target("cpu", "vax"), _OPTIONS, recorder=Recorder())


def test_a_graph_that_lies_about_its_operator_is_an_error_of_ours() -> None:
    with pytest.raises(CompilerError, match="a fault in fusec itself"):
        planned("%0 = call aten.add.Tensor(): f32[3]\nreturn %0")


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x80", Plan(b"", (), {}).to_bytes()[:-2]])
def test_what_is_no_plan(data: bytes) -> None:
    with pytest.raises(WireError):
        Plan.from_bytes(data)
