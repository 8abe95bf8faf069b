"""Whether two variants of a kernel have left the same in memory, rounding aside.

There is no eager to compare with here: the variants are compared with the first of them, whose
results are checked with the whole graph. So the bound is wide: what it is for is a variant that is
fast because it leaves something out, not one that rounds otherwise.

NumPy and not torch: a child that compares is started for each graph, and torch takes seconds to
load.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fusec.ir.dtypes import DTYPES

# Part of the value and of the typical value by which rounding may move a result.
_SLACK: Final[Mapping[str, float]] = {
    "f64": 1e-9, "f32": 1e-3, "f16": 2e-2, "bf16": 6e-2, "f8e4m3fn": 0.3, "f8e5m2": 0.6,
    "c32": 2e-2, "c64": 1e-3, "c128": 1e-9,
}  # fmt: skip
# Types of two numbers by the type of one of them.
_PARTS: Final = {"c32": "f16", "c64": "f32", "c128": "f64"}
# What rounding may turn into something else altogether: a comparison's outcome, a place.
_OUTLIERS: Final = 1e-3
_TYPICAL: Final = 1 << 18  # values that say what is typical


def differing(mine: bytes, wanted: bytes, dtype: str) -> bool:
    """Whether values of a type, as they lie in memory, are others."""
    if mine == wanted:
        return False
    if len(mine) != len(wanted):
        return True
    number = _PARTS.get(dtype, dtype)
    raw = np.dtype(f"<u{DTYPES[number].size}")
    found, right = np.frombuffer(mine, raw), np.frombuffer(wanted, raw)
    places = np.flatnonzero(found != right)
    few = _OUTLIERS * len(right)
    if len(places) <= few:
        return False
    if dtype not in _SLACK:
        return True
    some = _values(right[:: len(right) // _TYPICAL + 1], number)
    finite = some[np.isfinite(some)]
    typical = np.sqrt(np.mean(np.square(finite))) if len(finite) else 0.0
    a, b = _values(found[places], number), _values(right[places], number)
    with np.errstate(invalid="ignore"):  # differences of infinities
        near = np.abs(a - b) <= _SLACK[dtype] * (np.abs(b) + typical)
    same = near | (a == b) | (np.isnan(a) & np.isnan(b))
    return int(np.count_nonzero(~same)) > few


def _values(raw: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    """The numbers whose bits these are."""
    match dtype:
        case "bf16":  # the upper half of a float32
            return (raw.astype("<u4") << 16).view("<f4").astype(np.float64)
        case "f8e5m2":  # the upper half of a float16
            return (raw.astype("<u2") << 8).view("<f2").astype(np.float64)
        case "f8e4m3fn":  # three bits of a float16's fraction, and an exponent of another bias
            bits = raw.astype("<u2")
            values = ((bits & 0x80) << 8 | (bits & 0x7F) << 7).view("<f2").astype(np.float64)
            return np.where(bits & 0x7F == 0x7F, np.nan, values * 2.0**8)
    return raw.view(f"<f{DTYPES[dtype].size}").astype(np.float64)
