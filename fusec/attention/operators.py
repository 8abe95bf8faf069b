"""The operators `fusec::attention…`: schemas, shapes and layouts, gradients.

One attention is one operation in a graph, whichever kernel a machine has for it, so that keys are
the same everywhere. Results have fixed layouts: that of (B, S, H, V) seen as (B, H, S, V), which
the kernels write and which the next projection reads without a copy.

    attention            the result; nothing is kept
    attention_training   the result, and the statistics (B, H, S) that the backward needs
    attention_dropout    the same with dropout, and two numbers that tell what was dropped
    attention_backward   the gradients of query, key and value, and of the mask if it is wanted

query: (B, H, S, D); key, value: (B, H or a divisor of it with gqa, K, D or V); mask: (B, H, S, K)
of the query's dtype, added to the scores. scale None: 1/√D. backends: bits, see
`fusec.attention.allowed.enabled`, of what the user allowed where the model was captured.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import torch
from torch import Tensor

from fusec.attention import exact
from fusec.attention.allowed import ALL
from fusec.attention.backends import Call, run, run_backward

_INPUTS: Final = "Tensor query, Tensor key, Tensor value, Tensor? mask"
_HOW: Final = f"bool causal=False, float? scale=None, bool gqa=False, int backends={ALL}"

_library: Final = torch.library.Library("fusec", "DEF")
_tag: Final = torch.Tag.pt2_compliant_tag
_library.define(f"attention({_INPUTS}, {_HOW}) -> Tensor", tags=_tag)
_library.define(
    f"attention_training({_INPUTS}, {_HOW}, bool mask_grad=False) -> (Tensor, Tensor)", tags=_tag
)
# `site` tells calls with equal arguments apart: they draw different numbers.
_library.define(
    f"attention_dropout({_INPUTS}, float p, int site, {_HOW}, bool mask_grad=False)"
    " -> (Tensor, Tensor, Tensor)",
    tags=(_tag, torch.Tag.nondeterministic_seeded),
)
_library.define(
    f"attention_backward(Tensor grad, {_INPUTS}, Tensor out, Tensor statistics, Tensor? rng,"
    f" float p, {_HOW}, bool mask_grad=False) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=_tag,
)


# -- shapes and layouts -----------------------------------------------------------------------


def _result(query: Tensor, value: Tensor) -> Tensor:
    """An empty (B, H, S, V) in the layout of (B, S, H, V)."""
    batch, heads, rows, _ = query.shape
    return query.new_empty((batch, rows, heads, value.shape[-1])).transpose(1, 2)


def _gradient(of: Tensor) -> Tensor:
    """Dense, in the order of dims that `of` has."""
    return torch.empty_like(of)


def _statistics(query: Tensor) -> Tensor:
    return query.new_empty(query.shape[:3], dtype=exact.statistics_dtype(query.dtype))


def _fake(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *_: Any, **__: Any
) -> Tensor:
    return _result(query, value)


def _fake_training(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *_: Any, **__: Any
) -> tuple[Tensor, Tensor]:
    return _result(query, value), _statistics(query)


def _fake_dropout(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *_: Any, **__: Any
) -> tuple[Tensor, Tensor, Tensor]:
    # Some kernels give the two numbers on the CPU. Nothing but the backward reads them.
    rng = query.new_empty((2,), dtype=torch.int64)
    return _result(query, value), _statistics(query), rng


def _fake_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    out: Tensor,
    statistics: Tensor,
    rng: Tensor | None,
    p: float,
    causal: bool = False,
    scale: float | None = None,
    gqa: bool = False,
    backends: int = ALL,
    mask_grad: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    of_mask = query.new_empty(mask.shape if mask_grad and mask is not None else (0,))
    return _gradient(query), _gradient(key), _gradient(value), of_mask


# -- computing --------------------------------------------------------------------------------


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool = False,
    scale: float | None = None,
    gqa: bool = False,
    backends: int = ALL,
) -> Tensor:
    """The result of attention, (B, H, S, V); for the arguments see the module."""
    call = Call(query, key, value, mask, 0.0, causal, scale, gqa, backends, False, False)
    out, _, _ = run(call)
    return _rows_first_of(out)


def attention_training(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool = False,
    scale: float | None = None,
    gqa: bool = False,
    backends: int = ALL,
    mask_grad: bool = False,
) -> tuple[Tensor, Tensor]:
    """The result, and the statistics (B, H, S) that `attention_backward` takes."""
    call = Call(query, key, value, mask, 0.0, causal, scale, gqa, backends, True, mask_grad)
    out, lse, _ = run(call)
    assert lse is not None
    return _rows_first_of(out), lse.contiguous()


def attention_dropout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    p: float,
    site: int,
    causal: bool = False,
    scale: float | None = None,
    gqa: bool = False,
    backends: int = ALL,
    mask_grad: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, the statistics and two numbers of the generator, on the GPU or on the CPU.

    p: the share of weights that is dropped; site: nothing is made of it.
    """
    call = Call(query, key, value, mask, p, causal, scale, gqa, backends, True, mask_grad)
    out, lse, rng = run(call)
    assert lse is not None
    assert rng is not None
    return _rows_first_of(out), lse.contiguous(), rng


def attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    out: Tensor,
    statistics: Tensor,
    rng: Tensor | None,
    p: float,
    causal: bool = False,
    scale: float | None = None,
    gqa: bool = False,
    backends: int = ALL,
    mask_grad: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients in the layouts of query, key and value; of the mask, empty where it is not wanted.

    grad: of the result; rng: the two numbers of a forward with dropout.
    """
    call = Call(query, key, value, mask, p, causal, scale, gqa, backends, True, mask_grad)
    *grads, of_mask = run_backward(call, grad, out, statistics, rng)
    made = [_dense_like(g, of) for g, of in zip(grads, (query, key, value), strict=True)]
    if of_mask is None:
        return made[0], made[1], made[2], query.new_empty(0)
    return made[0], made[1], made[2], of_mask.contiguous()


def _rows_first_of(out: Tensor) -> Tensor:
    """A result in the layout of (B, S, H, V): as most kernels give it, else a copy."""
    _, heads, rows, width = out.shape
    if out.stride() == (rows * heads * width, width, heads * width, 1):
        return out
    rows_first = out.transpose(1, 2)
    return out if rows_first.is_contiguous() else rows_first.contiguous().transpose(1, 2)


def _dense_like(grad: Tensor, of: Tensor) -> Tensor:
    """A gradient in the layout that `_gradient` promises."""
    if grad.stride() == _gradient_stride(of.shape, of.stride()):
        return grad
    return _gradient(of).copy_(grad)


@functools.lru_cache(maxsize=1024)
def _gradient_stride(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    return _gradient(torch.empty_strided(shape, stride, device="meta")).stride()


# -- gradients --------------------------------------------------------------------------------


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, value, mask, *how = inputs
    out, statistics, *rng = output
    ctx.p = how[0] if rng else 0.0
    ctx.how = how[2:] if rng else how
    ctx.save_for_backward(query, key, value, mask, out, statistics, *rng)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    query, key, value, mask, out, statistics, *rng = ctx.saved_tensors
    rest = (None,) * (len(ctx.how) + 2 * len(rng))
    if grad is None:
        return (None, None, None, None, *rest)
    *grads, of_mask = torch.ops.fusec.attention_backward(
        grad, query, key, value, mask, out, statistics, rng[0] if rng else None, ctx.p, *ctx.how
    )
    wanted = ctx.how[-1]
    return (*grads, of_mask if wanted else None, *rest)


for _name, _run, _shape in (
    ("attention", attention, _fake),
    ("attention_training", attention_training, _fake_training),
    ("attention_dropout", attention_dropout, _fake_dropout),
    ("attention_backward", attention_backward, _fake_backward),
):
    _library.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fusec::{_name}", _shape, lib=_library)
# By the name that graphs have: what a program calls, without torch's dispatcher.
DIRECT: Final[dict[str, Any]] = {
    "fusec.attention.default": attention,
    "fusec.attention_training.default": attention_training,
    "fusec.attention_dropout.default": attention_dropout,
    "fusec.attention_backward.default": attention_backward,
}
for _name in ("attention_training", "attention_dropout"):
    torch.library.register_autograd(
        f"fusec::{_name}", _gradients, setup_context=_keep, lib=_library
    )
