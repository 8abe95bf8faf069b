"""The sizes of a call, and what follows from them, worked out once.

Programs of many layers use few distinct expressions many times, and training loops come back to
sizes that were there before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from fusec.ir import expr as ex
from fusec.ir.expr import Expr

_REMEMBERED: Final = 64  # combinations of sizes


class Sizes(dict[str, int]):
    """Sizes by the names of their symbols."""

    __slots__ = ("_rows", "_values")

    def __init__(self, sizes: dict[str, int]) -> None:
        super().__init__(sizes)
        self._values: dict[Expr, int] = {}
        self._rows: dict[tuple[Expr, ...], tuple[int, ...]] = {}

    def value(self, e: Expr) -> int:
        """An expression at these sizes."""
        found = self._values.get(e)
        if found is None:
            found = self._values[e] = ex.evaluate(e, self)
        return found

    def row(self, expressions: tuple[Expr, ...]) -> tuple[int, ...]:
        """A shape, or strides, at these sizes."""
        found = self._rows.get(expressions)
        if found is None:
            found = self._rows[expressions] = tuple(self.value(e) for e in expressions)
        return found


NO_SIZES: Final = Sizes({})


class SizeReader:
    """Reads the sizes of a call from its inputs; equal sizes are one object, for a while."""

    def __init__(self, symbols: Sequence[tuple[str, Callable[[list[Any]], int]]]) -> None:
        """symbols: of each the name and how to read it."""
        self._names = [name for name, _ in symbols]
        self._reads = [read for _, read in symbols]
        self._known: dict[tuple[int, ...], Sizes] = {}

    def __call__(self, inputs: list[Any]) -> Sizes:
        if not self._reads:
            return NO_SIZES
        values = tuple([read(inputs) for read in self._reads])
        found = self._known.get(values)
        if found is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            found = self._known[values] = Sizes(dict(zip(self._names, values, strict=True)))
        return found
