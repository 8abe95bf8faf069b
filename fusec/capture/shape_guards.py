"""Symbolic sizes, and the guards on them, as plain values for a key; symbols are numbered."""

from __future__ import annotations

from typing import Any

import msgpack
import sympy
import torch

from fusec.capture import seams
from fusec.capture.symbols import sympy_of
from fusec.errors import CaptureUnsupported

# Classes whose arguments may come in any order: sympy sorts them by name.
_COMMUTATIVE = frozenset({"Add", "Mul", "Max", "Min", "And", "Or", "Equality", "Unequality"})


class GuardTable:
    """Encodes symbolic numbers; knows which symbols it met."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._env: Any = None

    def encode(self, value: Any) -> object:
        """A whole number as itself, a symbolic one as a tree. Raises CaptureUnsupported."""
        if type(value) is int:
            return value
        if isinstance(value, (torch.SymInt, torch.SymBool)):
            if seams.is_unbacked(value):
                raise CaptureUnsupported("a size is known only when the data is there")
            self._env = value.node.shape_env
        e = sympy_of(value)
        return int(value) if e is None else self._tree(e)

    def ranges_and_guards(self) -> list[object]:
        """The range of each symbol met, and the guards that speak of these symbols only."""
        if not self._numbers:
            return []
        range_of = seams.ranges_in(self._env)
        ranges: list[object] = [list(range_of(symbol)) for symbol in self._numbers]
        known = set(self._numbers)
        guards = [
            msgpack.packb(self._tree(g))
            for g in seams.guards_in(self._env)
            if g.free_symbols and g.free_symbols <= known
        ]
        return [ranges, sorted(set(guards))]

    def _tree(self, e: Any) -> object:
        if e.is_Symbol:
            return ["s", self._numbers.setdefault(e, len(self._numbers))]
        if e.is_Integer:
            return int(e)
        if e is sympy.true or e is sympy.false:
            return bool(e)
        if e.is_Rational:
            return ["q", int(e.p), int(e.q)]
        if e.is_Float or not e.args:
            raise CaptureUnsupported(f"a size depends on a {type(e).__name__}")
        name = type(e).__name__
        args = [self._tree(a) for a in e.args]
        if name in _COMMUTATIVE:
            args.sort(key=msgpack.packb)
        return [name, *args]
