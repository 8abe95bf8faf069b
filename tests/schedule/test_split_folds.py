"""Long folds in chunks, for either machine: what is cut where, and that results stay the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusec.capture.eager import EagerProgram
from fusec.codegen.host import EmitOnce, build_host_plan
from fusec.codegen.isa import host_target
from fusec.codegen.targets import code_generator
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.graph import TensorType
from fusec.ir.loop import Compute, LoopProgram
from fusec.ir.program_wire import program_to_bytes
from fusec.ir.text import parse_graph
from fusec.parts import finish
from fusec.pipeline import Plan
from fusec.schedule.cost import CPU, GPU, Machine
from fusec.schedule.search import schedule
from fusec.schedule.split_folds import split_folds
from fusec.schedule.verify import verify_schedule
from tests.fuzz.check import KERNELS, load
from tests.schedule.programs import dissolved


def _fold(shape: str, dims: str, kept: str, op: str = "sum.dim_IntList", stride: str = "") -> str:
    return f"""\
%0 = input "x": f32[{shape}]{stride}
%1 = call aten.{op}(%0, [{dims}]): f32[{kept}]
return %1
"""


def _chunks(text: str, machine: Machine) -> list[int | None] | None:
    """Sizes of the axes that chunks add to a fold; None where it is not split."""
    before = dissolved(text)
    after = split_folds(before, machine)
    if len(after.steps) == len(before.steps):
        return None
    first = next(s for s in after.steps if isinstance(s, Compute) and s.reduction)
    last = after.steps[-1]
    assert isinstance(last, Compute)
    count = len(first.axes) - len(last.axes)
    return [ex.as_int(a.upper) for a in first.axes[:count] if a.upper is not None]


@pytest.mark.parametrize(
    ("text", "cpu", "gpu"),
    [
        (_fold("8192, 4096", "0", "4096"), [64], [16]),
        (_fold("4096, 100", "0", "100"), [64], [256]),
        (_fold("32, 128, 768", "0, 1", "768"), [32, 2], [32, 2]),
        (_fold("8191, 100", "0", "100"), None, [264]),  # a prime: the last chunk is shorter
        (_fold("64, 4096", "1", "64"), None, None),
        (_fold("4, 1048576", "1", "4"), [16], [256]),
        (_fold("100, 10", "0", "10"), None, None),
        # Columns as memory has them: channels last.
        (
            _fold("32, 64, 56, 56", "0, 2, 3", "64", stride=" stride [200704, 1, 3584, 64]"),
            [32, 2],
            [32, 7],
        ),
        ("symbol s0 in [2, 65536]\n" + _fold("s0, 100", "0", "100"), None, [264]),
    ],
)
def test_chunks_by_shape_and_target(text: str, cpu: Any, gpu: Any) -> None:
    assert (_chunks(text, CPU), _chunks(text, GPU)) == (cpu, gpu)


def test_columns_beside_rows_get_a_program_a_chunk() -> None:
    text = """\
%0 = input "x": bf16[8192, 4096]
%1 = call aten.sum.dim_IntList(%0, [1]): bf16[8192]
%2 = call aten.sum.dim_IntList(%0, [0]): bf16[4096]
return %1, %2
"""
    found = schedule(split_folds(dissolved(text), GPU), machine=GPU)
    assert str(found.groups[0].space) == "(256, carry 32, fold 4096)"


def _run(loops: LoopProgram, machine: Machine, inputs: list[torch.Tensor]) -> list[Any]:
    """A program scheduled for a machine, run here."""
    grouped = schedule(loops, machine=machine)
    verify_schedule(grouped)
    generator = code_generator(host_target())
    host = finish(build_host_plan(grouped, EmitOnce(generator.emit)))
    plan = Plan(program_to_bytes(host.program), (*host.kernels, generator.runner), {})
    KERNELS.add(plan.kernels)
    return load(plan, host_target())(inputs)


_RESULTS = {
    "even": _fold("2048, 33", "0", "33"),
    "whole_axes": _fold("16, 64, 70", "0, 1", "70"),
    "one_row": _fold("70001", "0", ""),
    "ragged": _fold("8191, 10", "0", "10"),
    "dynamic": "symbol s0 in [2, 65536]\n" + _fold("s0, 10", "0", "10"),
    "extremes": """\
