"""Sizes to try something with where nobody knows those of a call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fusec.ir.graph import SymbolRange

TYPICAL_SIZE: Final = 64


def typical_sizes(symbols: Iterable[SymbolRange]) -> dict[str, int]:
    """A value for each symbol: the typical one, or the nearest that its range allows."""
    return {
        s.name: min(max(TYPICAL_SIZE, s.lower), TYPICAL_SIZE if s.upper is None else s.upper)
        for s in symbols
    }
