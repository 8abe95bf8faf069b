"""Kernels in two widths: of each pair the sizes of the call start one, and never a wrong one."""

from __future__ import annotations

import pytest

from fusec.codegen.gpu import gpu_emitter
from fusec.codegen.gpu_binary import GpuBinary
from fusec.codegen.gpu_source import GpuSource
from fusec.codegen.host import EmitOnce, HostPlan, build_host_plan
from fusec.ir.program import Launch
from fusec.parts import finish
from fusec.runtime.gpu_launches import GpuCall, LaunchPlan
from fusec.runtime.sizes import Sizes
from tests.codegen.kernels import KERNELS
from tests.codegen.triton_cases import grouped
from tests.codegen.triton_corpus import DYNAMIC

_LIMIT = 1 << 31


def plan_of(text: str) -> HostPlan:
    return finish(build_host_plan(grouped(text), EmitOnce(gpu_emitter("sm_90")), "cuda"))


def launch_plan(plan: HostPlan) -> LaunchPlan:
    """The plan of a program as the runtime has it, without images."""
    binaries = []
    for kernel in plan.kernels:
        assert isinstance(kernel, GpuSource)
        sizes = tuple(kind for kind in kernel.signature if not kind.startswith("*"))
        programs = kernel.variants[0].programs
        binaries.append(GpuBinary(kernel.name, b"", programs, 128, 0, 2, sizes))
    return LaunchPlan(plan.program, binaries)


def started(plan: HostPlan, sizes: dict[str, int]) -> list[bool]:
    """For each launch, whether it has programs in a call of these sizes."""
    launches = launch_plan(plan)
    structures = launches.structures(range(1, len(launches.binaries) + 1))
    call = GpuCall(launches, structures, 0, 0)
    call.set_sizes(Sizes(sizes))
    cells = call.structure.cells
    numbered = zip(launches.steps, structures, strict=True)
    return [all(cells[number] > 0 for number in structure.grid) for _, structure in numbered]


@pytest.mark.parametrize("name", DYNAMIC)
def test_each_call_starts_one_of_a_pair(name: str) -> None:
    plan = plan_of(DYNAMIC[name])
    steps = [s for s in plan.program.steps if isinstance(s, Launch)]
    wide = [plan.kernels[s.kernel].name.endswith("_wide") for s in steps]
    assert any(wide)
    for first, second, is_wide in zip(steps, steps[1:], wide[1:], strict=False):
        if is_wide:
            assert (first.slots, first.sizes) == (second.slots, second.sizes)
            assert not first.free
    for kernel in plan.kernels:
        assert isinstance(kernel, GpuSource)
        kinds = {kind for kind in kernel.signature if not kind.startswith("*")}
        assert kinds == {"i64" if kernel.name.endswith("_wide") else "i32"}
    rows = 1 << 12
    for columns in (2, 1000, (_LIMIT >> 13) - (1 << 16)):
        runs = started(plan, {"s0": rows, "s1": columns})
        assert runs == [not w for w in wide]
    for columns in (_LIMIT >> 12, 1 << 20):
        runs = started(plan, {"s0": rows, "s1": columns})
        assert any(r and w for r, w in zip(runs, wide, strict=True))
        assert sum(runs) == plan.started
        for first, second, is_wide in zip(runs, runs[1:], wide[1:], strict=False):
            assert not is_wide or first is not second


def test_bounded_sizes_need_one_kernel() -> None:
    plan = plan_of(KERNELS["pointwise_dynamic"])
    (kernel,) = plan.kernels
    assert isinstance(kernel, GpuSource)
    assert kernel.signature[-1] == "i32"
    assert len(plan.program.steps) == 1
    assert started(plan, {"s0": 1 << 20}) == [True]
