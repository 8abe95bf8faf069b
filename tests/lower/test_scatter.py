"""Scatters as loops: of GPU graphs run on this machine, and in place into inputs on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fusec.errors import VerifyError
from fusec.ir import loop as lp
from fusec.ir.verify_loop import verify_program
from tests.lower.harness import Compiled, check_batch, compare_with_eager, values_differ
from tests.lower.on_cpu import OnCpu, captured, cuda_graph
from tests.lower.samples import values
from tests.schedule.programs import dissolved

_CASES: dict[str, Callable[..., Any]] = {
    "scatter": lambda x, u, i, j, p: x.scatter(1, j[:, :1], u[:, :1]) + 1,
    "scatter_value": lambda x, u, i, j, p: x.scatter(0, i[:1], 5),
    "scatter_add": lambda x, u, i, j, p: (x * 2).scatter_add(1, j, u),
    "scatter_add_rows": lambda x, u, i, j, p: x.scatter_add(0, i, u[:3, :4] * 3),
    "index_add": lambda x, u, i, j, p: x.index_add(0, i[0], u[:4, :4], alpha=2),
    "index_add_columns": lambda x, u, i, j, p: x.index_add(1, j[:, 0], u[:, :1].expand(7, 7)),
    "index_copy": lambda x, u, i, j, p: x.index_copy(1, p, u[:, :2]),
    "index_put_add": lambda x, u, i, j, p: x.index_put((i[0], j[0]), u[0, :4], accumulate=True),
    "index_put_rows": lambda x, u, i, j, p: x.index_put((i - 7,), u[0, :4], accumulate=True),
    "index_put": lambda x, u, i, j, p: x.index_put((p + 1, p), u[0, 0]),
    "index_put_split": lambda x, u, i, j, p: torch.ops.aten.index_put(
        x[:, None].expand(7, 3, 4), [i[:, 0], None, j[:3, 0]], u[:3, :3], True
    ),
    "computed_index": lambda x, u, i, j, p: x.index_add(0, (i[0] + 1) % 7, u[:4, :4].abs() * 2),
    "histogram": lambda x, u, i, j, p: u.new_zeros(9).index_add(0, i[0], x[0] + 1),
    "reduce_sum": lambda x, u, i, j, p: x.scatter_reduce(1, j, u, "sum", include_self=False),
    "reduce_mean": lambda x, u, i, j, p: x.scatter_reduce(0, i, u, "mean"),
}  # fmt: skip
_FOLDED: dict[str, Callable[..., Any]] = {
    f"{how}_{dim}_{own}": lambda x, u, i, j, p, how=how, dim=dim, own=own: x.scatter_reduce(
        dim, (i, j)[dim], u, how, include_self=own
    )
    for how in ("sum", "mean", "prod", "amax", "amin")
    for dim in (0, 1)
    for own in (True, False)
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("fusion", [True, pytest.param(False, marks=pytest.mark.extended)])
def test_every_scatter_of_a_gpu_graph(dtype: torch.dtype, fusion: bool) -> None:
    g = torch.Generator().manual_seed(0)
    x, u = values((7, 4), dtype), values((7, 5), dtype, 1)
    i = torch.randint(0, 7, (3, 4), generator=g)
    j = torch.randint(0, 4, (7, 4), generator=g)
    p = torch.tensor([2, 0])

    def fn(*inputs: torch.Tensor) -> list[Any]:
        return [case(*inputs) for case in _CASES.values()]

    graph = cuda_graph(captured(fn, (x, u, i, j, p)))
    run = OnCpu(graph, fusion=fusion)
    assert run.calls == []
    wide = fn(*(t.double() if t.is_floating_point() else t for t in (x, u, i, j, p)))
    for name, got, want, exact in zip(
        _CASES, run(x, u, i, j, p), fn(x, u, i, j, p), wide, strict=True
    ):
        assert values_differ(got, want, exact) is None, name


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int8, torch.bool]
)
def test_single_elements_by_loops_on_a_cpu(dtype: torch.dtype) -> None:
    """Places along an axis of their own are shared by threads: here in blocks of it, too."""
    g = torch.Generator().manual_seed(0)
    x, u = values((70, 300), dtype), values((300, 301), dtype, 1)
    i, j = torch.randint(0, 70, (90, 300), generator=g), torch.randint(0, 4, (70, 60), generator=g)
    p = torch.tensor([2, 0])
    cases: dict[str, Callable[..., Any]] = {
        "add": lambda x, u, i, j, p: x.scatter_add(1, j, u[:70]),
        "add_columns": lambda x, u, i, j, p: x.scatter_add(0, i[:, ::2], u[:90]) + 1,
        "add_single": lambda x, u, i, j, p: x.index_put((i[0] % 3, j[0, 0]), u[0, :300], True),
        "middle": lambda x, u, i, j, p: x[..., None].scatter_add(1, j[..., None], u[:70, :, None]),
        "batch": lambda x, u, i, j, p: x.view(7, 10, 300).index_add(
            1, p, u[:14, :300].view(7, 2, 300)
        ),
        **_FOLDED,
        **_CASES,
    }
    assert check_batch(list(cases.items()), x, u, i, j, p, size=60) == {}
    compiled = Compiled(lambda *inputs: [f(*inputs) for name, f in _FOLDED.items() if "1_" in name])
    if dtype is not torch.bool:
        compiled(x, u, i, j, p)
        assert {target for target, _ in compiled.calls} == {"aten._assert_async.msg"}


def test_a_nan_wins_where_extremes_are_scattered() -> None:
    x = torch.tensor([0.0, torch.nan, -torch.inf, 3.0])
    u = torch.tensor([torch.nan, 1.0, torch.inf, torch.nan, 2.0])
    i = torch.tensor([0, 1, 2, 3, 3])
    cases = {
        name: lambda x, u, i, f=f: f(x, u, i, i, i) for name, f in _FOLDED.items() if "_0_" in name
    }
    assert check_batch(list(cases.items()), x, u, i) == {}


def test_the_gradient_of_an_embedding() -> None:
    text = """\
