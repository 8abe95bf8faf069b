"""`scaled_dot_product_attention` of torch in terms of our operators, as AOTAutograd traces it."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from fusec.attention import operators  # noqa: F401 -- registers them
from fusec.attention.allowed import enabled
from fusec.attention.backends import MASK_MULTIPLE


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    site: int = 0,
) -> Tensor:
    """What torch.nn.functional.scaled_dot_product_attention gives, for tensors of 3 or 4 dims with
    one batch. Autocast casts as torch's does. site: tells calls with dropout apart."""
    query, key, value, mask = _autocast(query, key, value, attn_mask)
    if query.dim() == 4:
        return _attend(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa, site)
    query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
    if mask is not None and mask.dim() == 3:
        mask = mask.unsqueeze(0)  # (N, S, D): one batch of N heads
    out = _attend(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa, site)
    return out.squeeze(0)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    site: int,
) -> Tensor:
    if mask is not None:
        mask = _aligned(_added(mask, query.dtype)).expand(*query.shape[:3], key.shape[2])
    how = (is_causal, scale, enable_gqa, enabled())
    tensors = [x for x in (query, key, value, mask) if x is not None]
    training = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    mask_grad = training and mask is not None and mask.requires_grad
    ops = torch.ops.fusec
    out: Tensor
    if dropout_p > 0:
        out, *_ = ops.attention_dropout(query, key, value, mask, dropout_p, site, *how, mask_grad)
    elif training:
        out, _ = ops.attention_training(query, key, value, mask, *how, mask_grad)
    else:
        out = ops.attention(query, key, value, mask, *how)
    return out


def _aligned(mask: Tensor) -> Tensor:
    """On a GPU, a mask whose rows begin where the kernels want them: a part of a wider one. In the
    graph that is done once for all layers, and in the kernel that makes the mask."""
    columns = mask.shape[-1]
    if not mask.is_cuda or not isinstance(columns, int) or columns % MASK_MULTIPLE == 0:
        return mask
    return pad(mask, (0, -columns % MASK_MULTIPLE))[..., :columns]


def _autocast(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    kind = query.device.type
    if not torch.is_autocast_enabled(kind):
        return query, key, value, mask
    dtype: torch.dtype = torch.get_autocast_dtype(kind)
    query, key, value = (_cast(x, dtype) for x in (query, key, value))
    return query, key, value, None if mask is None else _cast(mask, dtype)


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask to add to scores: of numbers already, or True where an element takes part."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    kept = torch.zeros_like(mask, dtype=dtype)
    return kept.masked_fill(mask.logical_not(), -math.inf)