symbol s0 in [2, 65536]
%0 = input "x": f32[s0, 10]
%1 = call aten.exp.default(%0): f32[s0, 10]
%2 = call aten.amin.default(%1, [0]): f32[10]
%3 = call aten.neg.default(%1): f32[s0, 10]
%4 = call aten.amax.default(%3, [0]): f32[10]
%5 = call aten.gt.Scalar(%0, -9.0): bool[s0, 10]
%6 = call aten.all.dim(%5, 0): bool[10]
%7 = call aten._to_copy.default(%0, dtype=dtype:i32): i32[s0, 10]
%8 = call aten.amax.default(%7, [0]): i32[10]
%9 = call aten.add.Tensor(%7, 100): i32[s0, 10]
%10 = call aten.amin.default(%9, [0]): i32[10]
return %2, %4, %6, %8, %10
""",
    "rows_too": """\
%0 = input "x": f32[1024, 67]
%1 = call aten.sum.dim_IntList(%0, [1], true): f32[1024, 1]
%2 = call aten.sub.Tensor(%0, %1): f32[1024, 67]
%3 = call aten.sum.dim_IntList(%2, [0]): f32[67]
return %2, %3
""",
}


@pytest.mark.parametrize("machine", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("name", _RESULTS)
def test_results_stay_the_same(name: str, machine: Machine) -> None:
    text = _RESULTS[name]
    loops = split_folds(dissolved(text), machine)
    graph = parse_graph(text)
    kind = graph.nodes[graph.inputs[0]].type
    assert isinstance(kind, TensorType)
    x = torch.randn([ex.evaluate(e, {"s0": 1031}) for e in kind.shape])
    got = _run(loops, machine, [x])
    for mine, theirs in zip(got, EagerProgram(graph)([x]), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-4)


def _moments(shape: str, dims: str, kept: str, stride: str = "") -> str:
    return f"""\