%0 = input "g": bf16[6, 5, 33] @cuda
%1 = input "i": i64[6, 5] @cuda
%2 = call aten.mul.Tensor(%0, 2.0): bf16[6, 5, 33] @cuda
%3 = call aten.embedding_dense_backward.default(%2, %1, 9, 3, false): bf16[9, 33] @cuda
return %3
"""
    run = OnCpu(text)
    assert run.calls == []
    assert len(run.sources) == 3  # zeros in float32, the scatter with its product, the result
    grad, index = torch.randn(6, 5, 33).bfloat16(), torch.randint(0, 9, (6, 5))
    weight = torch.zeros(9, 33, dtype=torch.float64, requires_grad=True)
    F.embedding(index, weight, padding_idx=3).backward(grad.double() * 2)
    (got,) = run(grad, index)
    torch.testing.assert_close(got.double(), weight.grad, rtol=1e-2, atol=0)
    assert not got[3].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_rows_are_added_by_loops_on_a_cpu(dtype: torch.dtype) -> None:
    def gradients(grad: torch.Tensor, i: torch.Tensor) -> list[torch.Tensor]:
        backward = torch.ops.aten.embedding_dense_backward
        return [backward(grad * 2, i, 11, 4, False), backward(grad, i, 11, -1, False) + 1]

    def rows(x: torch.Tensor, i: torch.Tensor, u: torch.Tensor) -> list[torch.Tensor]:
        return [x.index_add(0, i, u), x.index_put((i,), u * 3, accumulate=True)]

    grad, i = values((30, 3, 130), dtype), torch.randint(0, 11, (30, 3))
    compiled = Compiled(gradients)
    compare_with_eager(compiled, gradients, grad, i)
    assert compiled.calls == []
    compiled = Compiled(rows)
    x, at = values((5, 67), dtype), torch.randint(0, 5, (90,))
    compare_with_eager(compiled, rows, x, at, grad.view(90, 130)[:, :67])
    assert {target for target, _ in compiled.calls} == {"aten._assert_async.msg"}
    dynamic = Compiled(gradients, dynamic=True)
    for n in (30, 7):
        compare_with_eager(dynamic, gradients, grad[:n], i[:n])


def test_a_cache_grows_in_place() -> None:
    """As a decoder's does: two caches, one position a step; nothing is copied."""

    def step(k: torch.Tensor, v: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        k.index_copy_(2, at, new.sin())
        v[:, :, at] = new * 2
        return (k @ v.transpose(-1, -2)).sum(-1)

    compiled = Compiled(step)
    cache = torch.zeros(2, 3, 16, 8)
    for position in (0, 5, 15):
        new = torch.randn(2, 3, 1, 8)
        compare_with_eager(compiled, step, cache, cache.clone(), torch.tensor([position]), new)
    assert not {t for t, _ in compiled.calls} & {
        "aten.index_copy.default",
        "aten.index_put.default",
    }
    with pytest.raises(RuntimeError, match="out of range"):
        compiled(cache, cache.clone(), torch.tensor([16]), new)


def test_an_input_whose_old_value_is_needed_is_copied_first() -> None:
    def swapped(k: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        old = k.clone() * 1
        k.index_copy_(0, at, new)
        return old + k

    def read_after(k: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        before = k + 1
        changed = k.index_copy(0, at, new)
        after = k * 2  # the old value still
        k.copy_(changed)
        return before + after

    def from_itself(k: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        k.index_copy_(0, at, k[:2] * 2)
        return k[at]

    def twice(k: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        k.index_copy_(0, at, new)
        k.index_copy_(0, at + 1, new * 3)
        return k.sum()

    k, at, new = torch.randn(6, 40), torch.tensor([3, 1]), torch.randn(2, 40)
    for fn in (swapped, read_after, from_itself, twice):
        compare_with_eager(Compiled(fn), fn, k, at, new)


def test_a_scatter_is_verified() -> None:
    from dataclasses import replace

    program = dissolved("""\
%0 = input "x": f32[5, 3] @cuda
%1 = input "i": i64[2] @cuda
%2 = input "u": f32[2, 3] @cuda
%3 = call aten.index_add.default(%0, 0, %1, %2): f32[5, 3] @cuda
return %3
""")
    number, step = next(
        (n, s) for n, s in enumerate(program.steps) if isinstance(s, lp.Compute) and s.scatters
    )
    place, put = step.value.args
    wrong = [
        lp.op("neg", "f32", step.value),
        lp.scatter("add", put, put),
        lp.scatter("add", place, lp.op("add", "f32", put, place)),
        lp.scatter("add", place, lp.cast(put, "f64")),
    ]
    for value in wrong:
        steps = list(program.steps)
        steps[number] = replace(step, value=value)
        with pytest.raises(VerifyError):
            verify_program(replace(program, steps=tuple(steps)))
