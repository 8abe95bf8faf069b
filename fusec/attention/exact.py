"""Attention by matrix products and a softmax, in single precision or better.

What defines the operators: it runs on any device, for any shape. It keeps the whole matrix of
scores, so on a GPU it is the last resort. Shapes: query (B, H, S, D), key (B, H, K, D), value
(B, H, K, V); mask, added to the scores, (B, H, S, K) or None.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

# The finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
# generators", OOPSLA 2014), as signed numbers.
_GOLDEN: Final = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST: Final = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND: Final = 0x94D049BB133111EB - (1 << 64)


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    p: float,
    causal: bool,
    scale: float | None,
    rng: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The result, in the dtype of the query, and the logarithm of each row's sum of exponentials,
    (B, H, S). A row whose scores are all -inf gives 0."""
    scores = _scores(query, key, mask, causal, scale)
    lse = scores.logsumexp(-1)
    weights = _weights(scores, lse)
    if p > 0.0:
        assert rng is not None
        weights = weights * _kept(weights, p, rng)
    return (weights @ value.to(weights.dtype)).to(query.dtype), lse


def backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    rng: Tensor | None,
    p: float,
    causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of query, key, value and the mask (also where there is none)."""
    scores = _scores(query, key, mask, causal, scale)
    weights = _weights(scores, lse)
    work = weights.dtype
    grad = grad.to(work)
    kept: Tensor | float = 1.0
    if p > 0.0:
        assert rng is not None
        kept = _kept(weights, p, rng)
    grad_value = (weights * kept).transpose(-2, -1) @ grad
    grad_weights = (grad @ value.to(work).transpose(-2, -1)) * kept
    grad_scores = weights * (grad_weights - (grad * out.to(work)).sum(-1, keepdim=True))
    factor = _factor(query, scale)
    grad_query = (grad_scores @ key.to(work)) * factor
    grad_key = (grad_scores.transpose(-2, -1) @ query.to(work)) * factor
    return (
        grad_query.to(query.dtype),
        grad_key.to(key.dtype),
        grad_value.to(value.dtype),
        grad_scores.to(query.dtype),
    )


def draw(query: Tensor) -> Tensor:
    """Two numbers from the device's generator that a call's dropout follows from."""
    return torch.randint(0, 1 << 62, (2,), dtype=torch.int64, device=query.device)


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _factor(query: Tensor, scale: float | None) -> float:
    return 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale


def _scores(
    query: Tensor, key: Tensor, mask: Tensor | None, causal: bool, scale: float | None
) -> Tensor:
    work = statistics_dtype(query.dtype)
    scores = (query.to(work) @ key.to(work).transpose(-2, -1)) * _factor(query, scale)
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    return scores if mask is None else scores + mask.to(work)


def _weights(scores: Tensor, lse: Tensor) -> Tensor:
    empty = lse == -math.inf
    return torch.exp(scores - lse.masked_fill(empty, 0.0).unsqueeze(-1))


def _kept(weights: Tensor, p: float, rng: Tensor) -> Tensor:
    """1/(1 - p) where an element is kept and 0 where it is dropped, from a hash of its place."""
    if p >= 1.0:
        return torch.zeros_like(weights)
    place = torch.arange(weights.numel(), device=weights.device).view(weights.shape)
    bits = (place + rng[1]) * _GOLDEN + rng[0]
    bits = (bits ^ _shifted(bits, 30)) * _FIRST
    bits = (bits ^ _shifted(bits, 27)) * _SECOND
    uniform = _shifted(bits ^ _shifted(bits, 31), 11).to(torch.float64) * 2.0**-53
    return (uniform >= p).to(weights.dtype) / (1.0 - p)


def _shifted(bits: Tensor, by: int) -> Tensor:
    """A shift to the right that fills with zeros."""
    return (bits >> by) & ((1 << (64 - by)) - 1)
