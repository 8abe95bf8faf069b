"""Operators of the user's that change their arguments, and Triton kernels, inside a graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.triton_kernel_wrap import (
    kernel_side_table,
    triton_kernel_wrapper_mutation,
)

from tests.capture.harness import three_ways
from tests.lower.harness import Compiled, compare_with_eager, compile_and_compare


@torch.library.custom_op("fusec_test::accumulate", mutates_args=("into", "count"))
def accumulate(into: Tensor, x: Tensor, count: Tensor | None = None, scale: float = 1.0) -> Tensor:
    into.add_(x * scale)
    if count is not None:
        count.add_(1)
    return into.sum(0)


@accumulate.register_fake
def _(into: Tensor, x: Tensor, count: Tensor | None = None, scale: float = 1.0) -> Tensor:
    return torch.empty_like(into[0])


@torch.library.custom_op("fusec_test::add_to_each", mutates_args=("xs",))
def add_to_each(xs: list[Tensor], n: int) -> None:
    for x in xs:
        x.add_(n)


def changes(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    a = x * 2
    first = accumulate(a[1:3], y, None, 3.0)
    second = accumulate(x, y, a)
    turned = (x + 1).t()
    add_to_each([turned, a[0]], x.shape[0])
    c = y.expand(4, 8).clone()
    accumulate(c.t()[2:4].t(), torch.ones(2))
    return a, first, second, turned.contiguous(), x.sum(), c


def test_what_an_operator_changes() -> None:
    """Inputs, views of temporaries, several at once, none; results of its own beside them."""
    compiled = compile_and_compare(changes, torch.randn(4, 8), torch.randn(8))
    assert sum(name.startswith("fusec_user.call_") for name, _ in compiled.calls) == 4
    assert {g.nodes[2].target for g in compiled.graphs} == {"aten.mul.Tensor"}


def test_sizes_that_vary() -> None:
    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a = x * 2
        accumulate(a[1:], y)
        add_to_each([a, x.t()], x.shape[0])
        accumulate(x[:, ::2], y[::2], scale=0.5)
        return a, x.sum()

    compiled = Compiled(fn, dynamic=True)
    for rows in (4, 6, 3):
        compare_with_eager(compiled, fn, torch.randn(rows, 8), torch.randn(8))


def test_training_beside_it() -> None:
    def case(compile_: Any, _: Any) -> Any:
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
        seen = torch.zeros(4, 8)

        def fn(x: Tensor) -> Tensor:
            accumulate(seen, x.detach() * 2)
            return (x.sin() * seen).sum()

        loss = compile_(fn)(x)
        loss.backward()
        return loss.detach(), x.grad, seen

    three_ways(case, eligible=False)


class _Kernel:
    """What torch calls where a Triton kernel stands: this one computes on the CPU."""

    arg_names = ("x", "out", "factor")

    def __init__(self, name: str) -> None:
        self.cache_key = name
        self.fn = self

    def __getitem__(self, grid: Any) -> Any:
        def launch(x: Tensor, out: Tensor, factor: int) -> None:
            assert grid == (4, 1, 1)
            out.copy_(x * factor)

        return launch


@pytest.mark.filterwarnings("ignore:Encountered an exception in identify_mutated_tensors")
def test_a_triton_kernel() -> None:
    """torch's own operator around kernels, with a kernel that needs no GPU: equal code has one
    name, whatever numbers torch gives it in this process."""

    def of(kernel: _Kernel, factor: int) -> Any:
        def fn(x: Tensor) -> Tensor:
            out = torch.zeros_like(x)
            triton_kernel_wrapper_mutation(
                kernel_idx=kernel_side_table.add_kernel(kernel),  # type: ignore[arg-type]
                constant_args_idx=kernel_side_table.add_constant_args({"factor": factor}),
                grid=[(4, 1, 1)],
                tma_descriptor_metadata={},
                kwargs={"x": x + 1, "out": out},
            )
            return out.exp()

        return fn

    def name(kernel: _Kernel, factor: int) -> str:
        compiled = Compiled(of(kernel, factor))
        x = torch.randn(4, 3)
        torch.testing.assert_close(compiled(x), ((x + 1) * factor).exp())
        return next(n for n, _ in compiled.calls if n.startswith("fusec_user."))

    first = name(_Kernel("one"), 3)
    assert name(_Kernel("one"), 3) == first
    assert name(_Kernel("one"), 2) != first
    assert name(_Kernel("two"), 3) != first
