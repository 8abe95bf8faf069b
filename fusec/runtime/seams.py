"""Every touch of torch's private API by the runtime, in one place, for torch 2.11 to 2.14.

`fusec.capture.seams` is the same for capture. All of it is for speed: each has a public form that
does the same in more time, which stands in where a release of torch lacks the private one. Each has
a test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

Numbers = Sequence[int]


def _public_empty(device: str) -> Callable[[Numbers, Numbers, torch.dtype], torch.Tensor]:
    return lambda shape, stride, dtype: torch.empty_strided(
        shape, stride, dtype=dtype, device=device
    )


def _public_window(
    tensor: torch.Tensor, shape: Numbers, stride: Numbers, offset: int
) -> torch.Tensor:
    return tensor.detach().as_strided(shape, stride, tensor.storage_offset() + offset)


def _public_stream(ordinal: int) -> int:
    return int(torch.cuda.current_stream(ordinal).cuda_stream)


_guards: Final[Any] = getattr(getattr(torch._C, "_dynamo", None), "guards", None)

empty_cpu: Final[Callable[[Numbers, Numbers, torch.dtype], torch.Tensor]] = getattr(
    _guards, "_empty_strided_cpu", _public_empty("cpu")
)
"""A new tensor of a shape, strides and type in the memory of the CPU."""

empty_gpu: Final[Callable[[Numbers, Numbers, torch.dtype], torch.Tensor]] = getattr(
    _guards, "_empty_strided_cuda", _public_empty("cuda")
)
"""The same on the current GPU."""

window: Final[Callable[[torch.Tensor, Numbers, Numbers, int], torch.Tensor]] = getattr(
    _guards, "_reinterpret_tensor", _public_window
)
"""The memory of a tensor by another shape and strides, ``offset`` elements after its own start: a
tensor without history, whose version is its own. Nothing checks that it stays inside the memory."""

# A `torch.cuda.Stream` is made for each public query; the handle alone costs a tenth of that.
raw_stream: Final[Callable[[int], int]] = getattr(
    torch._C, "_cuda_getCurrentRawStream", _public_stream
)
"""The handle of the current stream of a GPU."""


def holders(storage: torch.UntypedStorage) -> int:
    """How many references there are to a storage: of tensors, views and what autograd saves."""
    return int(torch._C._storage_Use_Count(storage._cdata))
