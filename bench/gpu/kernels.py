"""The kernel cases: what training and inference spend their memory bandwidth on.

Sizes are those of current language and vision models. `moved` counts the bytes that any
implementation must read or write, so that a time becomes a rate to hold against a plain copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_BF16, _F16, _F32 = torch.bfloat16, torch.float16, torch.float32


@dataclass(frozen=True)
class Case:
    """function(*inputs) gives a tensor or a nest of them.

    train: forward and backward. moved: bytes, None where arithmetic counts more. exact: whether the
    results can be held against float64 (random numbers cannot). restore: writes on its inputs, so
    that it is compared on fresh copies. module: holds the parameters.
    """

    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    moved: int | None = None
    train: bool = False
    exact: bool = True
    mutates: bool = False
    module: nn.Module | None = None


def _randn(*shape: int, dtype: torch.dtype = _BF16, grad: bool = False) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_(grad)


def _bytes(*tensors: Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _rms(x: Tensor, w: Tensor) -> Tensor:
    v = x.to(torch.promote_types(x.dtype, _F32))
    return (v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, _F32))


def gelu_bias_residual() -> Case:
    x, b, r = (
        _randn(8192, 4096, dtype=_F16),
        _randn(4096, dtype=_F16),
        _randn(8192, 4096, dtype=_F16),
    )
    return Case(lambda x, b, r: F.gelu(x + b) + r, (x, b, r), _bytes(x, b, r, x))


def rms_norm() -> Case:
    x, w = _randn(8192, 4096), _randn(4096)
    return Case(_rms, (x, w), _bytes(x, w, x))


def add_rms_norm() -> Case:
    x, r, w = _randn(8192, 4096), _randn(8192, 4096), _randn(4096)

    def function(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x + r
        return h, _rms(h, w)

    return Case(function, (x, r, w), _bytes(x, r, w, x, x))


def rms_norm_train() -> Case:
    x, w = _randn(8192, 4096, grad=True), _randn(4096, grad=True)
    return Case(_rms, (x, w), _bytes(x, w, x) + _bytes(x, x, x, w, w), train=True)


def layer_norm() -> Case:
    x, w, b = _randn(16384, 4096), _randn(4096), _randn(4096)
    return Case(lambda x, w, b: F.layer_norm(x, (4096,), w, b), (x, w, b), _bytes(x, x))


def layer_norm_train() -> Case:
    x = _randn(16384, 4096, grad=True)
    w, b = _randn(4096, grad=True), _randn(4096, grad=True)
    return Case(
        lambda x, w, b: F.layer_norm(x, (4096,), w, b), (x, w, b), 5 * _bytes(x), train=True
    )


def softmax_32k() -> Case:
    x = _randn(8192, 32768)
    return Case(lambda x: torch.softmax(x, -1), (x,), _bytes(x, x))


def softmax_f32_1k() -> Case:
    x = _randn(65536, 1024, dtype=_F32)
    return Case(lambda x: torch.softmax(x, -1), (x,), _bytes(x, x))


def _loss(x: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(_wide(x), t)


def cross_entropy() -> Case:
    x = _randn(8192, 128256)
    t = torch.randint(0, 128256, (8192,), device="cuda")
    return Case(_loss, (x, t), _bytes(x))


def cross_entropy_train() -> Case:
    x = _randn(8192, 128256, grad=True)
    t = torch.randint(0, 128256, (8192,), device="cuda")
    return Case(_loss, (x, t), 3 * _bytes(x), train=True)


def swiglu() -> Case:
    g, u = _randn(8192, 14336), _randn(8192, 14336)
    return Case(lambda g, u: F.silu(g) * u, (g, u), 3 * _bytes(g))


def swiglu_train() -> Case:
    g, u = _randn(8192, 14336, grad=True), _randn(8192, 14336, grad=True)
    return Case(lambda g, u: F.silu(g) * u, (g, u), 8 * _bytes(g), train=True)


def rope() -> Case:
    q, k = _randn(8, 32, 2048, 128), _randn(8, 8, 2048, 128)
    c, s = _randn(2048, 128), _randn(2048, 128)

    def turn(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)

    def function(q: Tensor, k: Tensor, c: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        return q * c + turn(q) * s, k * c + turn(k) * s

    return Case(function, (q, k, c, s), _bytes(q, k, q, k))


def dropout_residual_layer_norm() -> Case:
    x, r, w, b = _randn(16384, 2048), _randn(16384, 2048), _randn(2048), _randn(2048)
    return Case(
        lambda x, r, w, b: F.layer_norm(F.dropout(x, 0.1) + r, (2048,), w, b),
        (x, r, w, b),
        3 * _bytes(x),
        exact=False,
    )


def group_norm_silu() -> Case:
    x, w, b = _randn(16, 320, 128, 128), _randn(320), _randn(320)
    return Case(lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)), (x, w, b), _bytes(x, x))


def batch_norm_relu_add() -> Case:
    x = _randn(64, 256, 56, 56).to(memory_format=torch.channels_last)
    r = torch.randn_like(x)
    m, v = _randn(256, dtype=_F32), _randn(256, dtype=_F32).abs()
    w, b = _randn(256, dtype=_F32), _randn(256, dtype=_F32)
    return Case(
        lambda x, r, m, v, w, b: F.relu(F.batch_norm(x, m, v, w, b, False) + r),
        (x, r, m, v, w, b),
        _bytes(x, r, x),
    )


def transpose_add() -> Case:
    x, y = _randn(8192, 8192), _randn(8192, 8192)
    return Case(lambda x, y: x.t() + y, (x, y), _bytes(x, y, x))


def masked_softmax() -> Case:
    s = _randn(8, 32, 1024, 1024)
    m = torch.ones(1024, 1024, device="cuda", dtype=torch.bool).tril()

    def function(s: Tensor, m: Tensor) -> Tensor:
        return torch.softmax(_wide((s * 0.088).masked_fill(~m, float("-inf"))), -1).to(s.dtype)

    return Case(function, (s, m), _bytes(s, s))


def quantise_rows() -> Case:
    x = _randn(8192, 8192)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        a = _wide(x.abs().amax(-1, keepdim=True)).clamp(min=1e-8) / 127
        return torch.round(_wide(x) / a).clamp(-128, 127).to(torch.int8), a

    return Case(function, (x,), _bytes(x) + x.numel())


def sum_all() -> Case:
    x = _randn(1 << 28).abs()  # a sum that cancels says nothing about its error
    return Case(lambda x: _wide(x).sum(), (x,), _bytes(x))


def column_sum() -> Case:
    x = _randn(65536, 4096)
    return Case(lambda x: _wide(x).sum(0), (x,), _bytes(x))


def var_mean() -> Case:
    x = _randn(4096, 65536)
    return Case(lambda x: torch.var_mean(_wide(x), -1), (x,), _bytes(x))


def embedding_layer_norm() -> Case:
    e, w, b = _randn(128256, 2048), _randn(2048), _randn(2048)
    i = torch.randint(0, 128256, (16384,), device="cuda")
    return Case(
        lambda i, e, w, b: F.layer_norm(F.embedding(i, e), (2048,), w, b),
        (i, e, w, b),
        2 * 16384 * 2048 * 2,
    )


def mlp_gelu_residual() -> Case:
    x, w, b, r = _randn(8192, 4096), _randn(4096, 4096), _randn(4096), _randn(8192, 4096)
    return Case(lambda x, w, b, r: F.gelu(x @ w + b) + r, (x, w, b, r))


def cumsum_rows() -> Case:
    x = _randn(8192, 4096, dtype=_F32)
    return Case(lambda x: torch.cumsum(x, -1), (x,), _bytes(x, x))


class SwiGluBlock(nn.Module):
    """A feed-forward block of Llama: norm, gate, up, down, residual."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        result: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return result


