"""Elementwise functions of two tensors and a mask, by name: what the elementwise tests run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Case = tuple[str, Callable[..., Any]]

_UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh asin acos atan asinh acosh "
    "atanh erf erfc sqrt rsqrt sigmoid reciprocal neg abs sign sgn floor ceil trunc round relu "
    "square isnan isinf isfinite signbit logical_not bitwise_not frac positive nan_to_num "
    "deg2rad rad2deg logit isposinf isneginf lgamma digamma erfinv i0 angle"
).split()
_BINARY = (
    "add sub mul div true_divide remainder fmod atan2 copysign pow maximum minimum fmax fmin eq ne "
    "lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor "
    "bitwise_left_shift bitwise_right_shift floor_divide hypot heaviside xlogy logaddexp "
    "nextafter gcd ldexp"
).split()
_ACTIVATIONS = (
    "gelu silu mish softplus elu celu selu hardtanh hardswish hardsigmoid leaky_relu relu6 "
    "logsigmoid softsign tanhshrink softshrink hardshrink"
).split()


def unary() -> list[Case]:
    cases = [(name, lambda x, y, m, f=getattr(torch, name): f(x)) for name in _UNARY]
    cases += [(name, lambda x, y, m, f=getattr(F, name): f(x)) for name in _ACTIVATIONS]
    cases += [
        ("gelu_tanh", lambda x, y, m: F.gelu(x, approximate="tanh")),
        ("round_decimals", lambda x, y, m: torch.round(x, decimals=2)),
        ("pow2", lambda x, y, m: x**2),
        ("pow3", lambda x, y, m: x**3),
        ("pow_half", lambda x, y, m: x**0.5),
        ("pow_minus", lambda x, y, m: x**-1.5),
        ("pow_minus1", lambda x, y, m: x.float() ** -1),
        ("pow_zero", lambda x, y, m: x**0),
        ("pow_scalar", lambda x, y, m: 2**x),
        ("clamp", lambda x, y, m: x.clamp(-1, 2)),
        ("clamp_float", lambda x, y, m: x.clamp(-0.5, 1.5)),
        ("clamp_low", lambda x, y, m: x.clamp(min=1)),
        ("clamp_high", lambda x, y, m: x.clamp(max=1)),
        ("nan_to_num_given", lambda x, y, m: x.nan_to_num(1.0, 2.0, -3.0)),
        ("threshold", lambda x, y, m: F.threshold(x, 1, 5)),
        ("add_scalar", lambda x, y, m: x + 3),
        ("add_float", lambda x, y, m: x + 2.5),
        ("add_true", lambda x, y, m: x + True),
        ("rsub", lambda x, y, m: 3 - x),
        ("rsub_float", lambda x, y, m: 2.5 - x),
        ("mul_float", lambda x, y, m: x * 0.1),
        ("div_scalar", lambda x, y, m: x / 3),
        ("rdiv", lambda x, y, m: 3 / x),
        ("floordiv_scalar", lambda x, y, m: x // 3),
        ("floordiv_negative", lambda x, y, m: x // -3),
        ("mod_scalar", lambda x, y, m: x % 3),
        ("mod_negative", lambda x, y, m: x % -3),
        ("fmod_scalar", lambda x, y, m: torch.fmod(x, 3)),
        ("eq_float", lambda x, y, m: x == 0.5),
        ("lt_big", lambda x, y, m: x < 300),
        ("shift", lambda x, y, m: x << 2),
        ("rshift", lambda x, y, m: x >> 1),
        ("and_scalar", lambda x, y, m: x & 6),
        ("where_scalar", lambda x, y, m: torch.where(m, x, 2)),
        ("where_scalars", lambda x, y, m: torch.where(m, 1.5, 2)),
        ("masked_fill", lambda x, y, m: x.masked_fill(m, 3)),
        ("fill", lambda x, y, m: torch.fill(x, 3)),
        ("clone", lambda x, y, m: x.clone()),
        ("zeros_like", lambda x, y, m: torch.zeros_like(x)),
        ("full_like", lambda x, y, m: torch.full_like(x, 7)),
        ("ones_like_f64", lambda x, y, m: torch.ones_like(x, dtype=torch.float64)),
    ]
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32),
        *(torch.int16, torch.int8, torch.uint8, torch.bool),
    ):
        cases.append((f"to_{dtype}", lambda x, y, m, d=dtype: (x.to(d), x.mul(2).to(d))))
    return cases


def binary() -> list[Case]:
    cases = [(name, lambda x, y, m, f=getattr(torch, name): f(x, y)) for name in _BINARY]
    cases += [
        (f"inner_{name}", lambda x, y, m, f=getattr(torch, name): f(y, x[0]))
        for name in ("add", "sub", "mul", "maximum", "lt")
    ]
    cases += [
        ("add_alpha", lambda x, y, m: torch.add(x, y, alpha=2)),
        ("sub_alpha", lambda x, y, m: torch.sub(x, y, alpha=3)),
        ("rsub_alpha", lambda x, y, m: torch.rsub(x, y, alpha=2)),
        ("div_floor", lambda x, y, m: torch.div(x, y, rounding_mode="floor")),
        ("div_trunc", lambda x, y, m: torch.div(x, y, rounding_mode="trunc")),
        ("where", lambda x, y, m: torch.where(m, x, y)),
        ("where_cond", lambda x, y, m: torch.where(x > y, x, y)),
        ("masked_fill_tensor", lambda x, y, m: x.masked_fill(m, y.flatten()[0])),
        ("clamp_tensor", lambda x, y, m: torch.clamp(x, y - 1, y + 1)),
        ("clamp_min_tensor", lambda x, y, m: torch.clamp(x, min=y)),
        ("addcmul", lambda x, y, m: torch.addcmul(x, x, y, value=2)),
        ("addcdiv", lambda x, y, m: torch.addcdiv(x, x, y, value=0.5)),
        ("lerp", lambda x, y, m: torch.lerp(x, y.expand_as(x), 0.3)),
        ("lerp_tensor", lambda x, y, m: torch.lerp(x, y.expand_as(x), x)),
        ("mul_mask", lambda x, y, m: x * m),
        ("add_0d", lambda x, y, m: x + y.flatten()[0]),
        ("add_0d_f64", lambda x, y, m: x + torch.tensor(0.1, dtype=torch.float64)),
        ("add_i64", lambda x, y, m: x + torch.arange(x.shape[-1])),
        ("mul_u8", lambda x, y, m: x * torch.arange(x.shape[-1]).to(torch.uint8)),
        ("add_bf16", lambda x, y, m: x + torch.arange(x.shape[-1]).to(torch.bfloat16)),
        ("mul_f16", lambda x, y, m: x * torch.arange(x.shape[-1]).to(torch.float16)),
        ("sub_f64", lambda x, y, m: x - torch.arange(x.shape[-1]).double()),
        ("lt_i64", lambda x, y, m: x < torch.arange(x.shape[-1])),
        ("copy", lambda x, y, m: torch.ones_like(x).copy_(y)),
        ("copy_half", lambda x, y, m: torch.ones_like(x, dtype=torch.bfloat16).copy_(y)),
        ("gelu_backward", lambda x, y, m: torch.ops.aten.gelu_backward(x, x)),
        ("threshold_backward", lambda x, y, m: torch.ops.aten.threshold_backward(x, x, 0)),
        ("sigmoid_backward", lambda x, y, m: torch.ops.aten.sigmoid_backward(x, x)),
        ("silu_backward", lambda x, y, m: torch.ops.aten.silu_backward(x, x)),
        ("mse", lambda x, y, m: F.mse_loss(x, x + 1, reduction="none")),
        ("smooth_l1", lambda x, y, m: F.smooth_l1_loss(x, y.expand_as(x), reduction="none")),
        ("bce", lambda x, y, m: F.binary_cross_entropy_with_logits(x, y.expand_as(x))),
    ]
    return cases
