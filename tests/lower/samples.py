"""Inputs of the lowering tests: random values and the awkward ones, in every layout."""

from __future__ import annotations

import math

import torch

DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (
        *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}
_NUMBERS = (
    *(math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 88.8, -88.8),
    *(89.5, -104.0, 709.0, -745.0, 1e-8, -1e-8, 3e4, 7e4, -7e4, 1e30, -1e30, 1e-40, -1e-40),
    *(3.14159265, 100.25, -3.7),
)


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Random values: a few units wide, small integers, all of a byte, or true and false."""
    g = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.rand(shape, generator=g) > 0.5
    if dtype.is_floating_point:
        return (torch.randn(shape, generator=g) * 2).to(dtype)
    if dtype is torch.uint8:
        return torch.randint(0, 256, shape, generator=g).to(dtype)
    return torch.randint(-9, 10, shape, generator=g).to(dtype)


def awkward(dtype: torch.dtype) -> torch.Tensor:
    """One dimension of special values: NaN, infinities and limits, or the ends of the integers."""
    if dtype.is_floating_point:
        return torch.tensor(_NUMBERS, dtype=torch.float64).to(dtype)
    ends = torch.iinfo(dtype)
    low, high = ends.min, ends.max
    found = [low, low + 1, high, high - 1, 0, 1, 2, 3, 7, 100, 127, 64, high // 2, high // 3]
    found += [-1, -2, -7, -100, -128] if low < 0 else [200, 255]
    return torch.tensor(found).to(dtype)


def layouts(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Tensors of shape (2, 6, 5, 9) that lie in memory in different ways."""
    shape = (2, 6, 5, 9)
    return {
        "contiguous": values(shape, dtype, 1),
        "channels_last": values(shape, dtype, 2).contiguous(memory_format=torch.channels_last),
        "transposed": values((2, 6, 9, 5), dtype, 3).transpose(2, 3),
        "permuted": values((9, 2, 5, 6), dtype, 4).permute(1, 3, 2, 0),
        "sliced": values((2, 6, 10, 20), dtype, 5)[:, :, 1::2, 1:19:2],
        # Small multiples of 1/16: sums of equal values stay exact.
        "expanded": (values((2, 1, 5, 1), dtype, 6) * 16).round().div(16).to(dtype).expand(shape)
        if dtype.is_floating_point
        else values((2, 1, 5, 1), dtype, 6).expand(shape),
        "offset": values((3, 6, 5, 12), dtype, 7)[1:, :, :, 3:],
        "overlapping": values((400,), dtype, 8).as_strided(shape, (60, 9, 7, 1), 3),
        "rows_of_one": values((6, 5, 9), dtype, 9).expand(shape),
    }
