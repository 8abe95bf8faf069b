"""Kernels of equal loops that start as one, and inputs overwritten where others read them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fusec.capture.eager import EagerProgram
from fusec.codegen.host import EmitOnce, build_host_plan
from fusec.codegen.isa import host_target
from fusec.codegen.targets import code_generator
from fusec.errors import ScheduleError, VerifyError
from fusec.ir.program_wire import program_to_bytes
from fusec.ir.text import parse_graph
from fusec.ir.verify_kernel import verify_kernel
from fusec.parts import finish
from fusec.pipeline import Plan
from fusec.schedule.cost import CPU, GPU, Machine
from fusec.schedule.groups import Schedule
from fusec.schedule.kernel_loop import build_kernel_loop, read_outside
from fusec.schedule.search import schedule
from fusec.schedule.verify import verify_schedule
from tests.fuzz.check import KERNELS, load
from tests.schedule.programs import dissolved, kernels, scheduled


def _momentum(count: int, size: str = "50, 30") -> str:
    return _momenta([size] * count)


def _momenta(sizes: list[str]) -> str:
    """Steps of an optimizer: the parameter and its momentum are overwritten from both."""
    lines = [f'%{i} = input "x{i}": f32[{sizes[i // 2]}]' for i in range(2 * len(sizes))]
    n = len(lines)
    for i, size in enumerate(sizes):
        p, m = 2 * i, 2 * i + 1
        lines += [
            f"%{n} = call aten.mul.Tensor(%{m}, 0.9): f32[{size}]",
            f"%{n + 1} = call aten.add.Tensor(%{n}, %{p}): f32[{size}]",
            f"%{n + 2} = call aten.exp.default(%{n + 1}): f32[{size}]",
            f"%{n + 3} = call aten.sub.Tensor(%{p}, %{n + 2}): f32[{size}]",
            f"%{n + 4} = call aten.copy_.default(%{p}, %{n + 3}): f32[{size}]",
            f"%{n + 5} = call aten.copy_.default(%{m}, %{n + 2}): f32[{size}]",
        ]
        n += 6
    return "\n".join([*lines, "return", ""])


_MERGES = replace(GPU, batched=0)


def _scheduled(text: str, machine: Machine) -> Schedule:
    found = schedule(dissolved(text), machine=machine)
    verify_schedule(found)
    return found


def _spaces(text: str, machine: Machine) -> list[str]:
    return [str(g.space) for g in _scheduled(text, machine).groups]


def test_an_optimizer_step_is_one_kernel_in_place() -> None:
    assert len(kernels(scheduled(_momentum(1)))) == 1


def test_steps_over_many_parameters_start_together() -> None:
    assert len(_spaces(_momentum(6), _MERGES)) == 1
    assert 1 < len(_spaces(_momentum(40), _MERGES)) < 10
    assert len(_spaces(_momentum(6, "5000, 3000"), CPU)) == 6  # starting costs nothing there


def test_equal_steps_are_a_batch_on_a_gpu() -> None:
    found = _scheduled(_momentum(40), GPU)
    assert len(found.groups) == 40
    assert found.batches == ((0, 40),)
    assert _scheduled(_momentum(2), GPU).batches == ()  # one kernel
    assert _scheduled(_momentum(6), CPU).batches == ()
    assert _scheduled(_momentum(3, "20000, 30000"), GPU).batches == ()  # starting is nothing there


def test_a_batch_is_of_one_size() -> None:
    found = _scheduled(_momenta(["50, 30", "64, 30"] * 3 + ["50, 30"]), GPU)
    spaces = [{str(g.space) for g in found.groups[a:b]} for a, b in found.batches]
    assert sorted(map(len, spaces)) == [1, 1]
    assert sorted(b - a for a, b in found.batches) == [3, 4]


_CHAIN = """\
%0 = input "x": f32[64, 64]
%1 = call aten.sum.dim_IntList(%0, [1], true): f32[64, 1]
%2 = call aten.div.Tensor(%0, %1): f32[64, 64]
%3 = call aten.sum.dim_IntList(%2, [1], true): f32[64, 1]
%4 = call aten.div.Tensor(%2, %3): f32[64, 64]
%5 = call aten.sum.dim_IntList(%4, [1], true): f32[64, 1]
%6 = call aten.div.Tensor(%4, %5): f32[64, 64]
return %6
"""


_TURNS = """\
%0 = input "x": f32[64, 64]
%1 = call aten.permute.default(%0, [1, 0]): f32[64, 64] stride [1, 64]
%2 = call aten.atan2.default(%0, %1): f32[64, 64]
%3 = call aten.permute.default(%2, [1, 0]): f32[64, 64] stride [1, 64]
%4 = call aten.atan2.default(%2, %3): f32[64, 64]
%5 = call aten.permute.default(%4, [1, 0]): f32[64, 64] stride [1, 64]
%6 = call aten.atan2.default(%4, %5): f32[64, 64]
return %2, %4, %6
"""


def test_what_depends_on_another_is_in_no_batch_with_it() -> None:
    turns = _scheduled(_TURNS, replace(GPU, batched=2))
    assert len(turns.groups) == 3
    assert turns.batches == ()
    apart = schedule(dissolved(_CHAIN), fusion=False)
    for batch in ((0, 2), (0, 3), (1, 3), (4, 6)):
        with pytest.raises(ScheduleError, match="starts together with step"):
            verify_schedule(replace(apart, batches=(batch,)))


_OVERWRITES = """\
%0 = input "x": f32[50, 30]
%1 = input "y": f32[50, 30]
%2 = input "z": f32[50, 30]
%3 = call aten.permute.default(%1, [0, 1]): f32[50, 30]
%4 = call aten.exp.default(%3): f32[50, 30]
%5 = call aten.copy_.default(%0, %4): f32[50, 30]
%6 = call aten.exp.default(%2): f32[50, 30]
%7 = call aten.copy_.default(%1, %6): f32[50, 30]
return
"""


def test_an_input_is_not_overwritten_beside_its_reader() -> None:
    assert _scheduled(_OVERWRITES, replace(GPU, batched=2)).batches == ()
    apart = schedule(dissolved(_OVERWRITES), fusion=False)
    assert len(apart.groups) == 2
    verify_schedule(apart)
    with pytest.raises(ScheduleError, match=r"starts together with step .* overwrites"):
        verify_schedule(replace(apart, batches=((0, 2),)))


def test_the_verifier_refuses_what_is_no_batch() -> None:
    found = _scheduled(_momentum(4), GPU)
    for batches in (((0, 1),), ((0, 5),), ((0, 2), (1, 3)), ((2, 4), (0, 2))):
        with pytest.raises(ScheduleError, match="are no batch"):
            verify_schedule(replace(found, batches=batches))


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
    found = schedule(dissolved(text), machine=replace(GPU, batched=2))
    assert len(kernels(found)) == 2
    assert found.batches == ()


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


@pytest.mark.parametrize("machine", [CPU, _MERGES, GPU], ids=["cpu", "merged", "gpu"])
@pytest.mark.parametrize("count", [1, 3])
def test_results_in_place(count: int, machine: Machine) -> None:
    text = _momentum(count)
    grouped = schedule(dissolved(text), machine=machine)
    generator = code_generator(host_target())
    host = finish(build_host_plan(grouped, EmitOnce(generator.emit)))
    plan = Plan(program_to_bytes(host.program), (*host.kernels, generator.runner), {})
    KERNELS.add(plan.kernels)
    mine = [torch.randn(50, 30) for _ in range(2 * count)]
    theirs = [x.clone() for x in mine]
    kept = list(mine)
    load(plan, host_target())(mine)
    EagerProgram(parse_graph(text))(list(theirs))
    for a, b in zip(kept, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_counters_of_many_layers_start_at_once() -> None:
    layers = 4
    lines = ['%0 = input "x": f32[64, 64]']
    lines += [f'%{1 + i} = input "": i64[]' for i in range(layers)]
    last, number = 0, 1 + layers
    for i in range(layers):
        lines.append(f"%{number} = call aten.mm.default(%{last}, %0): f32[64, 64]")
        lines.append(f"%{number + 1} = call aten.add.Tensor(%{1 + i}, 1): i64[]")
        lines.append(f"%{number + 2} = call aten.copy_.default(%{1 + i}, %{number + 1}): i64[]")
        last, number = number, number + 3
    found = _scheduled("\n".join([*lines, f"return %{last}", ""]), replace(GPU, batched=2))
    assert found.batches == ((layers, 2 * layers),)
