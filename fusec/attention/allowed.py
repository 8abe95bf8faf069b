"""Which of torch's attention backends the user allows, as bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

MATH: Final = 0
FLASH: Final = 1
EFFICIENT: Final = 2
CUDNN: Final = 3
ALL: Final = (1 << MATH) | (1 << FLASH) | (1 << EFFICIENT) | (1 << CUDNN)


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
def limited(backends: int) -> Iterator[None]:
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
