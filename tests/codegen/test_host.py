"""The host's plan: equal launches that do not depend on each other are one on a GPU."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

from fusec.codegen.cpu import cpu_emitter
from fusec.codegen.gpu_source import GpuSource
from fusec.codegen.host import EmitOnce, HostPlan, build_host_plan
from fusec.codegen.triton_batch import MOST_LAUNCHES
from fusec.codegen.triton_toolchain import compile_variant
from fusec.inspect.explain import Kernel, explain
from fusec.inspect.outline import text as outline_text
from fusec.ir.program import Launch
from fusec.ir.text import parse_graph
from fusec.lower.lowering import lower
from fusec.options import Options, Target
from fusec.parts import finish
from fusec.pipeline import plan
from fusec.schedule.cost import GPU
from fusec.schedule.search import schedule
from fusec.schedule.verify import verify_schedule
from fusec.trace import Recorder
from fusec.tune.problem import problems
from tests.codegen.optimizers import adamw
from tests.codegen.triton_cases import grouped
from tests.codegen.triton_host import host_plan

CUDA = Target("cuda", "sm_90")


def launches(found: HostPlan) -> list[Launch]:
    return [step for step in found.program.steps if isinstance(step, Launch)]


def test_an_optimizer_over_a_hundred_tensors_is_four_launches_of_one_kernel() -> None:
    text = adamw(["1024, 1024"] * 100)
    found = host_plan(grouped(text))
    assert [len(step.slots) for step in launches(found)] == [25 * 4] * 4
    (kernel,) = found.kernels
    assert kernel.name.endswith("_times_25")
    named = [s for step in launches(found) for s in step.slots]
    assert len(set(named)) == len(named) == 400  # a memory has one pointer
    assert found.program.arena_bytes == 0
    report = plan(parse_graph(text), CUDA, Options(), recorder=Recorder()).report
    assert report["groups"] == 100
    assert report["kernels"] == 4
    assert report["distinct_kernels"] == 1


def test_batches_are_of_nearly_equal_length() -> None:
    found = host_plan(grouped(adamw(["64, 64"] * (MOST_LAUNCHES + 3))))
    assert [len(step.slots) // 4 for step in launches(found)] == [17, 18]


def instructions(image: bytes, folder: Path) -> Counter[str]:
    """Loads and stores of global memory in a kernel's machine code."""
    found = importlib.util.find_spec("triton")
    assert found is not None
    assert found.origin is not None
    tool = Path(found.origin).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    path = folder / "kernel.cubin"
    path.write_bytes(image)
    text = subprocess.run([tool, path], capture_output=True, text=True, check=True).stdout
    return Counter(
        f"{name} {'128' if '.128' in kind else 'less'}"
        for name, kind in re.findall(r"\b(LDG|STG)((?:\.\w+)*)", text)
    )


def test_a_batch_loads_and_stores_16_bytes_a_thread_and_spills_nothing(tmp_path: Path) -> None:
    (kernel,) = host_plan(grouped(adamw(["1024, 1024"] * 25))).kernels
    (alone,) = host_plan(grouped(adamw(["1024, 1024"]))).kernels
    assert isinstance(kernel, GpuSource)
    assert isinstance(alone, GpuSource)
    batch, one = (compile_variant(k, 0, 60.0) for k in (kernel, alone))
    assert batch.spills == 0
    assert batch.registers <= one.registers + 16
    found = instructions(batch.image, tmp_path)
    assert found == instructions(one.image, tmp_path)
    assert set(found) == {"LDG 128", "STG 128"}


def test_a_processor_without_batches_starts_each_alone() -> None:
    once = EmitOnce(cpu_emitter("x86-64-v3"))
    found = finish(build_host_plan(grouped(adamw(["64, 64"] * 5)), once))
    assert len(launches(found)) == len(found.launches) == 5


_IN_PLACE = """\
%0 = input "a": f32[64, 64]
%1 = input "x": f32[64, 64]
%2 = input "y": f32[64, 64]
%3 = call aten.mm.default(%0, %0): f32[64, 64]
%4 = call aten.atan2.default(%3, %1): f32[64, 64]
%5 = call aten.atan2.default(%3, %2): f32[64, 64]
%6 = call aten.mm.default(%4, %5): f32[64, 64]
return %6
"""


def test_memory_that_two_of_a_batch_read_is_not_taken_over_by_one() -> None:
    apart = schedule(lower(parse_graph(_IN_PLACE)), fusion=False, machine=GPU)
    together = replace(apart, batches=((1, 3),))
    verify_schedule(together)
    alone, batched = host_plan(apart), host_plan(together)
    assert len(launches(alone)) == 2
    (launch,) = launches(batched)
    read = [s for s in launch.slots if launch.slots.count(s) == 2]
    assert len(set(read)) == 1  # the product, which both read and neither overwrites
    assert len(set(launch.slots)) == 5
    assert batched.program.arena_bytes == alone.program.arena_bytes + 4 * 64 * 64


_OWN = _IN_PLACE.replace("atan2.default(%3, %2)", "atan2.default(%7, %2)").replace(
    "%4 = ", "%7 = call aten.mm.default(%1, %0): f32[64, 64]\n%4 = "
)


def test_memory_that_one_of_a_batch_reads_is_taken_over() -> None:
    lines, numbers = [], {}
    for line in _OWN.splitlines():
        if line.startswith("%"):
            numbers[line.split()[0]] = f"%{len(numbers)}"
        lines.append(" ".join(_renamed(word, numbers) for word in line.split(" ")))
    apart = schedule(lower(parse_graph("\n".join([*lines, ""]))), fusion=False, machine=GPU)
    together = replace(apart, batches=((2, 4),))
    verify_schedule(together)
    (launch,) = launches(host_plan(together))
    assert len(set(launch.slots)) == 4  # two inputs; two products, each overwritten


def _renamed(word: str, numbers: dict[str, str]) -> str:
    for old in sorted(numbers, key=len, reverse=True):
        if old in word:
            return word.replace(old, numbers[old])
    return word


def test_a_batch_is_a_problem_of_all_its_buffers() -> None:
    found = host_plan(grouped(adamw(["32, 64"] * 8)))
    (problem,) = problems(found.program, found.kernels)
    assert [(b.count, b.dtype) for b in problem.buffers] == [(32 * 64, "f32")] * 32
    assert {len(problem.grid(v)) for v in problem.source.variants} == {2}
    assert len(problem.source.below) == 32


def test_batches_are_explained() -> None:
    found = explain(parse_graph(adamw(["32, 64"] * 8)), CUDA, Options())
    (entry,) = found.entries
    assert isinstance(entry, Kernel)
    assert (entry.count, entry.together, found.launches) == (8, 8, 1)
    assert "x8, 8 a launch, over (32, 64)" in outline_text([found])


def test_steps_that_share_a_number_are_batches_all_the_same() -> None:
    found = host_plan(
        grouped(adamw(["768, 768", "768, 2304", "768", "768, 3072", "3072"] * 8, clipped=True))
    )
    updates = [s for s in launches(found) if len(s.slots) == 5 * 8]  # four tensors and the norm
    assert len(updates) == 5
    assert found.program.arena_bytes < 64 << 10  # no gradient is written anew
