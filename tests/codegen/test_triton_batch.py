"""Launches of one kernel made one: run in the interpreter, compiled, refused where they differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fusec.codegen.gpu import gpu_emitter
from fusec.codegen.gpu_source import GpuSource
from fusec.codegen.host import EmitOnce, Emitted, build_host_plan
from fusec.codegen.triton_batch import MOST_LAUNCHES, batch, most_launches
from fusec.codegen.triton_toolchain import compile_variant
from fusec.errors import CodegenError
from fusec.parts import finish
from tests.codegen.kernels import KERNELS
from tests.codegen.optimizers import adamw
from tests.codegen.triton_cases import Case, grouped, run_cases
from tests.codegen.triton_host import host_plan


def launch(name: str) -> Emitted:
    once = EmitOnce(gpu_emitter("sm_90"))
    return finish(build_host_plan(grouped(KERNELS[name]), once)).launches[0]


def source(made: Emitted) -> GpuSource:
    assert isinstance(made.kernel, GpuSource)
    return made.kernel


def test_every_launch_of_a_batch_is_done(tmp_path: Path) -> None:
    names = ("overwrite", "pointwise_dynamic", "rows_softmax", "tile_transpose")
    cases = [
        Case(name, KERNELS[name], times=5, sizes={"s0": 37} if "symbol" in KERNELS[name] else {})
        for name in names
    ]
    found = run_cases(cases, tmp_path)
    assert found == {name: [] for name in names}


def test_programs_of_batches_are_right_in_planned_memory(tmp_path: Path) -> None:
    sizes = ["6, 20", "33", "6, 20", "33", "6, 20", "6, 20", "5, 7", "33"]
    cases = [
        Case("steps", adamw(sizes), picks=(0, 1), host=True),
        Case("clipped", adamw(sizes, clipped=True), host=True),
    ]
    plans = [host_plan(grouped(case.text)) for case in cases]
    assert all(any("_times_" in k.name for k in plan.kernels) for plan in plans)
    assert plans[1].program.arena_bytes > 0
    assert run_cases(cases, tmp_path) == {"steps": [], "clipped": []}


def test_a_batch_compiles_and_takes_all_buffers() -> None:
    one = launch("overwrite")
    count = most_launches(source(one))
    assert count == MOST_LAUNCHES
    made = batch(
        [replace(one, buffers=tuple(b + 10 * i for b in one.buffers)) for i in range(count)]
    )
    assert len(made.buffers) == len(set(made.buffers)) == count * len(one.buffers)
    binary = compile_variant(source(made), 0, 60.0)
    assert binary.spills == 0
    assert len(binary.grid) == 2


def test_launches_that_differ_are_refused() -> None:
    one, other = launch("overwrite"), launch("half")
    with pytest.raises(CodegenError, match="differ in more than their buffers"):
        batch([one, other])
    with pytest.raises(CodegenError, match="are not one"):
        batch([one] * (MOST_LAUNCHES + 1))
