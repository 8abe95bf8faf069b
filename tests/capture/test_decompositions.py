"""The table: what it breaks down is right, what it keeps whole stays whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from fusec.capture import decompositions
from tests.capture.test_export import traced


def targets(fn: Callable[..., Any], *args: Any) -> set[str]:
    parts = traced(fn, *args).parts
    return {n.target for p in parts for n in p.graph.nodes if n.op == "call"}


def grads(fn: Callable[..., Any], *args: Tensor) -> list[Tensor | None]:
    leaves = [a.detach().clone().requires_grad_(a.is_floating_point()) for a in args]
    out = fn(*leaves)
    out.square().sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def compiled_grads(fn: Callable[..., Any], *args: Tensor) -> list[Tensor | None]:
    def run(*inner: Any) -> Any:
        return fn(*inner)

    def backend(gm: Any, inputs: Any) -> Any:
        from fusec.capture.aot import trace
        from fusec.trace import Recorder
        from tests.capture.keys import Done

        traced = trace(gm, inputs, lambda g, role: Done(g), recorder=Recorder())
        traced.fill()
        return traced.fn

    return grads(torch.compile(run, backend=backend), *args)


def check(fn: Callable[..., Any], *args: Tensor) -> None:
    torch.testing.assert_close(compiled_grads(fn, *args), grads(fn, *args), rtol=1e-4, atol=1e-5)


def test_attention_stays_whole_and_its_gradients_are_right() -> None:
    """torch's core table breaks CPU attention down, with silently wrong gradients."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 16, 8) for _ in range(3))

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    check(plain, q, k, v)
    torch._dynamo.reset()
    used = targets(plain, q.requires_grad_(), k, v)
    assert "aten._scaled_dot_product_flash_attention_for_cpu.default" in used
    assert "aten._scaled_dot_product_flash_attention_for_cpu_backward.default" in used
    assert f is not plain


WHOLE: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "aten.convolution.default": (
        lambda x, w: functional.conv2d(x, w),
        (torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3)),
    ),
    "aten.mm.default": (lambda x, y: x @ y, (torch.ones(3, 4), torch.ones(4, 5))),
    "aten.bmm.default": (lambda x, y: x @ y, (torch.ones(2, 3, 4), torch.ones(2, 4, 5))),
    "aten.native_dropout.default": (lambda x: functional.dropout(x, 0.5), (torch.ones(8),)),
    "aten.bernoulli.p": (lambda x: x * torch.bernoulli(x.detach(), 0.5), (torch.ones(8),)),
    "aten.embedding_dense_backward.default": (
        lambda w: functional.embedding(torch.tensor([1, 2]), w),
        (torch.ones(4, 3),),
    ),
}


@pytest.mark.parametrize("target", WHOLE)
def test_what_stays_whole(target: str) -> None:
    fn, args = WHOLE[target]
    assert target in targets(fn, *(a.clone().requires_grad_() for a in args))


def group_norm(x: Tensor) -> Tensor:
    return functional.group_norm(x, 2)


def batch_norm(x: Tensor) -> Tensor:
    return functional.batch_norm(x, None, None, training=True)


def cross_entropy(x: Tensor) -> Tensor:
    return functional.cross_entropy(x, torch.arange(x.shape[0]) % x.shape[1])


BROKEN: dict[str, Callable[[Tensor], Tensor]] = {
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "group_norm": group_norm,
    "batch_norm": batch_norm,
    "rms_norm": lambda x: functional.rms_norm(x, x.shape[-1:]),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "gelu": functional.gelu,
    "gelu tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "elu": functional.elu,
    "leaky_relu": functional.leaky_relu,
    "hardtanh": functional.hardtanh,
    "hardswish": functional.hardswish,
    "mish": functional.mish,
    "softplus": functional.softplus,
    "logsigmoid": functional.logsigmoid,
    "cross_entropy": cross_entropy,
    "mse": lambda x: functional.mse_loss(x, torch.ones_like(x)),
    "smooth_l1": lambda x: functional.smooth_l1_loss(x, torch.ones_like(x)),
    "bce": lambda x: functional.binary_cross_entropy_with_logits(x, torch.ones_like(x)),
    "kl": lambda x: functional.kl_div(x.log_softmax(1), torch.ones_like(x), reduction="sum"),
    "std": lambda x: x.std(1),
    "logsumexp": lambda x: x.logsumexp(1),
}
# Arithmetic, comparisons, reductions, shapes: what the compiler lowers.
SIMPLE = (
    "abs add amax alias arange bitwise_and clamp clone copy_ cos div eq erf exp expand full ge "
    "full_like gather gt le log log1p logical_and lt maximum mean minimum mul ne neg permute pow "
    "bitwise_or isnan reciprocal relu remainder rsqrt scalar_tensor sigmoid sign sqrt squeeze sub "
    "sum tanh unsqueeze var var_mean view where _to_copy expm1 masked_fill lift_fresh_copy"
).split()


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_down(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6, 5) if name in ("group_norm", "batch_norm") else torch.randn(4, 6)
    check(BROKEN[name], x)
    torch._dynamo.reset()
    used = targets(BROKEN[name], x.requires_grad_())
    packets = {t.split(".")[1] for t in used if t != "py.getitem"}
    assert packets <= set(SIMPLE), packets - set(SIMPLE)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(5, 7), (7,)])
def test_gradient_of_the_negative_log_likelihood(
    reduction: str, weighted: bool, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    weight = torch.rand(7) if weighted else None
    target = torch.tensor([1, 6, 2, 0, 2]) if len(shape) == 2 else torch.tensor(2)

    def f(x: Tensor) -> Tensor:
        return functional.nll_loss(
            x, target, weight, ignore_index=2 + len(shape), reduction=reduction
        )

    check(f, torch.randn(shape))


def test_all_labels_ignored() -> None:
    def f(x: Tensor) -> Tensor:
        return functional.cross_entropy(x, torch.full((4,), -100), reduction="sum")

    check(f, torch.randn(4, 6))


def test_batch_norm_updates_its_statistics() -> None:
    torch.manual_seed(0)
    norms = [nn.BatchNorm1d(6), nn.BatchNorm1d(6)]
    x = torch.randn(8, 6)
    norms[0](x)
    fn = norms[1]
    traced(fn, x)
    # `traced` ran the graph once, through the compiled wrapper.
    torch.testing.assert_close(norms[1].running_mean, norms[0].running_mean)
    torch.testing.assert_close(norms[1].running_var, norms[0].running_var)


@pytest.mark.parametrize("name", ["KEPT", "BROKEN_DOWN"])
def test_the_version_follows_the_table(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = decompositions.version()
    monkeypatch.setattr(decompositions, name, getattr(decompositions, name)[1:])
    assert decompositions.version() != before
    monkeypatch.undo()
    assert decompositions.version() == before
