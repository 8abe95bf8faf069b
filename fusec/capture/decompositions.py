"""What AOTAutograd breaks down before we see it, and what it leaves whole: our table.

Aim: the compiler sees arithmetic and reductions (norms, softmax, activations, losses, both ways)
and, whole, what a library does better than generated loops or what must stay one operation:
matrix products, convolutions, attention, dropout (its random numbers), pooling, embeddings and
their scatter-add gradients.

The content is data; its digest is part of the toolchain's, because it decides the graphs.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import torch

from fusec.artifact.fingerprint import digest_of
from fusec.capture import seams

# Packets that torch's core table would break down and that we keep whole.
KEPT: Final = (
    # Broken down, its backward gives wrong gradients on a CPU without an error.
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    # Random numbers: broken down, they are not the ones that eager draws from the same seed.
    "bernoulli",
    "cauchy",
    "exponential",
    "geometric",
    "log_normal",
    "normal",
    "normal_functional",
    "uniform",
    "rrelu_with_noise",
    # Scatter-adds: one pass in ATen; broken down, an index_put with accumulation.
    "embedding_dense_backward",
    "_embedding_bag",
    "index_add",
    "index_copy",
    "unfold_backward",
    # Windows: the broken-down form gathers.
    "avg_pool2d_backward",
    "col2im",
    "im2col",
    "max_unpool2d",
    "max_unpool3d",
    "reflection_pad1d_backward",
    "reflection_pad2d_backward",
    "reflection_pad3d_backward",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
    "upsample_nearest2d_backward",
    "renorm",
    # Broken down, the source's dtype decides the result's.
    "select_scatter",
)

# Packets that torch's core table keeps and that we break down.
BROKEN_DOWN: Final = (
    "native_layer_norm",
    "native_group_norm",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "_batch_norm_with_update",
    "_batch_norm_with_update_functional",
    "_batch_norm_no_update",
    "batch_norm_backward",
    "_softmax",
    "_log_softmax",
    "gelu",
    "elu",
    "leaky_relu",
    "hardtanh",
    "log_sigmoid_forward",
    "native_dropout_backward",
    "addcmul",
    "addcdiv",
)


def nll_loss_backward(
    grad_output: torch.Tensor,
    self: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> torch.Tensor:
    """Gradient of the negative log-likelihood by comparison of classes with the target.

    self: (N, C) or (C,); target: (N,) or (); the result has the shape of self. torch's own form
    scatters, which no loop fuses with; this is arithmetic that fuses into softmax's backward.
    """
    classes = torch.arange(self.shape[-1], device=self.device)
    index = target.unsqueeze(-1)
    grad = grad_output / total_weight if reduction == 1 else grad_output
    if grad.dim() and grad.dim() == target.dim():
        grad = grad.unsqueeze(-1)
    chosen = (classes == index) & (index != ignore_index)
    factor = -grad if weight is None else -grad * weight
    zero = torch.zeros((), dtype=self.dtype, device=self.device)
    return torch.where(chosen, factor.to(self.dtype), zero).expand(self.shape)


def _own() -> dict[Any, Any]:
    return {torch.ops.aten.nll_loss_backward.default: nll_loss_backward}


@functools.cache
def table() -> dict[Any, Any]:
    """Overload -> decomposition, for AOTAutograd. One object a process; do not change it."""
    aten = torch.ops.aten
    made = seams.core_decompositions()
    kept = {name for name in KEPT if hasattr(aten, name)}
    made = {op: fn for op, fn in made.items() if _packet(op) not in kept}
    made.update(_own())
    wanted = [getattr(aten, name) for name in BROKEN_DOWN if hasattr(aten, name)]
    made.update(seams.registered_decompositions(wanted))
    return made


def _packet(op: Any) -> str:
    """`add` for `aten.add.Tensor`."""
    name: str = op.name() if hasattr(op, "name") else str(op)
    return name.split("::")[-1].split(".")[0]


def version() -> str:
    """Digest of what makes the table differ from the release's own; the release is in every key.

    The table itself is not looked at: a warm process never needs it.
    """
    own = f"{nll_loss_backward.__module__}.{nll_loss_backward.__qualname__}"
    return digest_of([sorted(KEPT), sorted(BROKEN_DOWN), [["nll_loss_backward", own]]])
