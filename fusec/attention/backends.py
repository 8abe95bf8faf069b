"""Which of ATen's kernels computes an attention on a GPU, and the calls to each.

torch's own choice among flash, cuDNN and memory-efficient attention is asked for when a program
runs, so that an artifact serves all machines; what only the form of the inputs forbids (a head size
that is no multiple of 8, grouped heads, a mask at an odd address) is brought into form first, as
torch itself does for some of it. Only then the exact form is taken. The backward asks the same
question about the same inputs and so gets the same answer.
"""

from __future__ import annotations

import functools
import math
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from fusec.attention import exact
from fusec.attention.allowed import CUDNN, EFFICIENT, FLASH, MATH, limited

_HEAD_MULTIPLE: Final = 8  # of elements of a head: what the kernels' vector loads want
MASK_MULTIPLE: Final = 16  # of elements of a mask's rows
_STATISTICS_MULTIPLE: Final = 32  # of rows, in what the efficient kernels save

_aten: Final = torch.ops.aten
_flash: Final = _aten._scaled_dot_product_flash_attention.default
_efficient: Final = _aten._scaled_dot_product_efficient_attention.default
_cudnn: Final = _aten._scaled_dot_product_cudnn_attention.default
_flash_backward: Final = _aten._scaled_dot_product_flash_attention_backward.default
_efficient_backward: Final = _aten._scaled_dot_product_efficient_attention_backward.default
_cudnn_backward: Final = _aten._scaled_dot_product_cudnn_attention_backward.default


class Call(NamedTuple):
    """One attention: (B, H, S, D) tensors and what modifies it.

    backends: bits, see `fusec.attention.allowed`, of those that the user allows; training: a
    backward follows; mask_grad: with a gradient of the mask.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    p: float
    causal: bool
    scale: float | None
    gqa: bool
    backends: int
    training: bool
    mask_grad: bool


def run(call: Call) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The result; where a backward follows the statistics, (B, H, S), and with dropout the two
    numbers that it follows from."""
    formed, backend = prepare(call)
    q, k, v, mask = formed.query, formed.key, formed.value, formed.mask
    p, causal, scale, training = formed.p, formed.causal, formed.scale, formed.training
    lse: Tensor
    rng: Tensor | None = None
    if backend == FLASH:
        out, lse, _, _, _, _, seed, offset, _ = _flash(q, k, v, p, causal, scale=scale)
        rng = _joined(seed, offset) if p > 0.0 else None
    elif backend == EFFICIENT:
        out, lse, seed, offset = _efficient(q, k, v, mask, training, p, causal, scale=scale)
        rng = _joined(seed, offset) if p > 0.0 else None
    elif backend == CUDNN:
        out, lse, _, _, _, _, seed, offset, _ = _cudnn(
            q, k, v, _one_head(mask), training, p, causal, scale=scale
        )
        rng = _joined(seed, offset) if p > 0.0 else None
    else:
        rng = exact.draw(q) if p > 0.0 else None
        out, lse = exact.forward(q, k, v, mask, p, causal, scale, rng)
    out = _cut(out, call.value.shape[-1])
    if not training:
        return out, None, rng
    if lse.dim() > 3:
        lse = lse.flatten(2)
    return out, _cut(lse, q.shape[2]), rng


