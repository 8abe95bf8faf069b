"""What follows a compile, a task at a time: variants in parts, timers that are kept."""

from __future__ import annotations

import pytest

from cache.protocol import pack, unpack
from farm.quality import FusecQuality, lent_timer
from farm.quality_tasks import Candidate, compiled_of, run_quality, variants_tasks
from fusec.codegen import triton_toolchain
from fusec.codegen.gpu_binary import GpuBinary
from fusec.errors import WireError
from fusec.ir.text import parse_graph
from fusec.options import Options, Target
from fusec.pipeline import plan
from fusec.trace import Recorder
from tests.lower.on_cpu import cuda_graph

_GRAPH = """\
%0 = input "x": f32[512, 64]
%1 = input "y": f32[4096, 64]
%2 = call aten.exp.default(%0): f32[512, 64]
%3 = call aten.sin.default(%1): f32[4096, 64]
return %2, %3
"""


def _candidates() -> list[Candidate]:
    graph = cuda_graph(parse_graph(_GRAPH))
    made = plan(graph, Target("cuda", "sm_90"), Options(fusion=False), recorder=Recorder())
    return FusecQuality().candidates(made.to_bytes(), "gpu:sm_90:paper-tiger", False)


def test_the_largest_kernel_is_the_first_to_be_timed() -> None:
    sizes = [unpack(c.problem, max_bytes=1 << 20)[1][0][0] for c in _candidates()]  # type: ignore[index]
    assert sizes == [4096 * 64, 512 * 64]


def test_variants_are_compiled_one_a_task_by_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen workers that each compile all variants of a kernel at once are sixteen times as many
    compilers as there are processors."""
    candidate = _candidates()[0]
    started: list[object] = []
    compile_variant = triton_toolchain.compile_variant

    def counted(source: object, number: int, timeout_s: float) -> GpuBinary:
        started.append(number)
        return compile_variant(source, number, timeout_s)  # type: ignore[arg-type]

    monkeypatch.setattr(triton_toolchain, "compile_variant", counted)
    tasks = variants_tasks(candidate)
    assert len(tasks) == candidate.count > 2
    results = [run_quality(task, FusecQuality()) for task in tasks[:2]]
    assert started == [0, 1]
    compiled = compiled_of(candidate, results)
    assert compiled.binaries.keys() == {"0", "1"}
    assert compiled.left_out == {}


def test_a_result_that_is_none_is_refused() -> None:
    with pytest.raises(WireError):
        compiled_of(_candidates()[0], [pack({"binaries": {"0": 1}, "left_out": {}})])


def test_a_timer_is_kept_until_it_is_lost() -> None:
    with lent_timer(63) as first:
        pass
    with lent_timer(63) as second, lent_timer(63) as other:
        assert second is first
        assert other is not first
    with pytest.raises(ZeroDivisionError), lent_timer(62) as lost:
        raise ZeroDivisionError
    with lent_timer(62) as new:
        assert new is not lost
