"""The border with sympy: torch's size expressions to `Expr`, symbols numbered by first use.

torch derives the names of its symbols from variable names; none of them may reach a key. Inside the
compiler there is no sympy: it is slow, and reading it back from text would need an evaluator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sympy
import torch

from fusec.errors import CaptureUnsupported
from fusec.ir import expr as ex
from fusec.ir.expr import Expr
from fusec.ir.graph import Graph, Node, ScalarType, SymbolRange, TensorType

# A dynamic whole number that is no size may be negative: the bounds of what a kernel can hold.
_LOWEST: Final = -(1 << 63)
_HIGHEST: Final = (1 << 63) - 1

RangeOf = Callable[[Any], "tuple[int | None, int | None]"]
"""Inclusive range that guards promise for a sympy symbol; None where there is no bound."""


def _comparison(op: str) -> Callable[[Expr, Expr], Expr]:
    return lambda a, b: ex.compare(op, a, b)


# Name of a sympy class, sympy's own or torch's -> the same as an Expr.
_FORMS: Final[Mapping[str, Callable[..., Expr]]] = {
    "Add": lambda *xs: ex.total(xs),
    "Mul": lambda *xs: ex.product(xs),
    "FloorDiv": ex.floordiv,
    "CleanDiv": ex.floordiv,
    "CeilDiv": lambda a, b: -((-a) // b),
    "Mod": ex.mod,
    "PythonMod": ex.mod,
    "ModularIndexing": lambda base, divisor, modulus: (base // divisor) % modulus,
    "Max": ex.maximum,
    "Min": ex.minimum,
    "Identity": lambda x: x,
    "Where": lambda condition, yes, no: condition * yes + (1 - condition) * no,
    "Equality": _comparison("=="),
    "Unequality": _comparison("!="),
    "StrictLessThan": _comparison("<"),
    "LessThan": _comparison("<="),
    "StrictGreaterThan": _comparison(">"),
    "GreaterThan": _comparison(">="),
}
_MAX_POWER: Final = 16


class SymbolTable:
    """Numbers symbols s0, s1, … in the order in which they are first converted."""

    def __init__(self, range_of: RangeOf) -> None:
        self._range_of = range_of
        self._symbols: dict[Any, Expr] = {}
        self._ranges: list[SymbolRange] = []

    @property
    def ranges(self) -> tuple[SymbolRange, ...]:
        """Declared symbols in order of their number."""
        return tuple(self._ranges)

    def number_plain(self, values: Sequence[Any]) -> None:
        """Number the symbols that stand alone among `values`, in order.

        Done for all inputs before any sum is converted: sympy orders the terms of a sum by name.
        """
        for value in values:
            e = sympy_of(value)
            if e is not None and e.is_Symbol:
                self._symbol(e)

    def to_expr(self, value: Any) -> Expr:
        """Convert an int, a SymInt or SymBool, or a sympy expression.

        Raises CaptureUnsupported for an expression that has no whole-number form here.
        """
        e = sympy_of(value)
        return ex.integer(int(value)) if e is None else self._convert(e)

    def _convert(self, e: Any) -> Expr:
        if e.is_Symbol:
            return self._symbol(e)
        if e.is_Integer:
            return ex.integer(int(e))
        if e is sympy.true or e is sympy.false:
            return ex.integer(int(e is sympy.true))
        name = type(e).__name__
        if name in ("Pow", "PowByNatural"):
            base, exponent = e.args
            if exponent.is_Integer and 0 <= int(exponent) <= _MAX_POWER:
                return ex.product([self._convert(base)] * int(exponent))
        form = _FORMS.get(name)
        if form is None:
            raise CaptureUnsupported(f"a size is given by a {name}, which has no whole-number form")
        try:
            return form(*(self._convert(a) for a in e.args))
        except ZeroDivisionError as error:
            raise CaptureUnsupported(f"a size divides by zero: {error}") from error

    def _symbol(self, e: Any) -> Expr:
        known = self._symbols.get(e)
        if known is not None:
            return known
        if not e.is_integer:
            raise CaptureUnsupported("a size depends on a symbolic float")
        low, high = self._range_of(e)
        lower = _LOWEST if low is None or low < _LOWEST else low
        upper = None if high is None or high > _HIGHEST else high
        name = f"s{len(self._ranges)}"
        made = ex.symbol(name, lower)
        self._symbols[e] = made
        self._ranges.append(SymbolRange(name, lower, upper))
        return made


def sympy_of(value: Any) -> Any:
    """The sympy expression of a symbolic number or of itself; None for a plain number."""
    if isinstance(value, (torch.SymInt, torch.SymBool, torch.SymFloat)):
        return value.node.expr
    if isinstance(value, (bool, int, float)):
        return None
    return value


@dataclass(frozen=True)
class Binding:
    """How one symbol is read off a call's inputs.

    position: of the input; axis: of its size or stride, None for an input that is a number;
    symbol = (what is read - constant) / coefficient.
    """

    symbol: str
    position: int
    field: str  # "value", "size" or "stride"
    axis: int
    coefficient: int
    constant: int

    def read(self, inputs: Sequence[Any]) -> int:
        value = inputs[self.position]
        if self.field == "size":
            value = value.shape[self.axis]
        elif self.field == "stride":
            value = value.stride(self.axis)
        return (int(value) - self.constant) // self.coefficient


def _slots(node: Node) -> Iterator[tuple[Expr, str, int]]:
    """Every expression that an input tells at call time, and where."""
    kind = node.type
    if isinstance(kind, ScalarType) and kind.kind == "int" and kind.value is not None:
        yield kind.value, "value", 0
    if isinstance(kind, TensorType):
        yield from ((size, "size", axis) for axis, size in enumerate(kind.shape))
        yield from ((stride, "stride", axis) for axis, stride in enumerate(kind.stride))


def bindings(graph: Graph) -> tuple[Binding, ...]:
    """How each declared symbol is read off the inputs.

    Raises CaptureUnsupported when a symbol is in no input alone or under one linear term.
    """
    found: dict[str, Binding] = {}
    for plain_only in (True, False):
        for position, index in enumerate(graph.inputs):
            for e, field, axis in _slots(graph.nodes[index]):
                const, terms = ex.linear_terms(e)
                if len(terms) != 1 or not isinstance(terms[0][0], ex.Sym):
                    continue
                if plain_only and (const, terms[0][1]) != (0, 1):
                    continue
                name = terms[0][0].name
                found.setdefault(name, Binding(name, position, field, axis, terms[0][1], const))
    missing = sorted({s.name for s in graph.symbols} - set(found))
    if missing:
        raise CaptureUnsupported(f"no input tells the value of the size {', '.join(missing)}")
    return tuple(found[s.name] for s in graph.symbols)


def read_symbols(rules: Sequence[Binding], inputs: Sequence[Any]) -> dict[str, int]:
    """The symbols' values for a call's inputs."""
    return {rule.symbol: rule.read(inputs) for rule in rules}
