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
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from fusec.attention import exact

MATH: Final = 0
FLASH: Final = 1
EFFICIENT: Final = 2
CUDNN: Final = 3
ALL: Final = (1 << MATH) | (1 << FLASH) | (1 << EFFICIENT) | (1 << CUDNN)

_HEAD_MULTIPLE: Final = 8  # of elements of a head: what the kernels' vector loads want
MASK_MULTIPLE: Final = 16  # of elements of a mask's rows
_STATISTICS_MULTIPLE: Final = 32  # of rows, in what the efficient kernels save


class Call(NamedTuple):
    """One attention: (B, H, S, D) tensors and what modifies it.

    backends: bits of the backends that the user allows; training: a backward follows;
    mask_grad: with a gradient of the mask.
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


def enabled() -> int:
    """Bits of the backends that `torch.nn.attention.sdpa_kernel` allows now."""
    cuda = torch.backends.cuda
    return (
        int(cuda.math_sdp_enabled()) << MATH
        | int(cuda.flash_sdp_enabled()) << FLASH
        | int(cuda.mem_efficient_sdp_enabled()) << EFFICIENT
        | int(cuda.cudnn_sdp_enabled()) << CUDNN
    )


@contextmanager
def _limited(backends: int) -> Iterator[None]:
    """With these backends allowed, whatever is allowed around."""
    before = enabled()
    if before == backends:
        yield
        return
    _allow(backends)
    try:
        yield
    finally:
        _allow(before)


def _allow(backends: int) -> None:
    cuda = torch.backends.cuda
    cuda.enable_math_sdp(bool(backends >> MATH & 1))
    cuda.enable_flash_sdp(bool(backends >> FLASH & 1))
    cuda.enable_mem_efficient_sdp(bool(backends >> EFFICIENT & 1))
    cuda.enable_cudnn_sdp(bool(backends >> CUDNN & 1))


def run(call: Call) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The result; where a backward follows the statistics, (B, H, S), and with dropout the two
    numbers that it follows from."""
    formed, backend = prepare(call)
    q, k, v, mask = formed.query, formed.key, formed.value, formed.mask
    p, causal, scale, training = formed.p, formed.causal, formed.scale, formed.training
    aten = torch.ops.aten
    lse: Tensor
    rng: Tensor | None = None
    if backend == FLASH:
        out, lse, _, _, _, _, seed, offset, _ = aten._scaled_dot_product_flash_attention.default(
            q, k, v, p, causal, scale=scale
        )
        rng = _joined(seed, offset) if p > 0.0 else None
    elif backend == EFFICIENT:
        out, lse, seed, offset = aten._scaled_dot_product_efficient_attention.default(
            q, k, v, mask, training, p, causal, scale=scale
        )
        rng = _joined(seed, offset) if p > 0.0 else None
    elif backend == CUDNN:
        out, lse, _, _, _, _, seed, offset, _ = aten._scaled_dot_product_cudnn_attention.default(
            q, k, v, _one_head(mask), training, p, causal, scale=scale
        )
        rng = _joined(seed, offset) if p > 0.0 else None
    else:
        rng = exact.draw(q) if p > 0.0 else None
        out, lse = exact.forward(q, k, v, mask, p, causal, scale, rng)
    out = _cut(out, call.value.shape[-1])
    if not training:
        return out, None, rng
    return out, _cut(lse.flatten(2), q.shape[2]), rng


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
    aten = torch.ops.aten
    grad_mask: Tensor | None = None
    if backend == FLASH:
        seed, offset = _flash_numbers(q, rng)
        grads = aten._scaled_dot_product_flash_attention_backward.default(
            grad, q, k, v, out, lse, None, None, rows, columns, p, causal, seed, offset, scale=scale
        )
    elif backend == EFFICIENT:
        seed, offset = _numbers(q, rng)
        wanted = [True, True, True, call.mask_grad]
        *grads, grad_mask = aten._scaled_dot_product_efficient_attention_backward.default(
            grad, q, k, v, mask, out, _padded_statistics(lse), seed, offset, p, wanted, causal,
            scale=scale,
        )  # fmt: skip
    elif backend == CUDNN:
        seed, offset = _numbers(q, rng)
        grads = aten._scaled_dot_product_cudnn_attention_backward.default(
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


def prepare(call: Call) -> tuple[Call, int]:
    """The call in a form that a backend takes, and the backend."""
    q, k, v = _padded_head(call.query), _padded_head(call.key), _padded_head(call.value)
    scale = call.scale
    if scale is None and q.shape[-1] != call.query.shape[-1]:
        scale = call.query.shape[-1] ** -0.5
    formed = call._replace(query=q, key=k, value=v, scale=scale, mask=_padded_mask(call.mask))
    backend = _choice(formed)
    if backend == MATH and formed.gqa:  # some backends know no groups of heads
        formed = _expanded(formed)
        backend = _choice(formed)
    return formed, backend


_choices: Final[dict[tuple[object, ...], int]] = {}
_MOST_CHOICES: Final = 1024


def _choice(call: Call) -> int:
    """What torch would take for the call. Asking costs more than a small attention, and the answer
    follows from layouts and settings alone: it is remembered by them."""
    q, k, v, mask = call.query, call.key, call.value, call.mask
    if not q.is_cuda:
        return MATH
    key = (
        q.device.index, q.dtype, q.shape, q.stride(), k.shape, k.stride(), v.shape, v.stride(),
        None if mask is None else (mask.dtype, mask.shape, mask.stride()),
        *call[4:], enabled(), torch.are_deterministic_algorithms_enabled(),
        call.training and not q.is_inference(),
    )  # fmt: skip
    found = _choices.get(key)
    if found is None:
        if len(_choices) >= _MOST_CHOICES:
            _choices.clear()
        found = _choices[key] = _asked(call)
    return found


def _asked(call: Call) -> int:
    """torch's answer. It looks whether gradients are wanted."""
    q, k, v, mask = call.query, call.key, call.value, call.mask
    with _limited(call.backends), torch.set_grad_enabled(call.training):
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
    if rng is None:  # not read without dropout
        rng = torch.empty(2, dtype=torch.int64, device=query.device)
    return rng[0], rng[1]


def _flash_numbers(query: Tensor, rng: Tensor | None) -> tuple[Any, Any]:
    if torch.version.hip:
        return _numbers(query, rng)
    if rng is None:
        rng = torch.empty(2, dtype=torch.int64, device=query.device)
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