def run_backward(
    call: Call, grad: Tensor, out: Tensor, lse: Tensor, rng: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The gradients of query, key, value and, where the call asks for it, of the mask.

    out, lse, rng: what `run` gave for the same call.
    """
    formed, backend = prepare(call)
    q, k, v, mask = formed.query, formed.key, formed.value, formed.mask
    p, causal, scale = formed.p, formed.causal, formed.scale
    rows, columns = q.shape[2], k.shape[2]
    grad, out = _padded_head(grad), _padded_head(out)
    grad_mask: Tensor | None = None
    if backend == FLASH:
        seed, offset = _flash_numbers(q, rng)
        grads = _flash_backward(
            grad, q, k, v, out, lse, None, None, rows, columns, p, causal, seed, offset, scale=scale
        )
    elif backend == EFFICIENT:
        seed, offset = _numbers(q, rng)
        wanted = [True, True, True, call.mask_grad]
        *grads, grad_mask = _efficient_backward(
            grad, q, k, v, mask, out, _padded_statistics(lse), seed, offset, p, wanted, causal,
            scale=scale,
        )  # fmt: skip
    elif backend == CUDNN:
        seed, offset = _numbers(q, rng)
        grads = _cudnn_backward(
            grad, q, k, v, out, _cudnn_statistics(lse), seed, offset, _one_head(mask), None, None,
            rows, columns, p, causal, scale=scale,
        )  # fmt: skip
    else:
        *grads, grad_mask = exact.backward(grad, q, k, v, mask, out, lse, rng, p, causal, scale)
    grad_query, grad_key, grad_value = (
        _ungrouped(_cut(g, x.shape[-1]), x)
        for g, x in zip(grads, (call.query, call.key, call.value), strict=True)
    )
    return grad_query, grad_key, grad_value, grad_mask if call.mask_grad else None


class _Plan(NamedTuple):
    """How calls of one form are done. ready: backends take the tensors as they are; expanded: each
    head of key and value is repeated for its group."""

    backend: int
    ready: bool
    expanded: bool


_plans: Final[dict[tuple[object, ...], _Plan]] = {}
_MOST_PLANS: Final = 1024


def prepare(call: Call) -> tuple[Call, int]:
    """The call in a form that a backend takes, and the backend.

    Asking torch costs more than a small attention, and looking what form the tensors want a part of
    one. Both follow from layouts and settings alone, and are remembered by them.
    """
    q, k, v, mask = call.query, call.key, call.value, call.mask
    key = (
        q.get_device(), q.dtype, q.shape, q.stride(), k.shape, k.stride(), v.shape, v.stride(),
        None if mask is None else (mask.dtype, mask.shape, mask.stride()),
        call[4:], torch.are_deterministic_algorithms_enabled(), call.training and q.is_inference(),
    )  # fmt: skip
    plan = _plans.get(key)
    if plan is None:
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        plan = _plans[key] = _planned(call)
    return (call if plan.ready else _formed(call, plan.expanded)), plan.backend


def _planned(call: Call) -> _Plan:
    formed = _formed(call, expanded=False)
    backend, expanded = _asked(formed), False
    if backend == MATH and formed.gqa:  # some backends know no groups of heads
        formed, expanded = _formed(call, expanded=True), True
        backend = _asked(formed)
    ready = all(x is y for x, y in zip(formed[:4], call[:4], strict=True))
    return _Plan(backend, ready, expanded)


def _formed(call: Call, expanded: bool) -> Call:
    q, k, v = _padded_head(call.query), _padded_head(call.key), _padded_head(call.value)
    scale = call.scale
    if scale is None and q.shape[-1] != call.query.shape[-1]:
        scale = call.query.shape[-1] ** -0.5
    formed = call._replace(query=q, key=k, value=v, scale=scale, mask=_padded_mask(call.mask))
    return _expanded(formed) if expanded else formed


def _asked(call: Call) -> int:
    """What torch would take for the call. It looks whether gradients are wanted."""
    q, k, v, mask = call.query, call.key, call.value, call.mask
    if not q.is_cuda:
        return MATH
    with limited(call.backends), torch.set_grad_enabled(call.training):
        if call.training and not q.is_inference():
            q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        if mask is not None and call.mask_grad:
            mask = mask.detach().requires_grad_()
        choice: int = torch.ops.aten._fused_sdp_choice.default(
            q, k, v, mask, call.p, call.causal, scale=call.scale, enable_gqa=call.gqa
        )
    return choice if choice in (FLASH, EFFICIENT, CUDNN) else MATH


def _padded_head(x: Tensor) -> Tensor:
    """With zeros up to a multiple of elements a head, which change no product; the elements of a
    head one after another."""
    missing = -x.shape[-1] % _HEAD_MULTIPLE
    if missing and x.is_cuda:
        return pad(x, (0, missing))
    return x if x.stride(-1) == 1 else x.contiguous()


def _cut(x: Tensor, width: int) -> Tensor:
    return x if x.shape[-1] == width else x[..., :width]


def _padded_mask(mask: Tensor | None) -> Tensor | None:
    """The mask with rows that begin at multiples: a part of a larger one where they do not."""
    if mask is None or not mask.is_cuda:
        return mask
    *steps, last = mask.stride()
    if last == 1 and all(step % MASK_MULTIPLE == 0 for step in steps):
        return mask
    columns = mask.shape[-1]
    once = mask[tuple(slice(0, 1) if s == 0 else slice(None) for s in steps)]
    wide = pad(once, (0, -columns % MASK_MULTIPLE))
    return wide[..., :columns].expand(mask.shape)


def _one_head(mask: Tensor | None) -> Tensor | None:
    """The mask with one head where all are the same: cuDNN broadcasts it."""
    return mask[:, :1] if mask is not None and mask.stride(1) == 0 else mask


def _expanded(call: Call) -> Call:
    """With each head of key and value repeated for its group."""
    groups = call.query.shape[1] // call.key.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (call.key, call.value))
    return call._replace(key=k, value=v, gqa=False)


def _ungrouped(grad: Tensor, of: Tensor) -> Tensor:
    """The gradient of a tensor whose heads may have been repeated: a sum over each group."""
    if grad.shape[1] == of.shape[1]:
        return grad
    groups: Tensor = grad.unflatten(1, (of.shape[1], -1))
    return groups.sum(2)


def _joined(seed: Tensor, offset: Tensor) -> Tensor:
    """One tensor of two int64 for what backends save: such a tensor, or two of one number, on the
    GPU or on the CPU."""
    if seed.numel() == 2:
        return seed.view(torch.int64)
    return torch.stack([seed.view(torch.int64), offset.view(torch.int64)])


def _numbers(query: Tensor, rng: Tensor | None) -> tuple[Tensor, Tensor]:
    if rng is None:
        return _unread(query.get_device(), torch.int64)
    return rng[0], rng[1]


def _flash_numbers(query: Tensor, rng: Tensor | None) -> tuple[Tensor, Tensor]:
    if torch.version.hip:
        return _numbers(query, rng)
    if rng is None:
        return _unread(query.get_device(), torch.uint64)
    return _state(rng)


@functools.cache
def _unread(ordinal: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What stands for the two numbers where nothing is dropped and nobody reads them."""
    with torch.inference_mode(False):
        rng = torch.empty(2, dtype=torch.int64, device=f"cuda:{ordinal}")
    return _state(rng) if dtype == torch.uint64 else (rng[0], rng[1])


def _state(rng: Tensor) -> tuple[Tensor, Tensor]:
    state = rng.view(torch.uint64)
    return state, state[:1].squeeze(0)


def _cudnn_statistics(lse: Tensor) -> Tensor:
    """With as many dims as this release's forward gives them."""
    return lse.unsqueeze(-1) if _cudnn_statistics_dims() == 4 else lse


@functools.cache
def _cudnn_statistics_dims() -> int:
    x = torch.zeros(1, 1, 64, 64, dtype=torch.float16, device="cuda")
    _, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention.default(x, x, x, None, True)
    return int(lse.dim())


def _padded_statistics(lse: Tensor) -> Tensor:
    """With rows that weigh nothing, up to the multiple that the efficient kernels write."""
    missing = 0 if torch.version.hip else -lse.shape[-1] % _STATISTICS_MULTIPLE
    return pad(lse, (0, missing), value=math.inf) if missing else lse
