"""Whether two variants of a kernel have left the same in memory, rounding aside.

There is no eager to compare with here: the variants are compared with the first of them, whose
results are checked with the whole graph. So the bound is wide: what it is for is a variant that is
fast because it leaves something out, not one that rounds otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from fusec.ir.dtypes import DTYPES
from fusec.runtime.operators import TORCH_DTYPES

# Part of the value and of the typical value by which rounding may move a result.
_SLACK: Final[Mapping[str, float]] = {
    "f64": 1e-9, "f32": 1e-3, "f16": 2e-2, "bf16": 6e-2, "f8e4m3fn": 0.3, "f8e5m2": 0.6,
    "c32": 2e-2, "c64": 1e-3, "c128": 1e-9,
}  # fmt: skip
# What rounding may turn into something else altogether: a comparison's outcome, a place.
_OUTLIERS: Final = 1e-3


def differing(mine: bytes, wanted: bytes, dtype: str) -> bool:
    """Whether values of a type, as they lie in memory, are others."""
    if mine == wanted:
        return False
    if len(mine) != len(wanted):
        return True
    kind = TORCH_DTYPES.get(dtype)
    if kind is None or DTYPES[dtype].kind not in ("float", "complex"):
        rows = [torch.frombuffer(bytearray(x), dtype=torch.uint8) for x in (mine, wanted)]
        first, second = (row.view(-1, DTYPES[dtype].size) for row in rows)
        return int((first != second).any(1).sum()) > _OUTLIERS * len(first)
    a, b = _values(mine, kind), _values(wanted, kind)
    typical = b[torch.isfinite(b)].square().mean().sqrt().nan_to_num(0.0)
    bound = _SLACK[dtype] * (b.abs() + typical)
    same = (a == b) | (a.isnan() & b.isnan()) | ((a - b).abs() <= bound)
    return int((~same).sum()) > _OUTLIERS * a.numel()


def _values(data: bytes, kind: torch.dtype) -> torch.Tensor:
    values = torch.frombuffer(bytearray(data), dtype=kind)
    return (torch.view_as_real(values) if values.is_complex() else values).double()
