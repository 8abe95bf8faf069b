"""Kernels of equal loops that start as one, and inputs overwritten where others read them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fusec.capture.eager import EagerProgram
from fusec.codegen.host import build_host_plan
from fusec.codegen.isa import host_target
from fusec.codegen.targets import code_generator
from fusec.errors import VerifyError
from fusec.ir.program_wire import program_to_bytes
from fusec.ir.text import parse_graph
from fusec.ir.verify_kernel import verify_kernel
from fusec.pipeline import Plan
from fusec.schedule.cost import CPU, GPU, Machine
from fusec.schedule.kernel_loop import build_kernel_loop, read_outside
from fusec.schedule.search import schedule
from fusec.schedule.verify import verify_schedule
from tests.fuzz.check import KERNELS, load
from tests.schedule.programs import dissolved, kernels, scheduled


def _momentum(count: int, size: str = "50, 30") -> str:
    """Steps of an optimizer: the parameter and its momentum are overwritten from both."""
    lines, inputs, number = [], 2 * count, 2 * count
    for i in range(inputs):
        lines.append(f'%{i} = input "x{i}": f32[{size}]')
    for i in range(count):
        p, m, n = 2 * i, 2 * i + 1, number
        lines += [
            f"%{n} = call aten.mul.Tensor(%{m}, 0.9): f32[{size}]",
            f"%{n + 1} = call aten.add.Tensor(%{n}, %{p}): f32[{size}]",
            f"%{n + 2} = call aten.exp.default(%{n + 1}): f32[{size}]",
            f"%{n + 3} = call aten.sub.Tensor(%{p}, %{n + 2}): f32[{size}]",
            f"%{n + 4} = call aten.copy_.default(%{p}, %{n + 3}): f32[{size}]",
            f"%{n + 5} = call aten.copy_.default(%{m}, %{n + 2}): f32[{size}]",
        ]
        number += 6
    return "\n".join([*lines, "return", ""])


def _spaces(text: str, machine: Machine) -> list[str]:
    found = schedule(dissolved(text), machine=machine)
    verify_schedule(found)
    return [str(g.space) for g in found.groups]


def test_an_optimizer_step_is_one_kernel_in_place() -> None:
    assert len(kernels(scheduled(_momentum(1)))) == 1


def test_steps_over_many_parameters_start_together() -> None:
    assert len(_spaces(_momentum(6), GPU)) == 1
    assert 1 < len(_spaces(_momentum(40), GPU)) < 10
    assert len(_spaces(_momentum(6, "5000, 3000"), CPU)) == 6  # starting costs nothing there


def test_kernels_across_a_call_start_apart() -> None:
    text = """\
%0 = input "x": f32[64, 64]
%1 = input "y": f32[64, 64]
%2 = call aten.exp.default(%0): f32[64, 64]
%3 = call aten.mm.default(%2, %0): f32[64, 64]
%4 = call aten.sin.default(%1): f32[64, 64]
%5 = call aten.mm.default(%4, %3): f32[64, 64]
return %5
"""
    found = schedule(dissolved(text), machine=GPU)
    assert len(kernels(found)) == 2


def test_an_input_overwritten_where_another_place_is_read_is_apart() -> None:
    found = scheduled("""\
%0 = input "x": f32[30, 30]
%1 = call aten.permute.default(%0, [1, 0]): f32[30, 30] stride [1, 30]
%2 = call aten.exp.default(%1): f32[30, 30] stride [1, 30]
%3 = call aten.clone.default(%2, memory_format=memory_format:contiguous): f32[30, 30]
%4 = call aten.mul.Tensor(%0, 2): f32[30, 30]
%5 = call aten.copy_.default(%0, %4): f32[30, 30]
return %3
""")
    assert len(kernels(found)) == 2


def test_the_verifier_finds_an_overwrite_beside_a_fold() -> None:
    found = scheduled(_momentum(1))
    loop = build_kernel_loop(found.program, found.groups[0], read_outside(found)[0])
    verify_kernel(loop)
    moved = [
        replace(s, index=tuple(reversed(s.index))) if loop.buffers[s.buffer].alias_of >= 0 else s
        for s in loop.statements
    ]
    with pytest.raises(VerifyError, match="overwritten while others load it"):
        verify_kernel(replace(loop, statements=tuple(moved)))


@pytest.mark.parametrize("machine", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("count", [1, 3])
def test_results_in_place(count: int, machine: Machine) -> None:
    text = _momentum(count)
    grouped = schedule(dissolved(text), machine=machine)
    generator = code_generator(host_target())
    host = build_host_plan(grouped, generator.emit)
    plan = Plan(program_to_bytes(host.program), (*host.kernels, generator.runner), {})
    KERNELS.add(plan.kernels)
    mine = [torch.randn(50, 30) for _ in range(2 * count)]
    theirs = [x.clone() for x in mine]
    kept = list(mine)
    load(plan, host_target())(mine)
    EagerProgram(parse_graph(text))(list(theirs))
    for a, b in zip(kept, theirs, strict=True):
        torch.testing.assert_close(a, b)
