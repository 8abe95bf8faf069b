"""Products of half precision on a GPU with sizes that are no multiples of 8 elements."""

from __future__ import annotations

import pytest
import torch

from fusec.ir import expr as ex
from fusec.ir.loop import Compute, External, external_reads
from fusec.ir.text import parse_graph
from fusec.lower.lowering import lower
from tests.lower.harness import values_differ
from tests.lower.on_cpu import OnCpu

# The head of a language model and its backward pass: a weight in rows, a gradient that the graph
# computes and that two products read, one of them transposed.
_HEAD = """\
%0 = input "x": bf16[4224, 1024] @cuda
%1 = input "w": bf16[130, 1024] @cuda
%2 = input "b": bf16[130] @cuda
%3 = call aten.t.default(%1): bf16[1024, 130] stride [1, 1024] @cuda
%4 = call aten.addmm.default(%2, %0, %3): bf16[4224, 130] @cuda
%5 = call aten.sigmoid.default(%4): bf16[4224, 130] @cuda
%6 = call aten.mm.default(%5, %1): bf16[4224, 1024] @cuda
%7 = call aten.t.default(%5): bf16[130, 4224] stride [1, 130] @cuda
%8 = call aten.mm.default(%7, %0): bf16[130, 1024] @cuda
%9 = call aten.sum.dim_IntList(%5, [0]): bf16[130] @cuda
return %6, %8, %9
"""


def _sizes(run: OnCpu) -> list[list[tuple[int | None, ...]]]:
    """Shapes of the matrices of each library call, its result last."""
    found = []
    for step in run.program.steps:
        if isinstance(step, External):
            views = [v.shape for v in external_reads(step)]
            views += [run.program.buffers[o].shape for o in step.outputs if o is not None]
            found.append([tuple(map(ex.as_int, shape)) for shape in views])
    return found


def _aligned(run: OnCpu) -> bool:
    """Whether all rows of all operands and results of the library are on 16 bytes."""
    views = [v for s in run.program.steps if isinstance(s, External) for v in external_reads(s)]
    steps = [ex.as_int(s) or 0 for v in views if len(v.shape) > 1 for s in v.stride]
    return all(s == 1 or s % 8 == 0 for s in steps)


def _normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return (torch.randn(shape) / 8).to(dtype)