def swiglu_block() -> Case:
    module = SwiGluBlock(4096, 14336).to("cuda", _BF16)
    return Case(module, (_randn(2, 2048, 4096),), module=module)


def swiglu_block_train() -> Case:
    module = SwiGluBlock(4096, 14336).to("cuda", _BF16)
    return Case(module, (_randn(2, 2048, 4096, grad=True),), train=True, module=module)


def adamw_100() -> Case:
    params = [_randn(1024, 1024, dtype=_F32) for _ in range(100)]
    grads = [_randn(1024, 1024, dtype=_F32) for _ in params]
    first = [torch.zeros_like(p) for p in params]
    second = [torch.zeros_like(p) for p in params]

    def function(
        p: list[Tensor], g: list[Tensor], m: list[Tensor], v: list[Tensor]
    ) -> list[Tensor]:
        torch._foreach_mul_(p, 1 - 1e-5)
        torch._foreach_lerp_(m, g, 0.1)
        torch._foreach_mul_(v, 0.999)
        torch._foreach_addcmul_(v, g, g, 0.001)
        d = torch._foreach_sqrt(v)
        torch._foreach_add_(d, 1e-8)
        torch._foreach_addcdiv_(p, m, d, -1e-3)
        return [p[0], m[0], v[0]]

    moved = 100 * (1 << 20) * 4 * 7
    return Case(function, (params, grads, first, second), moved, mutates=True)


CASES: dict[str, Callable[[], Case]] = {
    made.__name__: made
    for made in (
        gelu_bias_residual,
        rms_norm,
        add_rms_norm,
        rms_norm_train,
        layer_norm,
        layer_norm_train,
        softmax_32k,
        softmax_f32_1k,
        cross_entropy,
        cross_entropy_train,
        swiglu,
        swiglu_train,
        rope,
        dropout_residual_layer_norm,
        group_norm_silu,
        batch_norm_relu_add,
        transpose_add,
        masked_softmax,
        quantise_rows,
        sum_all,
        column_sum,
        var_mean,
        embedding_layer_norm,
        mlp_gelu_residual,
        cumsum_rows,
        swiglu_block,
        swiglu_block_train,
        adamw_100,
    )
}