%0 = input "x": f32[{shape}]{stride}
%1 = call aten.var_mean.correction(%0, [{dims}], correction=0): (f32[{kept}], f32[{kept}])
%2 = call py.getitem(%1, 0): f32[{kept}]
%3 = call py.getitem(%1, 1): f32[{kept}]
return %2, %3
"""


_LAYOUTS = {
    "channels_last": _moments("8, 32, 28, 28", "0, 2, 3", "32", " stride [25088, 1, 896, 32]"),
    "contiguous": _moments("16, 8, 64, 64", "0, 2, 3", "8"),
    "rows": _moments("3, 262144", "1", "3"),
}


@pytest.mark.parametrize("name", _LAYOUTS)
def test_a_gpu_reads_once_for_a_mean_and_a_variance(name: str) -> None:
    found = schedule(split_folds(dissolved(_LAYOUTS[name]), GPU), machine=GPU)
    reads = [
        sum(any(load.buffer == 0 for load in lp.loads(found.program.steps[m].value)) for m in g)
        for g in (group.members for group in found.groups)
    ]
    assert [count for count in reads if count] == [3]  # the sums of one kernel
    assert len(found.groups) == 2


def _hard(kind: TensorType, case: str) -> torch.Tensor:
    """Data with large means, with an outlier, or with means that differ from chunk to chunk."""
    shape = [ex.evaluate(e, {}) for e in kind.shape]
    stride = [ex.evaluate(e, {}) for e in kind.stride]
    x = torch.randn(shape)
    if case == "far":
        x = x * 1e-2 + 1000.0
    elif case == "outlier":
        x.view(-1)[0] = 1e6
    elif case == "drift":
        x = x + torch.arange(shape[0]).view(-1, *(1 for _ in shape[1:])) * 1e3
    return torch.empty_strided(shape, stride).copy_(x)


@pytest.mark.parametrize("case", ["plain", "far", "outlier", "drift"])
@pytest.mark.parametrize("name", _LAYOUTS)
def test_variances_of_chunks_are_exact_in_float32(name: str, case: str) -> None:
    graph = parse_graph(_LAYOUTS[name])
    kind = graph.nodes[graph.inputs[0]].type
    assert isinstance(kind, TensorType)
    x = _hard(kind, case)
    variance, mean = _run(split_folds(dissolved(_LAYOUTS[name]), GPU), GPU, [x])
    right_variance, right_mean = EagerProgram(graph)([x.double()])
    eps = torch.finfo(torch.float32).eps
    assert ((variance - right_variance).abs() <= 16 * eps * right_variance).all()
    spread = right_mean.abs() + right_variance.sqrt()
    assert ((mean - right_mean).abs() <= eps * spread).all()


@pytest.mark.parametrize("name", _LAYOUTS)
def test_a_variance_of_equal_values_is_none(name: str) -> None:
    graph = parse_graph(_LAYOUTS[name])
    kind = graph.nodes[graph.inputs[0]].type
    assert isinstance(kind, TensorType)
    x = _hard(kind, "plain").fill_(0.1)
    variance, mean = _run(split_folds(dissolved(_LAYOUTS[name]), GPU), GPU, [x])
    assert (variance >= 0).all()
    assert (variance <= 1e-16).all()
    torch.testing.assert_close(mean, torch.full_like(mean, 0.1))


def _softmax(rows: int, width: int) -> str:
    at, one = f"f32[{rows}, {width}]", f"f32[{rows}, 1]"
    return f"""\
%0 = input "x": {at}
%1 = call aten.amax.default(%0, [1], true): {one}
%2 = call aten.sub.Tensor(%0, %1): {at}
%3 = call aten.exp.default(%2): {at}
%4 = call aten.sum.dim_IntList(%3, [1], true): {one}
%5 = call aten.div.Tensor(%3, %4): {at}
%6 = call aten.log.default(%4): {one}
%7 = call aten.sub.Tensor(%2, %6): {at}
return %5, %7
"""


@pytest.mark.parametrize("width", [65536, 50257])
def test_a_gpu_reads_few_long_rows_twice_for_a_softmax(width: int) -> None:
    text = _softmax(3, width)
    found = schedule(split_folds(dissolved(text), GPU), machine=GPU)
    verify_schedule(found)
    assert len(found.groups) == 3
    reads = [
        any(load.buffer == 0 for m in g.members for load in lp.loads(found.program.steps[m].value))
        for g in found.groups
    ]
    assert sum(reads) == 2


@pytest.mark.parametrize("width", [65536, 50257])
def test_softmax_of_chunks_is_right(width: int) -> None:
    text = _softmax(5, width)
    graph = parse_graph(text)
    x = torch.randn(5, width, generator=torch.Generator().manual_seed(width)) * 8
    x[1, : width // 2] = float("-inf")  # whole chunks of it
    x[2, 7] = 1e4
    x[3] = float("-inf")
    x[4, 9] = float("nan")
    got = _run(split_folds(dissolved(text), GPU), GPU, [x])
    eager, right = EagerProgram(graph)([x]), EagerProgram(graph)([x.double()])
    for mine, theirs, true in zip(got, eager, right, strict=True):
        assert torch.equal(mine.isnan(), theirs.isnan())
        known = true.isfinite()
        assert torch.equal(mine[~known & ~true.isnan()], theirs[~known & ~true.isnan()])
        error, of_eager = ((v - true)[known].abs().max() for v in (mine, theirs))
        assert error <= 2 * of_eager + 4 * torch.finfo(torch.float32).eps
