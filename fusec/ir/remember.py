"""Memory for pure functions of interned values: what repeats in a program is worked out once.

Expressions are interned, so that looking one up costs no more than an address. A layer of a model
asks for the same sums, remainders and views as the layer before it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeVar, cast

_ENTRIES: Final = 1 << 14

_Function = TypeVar("_Function", bound=Callable[..., Any])


def remember(function: _Function) -> _Function:
    """The function with a bounded memory. Its arguments must be hashable, its results immutable;
    threads may share it."""
    return cast("_Function", lru_cache(maxsize=_ENTRIES)(function))
