"""Linear interpolation on a CPU, kept whole: ATen's kernels, both ways.

Torch breaks it down into gathers of the neighbours, and its gradient into a scatter: good loops for
a GPU, and several times slower than ATen's own on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from fusec.capture import seams_joint

_aten = torch.ops.aten
# Dimensions of the input -> mode, forward, backward.
_KINDS: Final[dict[int, tuple[str, Any, Any]]] = {
    3: ("linear", _aten.upsample_linear1d, _aten.upsample_linear1d_backward),
    4: ("bilinear", _aten.upsample_bilinear2d, _aten.upsample_bilinear2d_backward),
    5: ("trilinear", _aten.upsample_trilinear3d, _aten.upsample_trilinear3d_backward),
}


class _Upsample(torch.autograd.Function):
    """Sizes and scales of the spatial dimensions; a scale of None is the ratio of the sizes."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, sizes: Sequence[int], align: bool, scales: Sequence[Any]
    ) -> torch.Tensor:
        ctx.shape, ctx.rest = x.shape, (align, *scales)
        ctx.sizes = sizes
        with seams_joint.below_autograd():
            made: torch.Tensor = _KINDS[x.dim()][1].default(x, sizes, align, *scales)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        with seams_joint.below_autograd():
            back = _KINDS[len(ctx.shape)][2].default
            return back(grads[0], ctx.sizes, ctx.shape, *ctx.rest), None, None, None


def upsample(
    x: torch.Tensor, sizes: Sequence[int], align: bool, scales: Sequence[float | None]
) -> torch.Tensor:
    """`torch.nn.functional.interpolate` by one operation, with arguments of `whole`."""
    made: torch.Tensor = _Upsample.apply(x, sizes, align, scales)  # type: ignore[no-untyped-call]
    return made


def whole(x: object, given: Mapping[str, Any]) -> tuple[list[int], bool, list[float | None]] | None:
    """The arguments of `upsample` for an interpolation of the tensor ``x`` with other arguments
    ``given``; None where torch's own form is kept: on a GPU, for sizes known at the call, for other
    modes, and for dtypes that autocast would change."""
    if not isinstance(x, torch.Tensor) or x.device.type != "cpu" or x.dim() not in _KINDS:
        return None
    if x.dtype not in (torch.float32, torch.float64) or given.get("antialias"):
        return None
    if given.get("mode") != _KINDS[x.dim()][0] or not all(type(n) is int for n in x.shape):
        return None
    size, scale = given.get("size"), given.get("scale_factor")
    if (size is None) == (scale is None):
        return None
    rank = x.dim() - 2
    wanted = size if scale is None else scale
    each: list[Any] = list(wanted) if isinstance(wanted, (tuple, list)) else [wanted] * rank
    if len(each) != rank or not all(type(n) in (int, float) for n in each):
        return None
    align = bool(given.get("align_corners"))
    if scale is None:
        return each, align, [None] * rank
    sizes = [math.floor(n * s) for n, s in zip(x.shape[2:], each, strict=True)]
    again = bool(given.get("recompute_scale_factor"))
    return sizes, align, [None if again else float(s) for s in each]