def test_a_head_and_its_gradients() -> None:
    run = OnCpu(_HEAD)
    assert _sizes(run) == [
        [(136,), (4224, 1024), (1024, 136), (4224, 136)],
        [(4224, 136), (136, 1024), (4224, 1024)],
        [(136, 4224), (4224, 1024), (136, 1024)],
    ]
    assert _aligned(run)
    # The weight is copied once, the gradient not at all: its own loop puts the zeros.
    loops = [s for s in run.program.steps if isinstance(s, Compute) and s.reduction is None]
    assert [tuple(ex.as_int(n) for n in run.program.buffers[s.output].shape) for s in loops] == [
        (136,),
        (136, 1024),
        (4224, 136),
        (130,),
    ]
    x, w, b = _normal(4224, 1024), _normal(130, 1024), _normal(130)

    def head(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        y = torch.addmm(b, x, w.t()).sigmoid()
        return [y @ w, y.t() @ x, y.sum(0)]

    exact = head(x.double(), w.double(), b.double())
    for got, eager, want in zip(run(x, w, b), head(x, w, b), exact, strict=True):
        assert got.stride() == eager.stride()
        assert values_differ(got, eager, want) is None


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_results_have_the_strides_that_were_promised(dtype: str) -> None:
    run = OnCpu(f"""\
%0 = input "x": {dtype}[4224, 1001] @cuda
%1 = input "w": {dtype}[1001, 132] @cuda
%2 = call aten.relu.default(%0): {dtype}[4224, 1001] @cuda
%3 = call aten.mm.default(%2, %1): {dtype}[4224, 132] @cuda
return %2, %3
""")
    assert _sizes(run) == [[(4224, 1008), (1008, 136), (4224, 136)]]
    kind = torch.bfloat16 if dtype == "bf16" else torch.float16
    x, w = _normal(4224, 1001, dtype=kind), _normal(1001, 132, dtype=kind)
    x[3, 5] = float("inf")
    relu, got = run(x, w)
    assert relu.stride() == (1001, 1)
    assert torch.equal(relu, x.relu())
    assert got.stride() == (132, 1)
    exact = x.double().relu() @ w.double()
    assert values_differ(got, x.relu() @ w, exact) is None


def test_a_batch() -> None:
    run = OnCpu("""\
%0 = input "x": bf16[6, 2048, 512] @cuda
%1 = input "y": bf16[6, 512, 100] @cuda
%2 = call aten.neg.default(%0): bf16[6, 2048, 512] @cuda
%3 = call aten.exp.default(%1): bf16[6, 512, 100] @cuda
%4 = call aten.bmm.default(%2, %3): bf16[6, 2048, 100] @cuda
%5 = call aten.mul.Tensor(%4, 2.0): bf16[6, 2048, 100] @cuda
return %5
""")
    (shapes,) = _sizes(run)
    assert shapes == [(6, 2048, 512), (6, 512, 104), (6, 2048, 104)]
    x, y = _normal(6, 2048, 512), _normal(6, 512, 100)
    (got,) = run(x, y)
    exact = torch.bmm(-x.double(), y.double().exp()) * 2
    assert values_differ(got, torch.bmm(-x, y.exp()) * 2, exact) is None


_MM = """\
%0 = input "x": {kind}[{m}, 1024]{at}
%1 = input "w": {kind}[1024, {n}]{at}
%2 = call aten.mm.default(%0, %1): {kind}[{m}, {n}]{at}
return %2
"""


@pytest.mark.parametrize(
    ("kind", "m", "n", "at"),
    [
        ("bf16", "4224", "136", " @cuda"),  # on 16 bytes
        ("bf16", "4224", "130", ""),  # on a CPU
        ("f32", "4224", "130", " @cuda"),
        ("bf16", "s0", "130", " @cuda"),  # of unknown size
        ("bf16", "256", "130", " @cuda"),  # small
        ("bf16", "256", "8190", " @cuda"),  # the copy of the weight would take as long
    ],
)
def test_other_products_are_left_alone(kind: str, m: str, n: str, at: str) -> None:
    text = ("symbol s0 in [2, 65536]\n" if m == "s0" else "") + _MM.format(
        kind=kind, m=m, n=n, at=at
    )
    (step,) = lower(parse_graph(text)).steps
    assert isinstance(step, External)


def test_memory_that_the_graph_asks_places_of_stays_as_it_is() -> None:
    text = _MM.format(kind="bf16", m="4224", n="130", at=" @cuda").replace(
        "return %2",
        "%3 = call aten.as_strided.default(%2, [4224, 65], [130, 2], 1): "
        "bf16[4224, 65] stride [130, 2] @cuda\n%4 = call aten.neg.default(%3): "
        "bf16[4224, 65] @cuda\nreturn %4",
    )
    run = OnCpu(text)
    assert _sizes(run) == [[(4224, 1024), (1024, 130), (4224, 130)]]
    x, w = _normal(4224, 1024), _normal(1024, 130)
    (got,) = run(x, w)
    assert values_differ(got, -(x @ w)[:, 1::2], -(x.double() @ w.double())[:, 1::2]) is None


def test_the_gradient_of_a_cross_entropy_is_made_padded_in_one_loop() -> None:
    run = OnCpu("""\
%0 = input "x": bf16[4224, 130] @cuda
%1 = input "w": bf16[130, 1024] @cuda
%2 = input "l": i64[4224, 1] @cuda
%3 = input "s": f32[4224, 1] @cuda
%4 = call aten._to_copy.default(%0, dtype=dtype:f32): f32[4224, 130] @cuda
%5 = call aten.sub.Tensor(%4, %3): f32[4224, 130] @cuda
%6 = call aten.exp.default(%5): f32[4224, 130] @cuda
%7 = call aten.full.default([4224, 130], 0, dtype=dtype:f32): f32[4224, 130] @cuda
%8 = call aten.scatter.value(%7, 1, %2, 1.0): f32[4224, 130] @cuda
%9 = call aten.sub.Tensor(%6, %8): f32[4224, 130] @cuda
%10 = call aten._to_copy.default(%9, dtype=dtype:bf16): bf16[4224, 130] @cuda
%11 = call aten.mm.default(%10, %1): bf16[4224, 1024] @cuda
%12 = call aten.mul.Tensor(%5, %9): f32[4224, 130] @cuda
%13 = call aten.sum.dim_IntList(%12, [1]): f32[4224] @cuda
return %11, %13
""")
    assert run.calls == ["aten.mm.default"]
    x, w = _normal(4224, 130) * 20, _normal(130, 1024)
    label, s = torch.randint(0, 130, (4224, 1)), x.float().logsumexp(1, keepdim=True)

    def gradient(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> list[torch.Tensor]:
        wide = x.float() if x.dtype == torch.bfloat16 else x
        g = (wide - s).exp() - torch.zeros_like(wide).scatter(1, label, 1.0)
        return [g.to(x.dtype) @ w, ((wide - s) * g).sum(1)]

    exact = gradient(x.double(), w.double(), s.double())
    for got, eager, want in zip(run(x, w, label, s), gradient(x, w, s), exact, strict=True):
        assert values_differ(got, eager, want) is None
