"""The nodes of integer expressions: classes, interning, bounds, text.

Nothing here simplifies; `fusec.ir.expr` is the module to use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from fusec.ir.interning import Interning
from fusec.ir.remember import remember

_interned: Final[Interning[Expr]] = Interning()


class Expr:
    """An integer-valued expression. Do not construct directly; see the module docstring."""

    __slots__ = ("__weakref__", "_bounds", "_order", "key")
    key: tuple[object, ...]
    _order: tuple[object, ...]
    _bounds: Bounds | None

    if TYPE_CHECKING:  # what fusec.ir.expr_arithmetic attaches

        def __add__(self, other: ExprLike) -> Expr: ...
        def __radd__(self, other: ExprLike) -> Expr: ...
        def __sub__(self, other: ExprLike) -> Expr: ...
        def __rsub__(self, other: ExprLike) -> Expr: ...
        def __mul__(self, other: ExprLike) -> Expr: ...
        def __rmul__(self, other: ExprLike) -> Expr: ...
        def __floordiv__(self, other: ExprLike) -> Expr: ...
        def __mod__(self, other: ExprLike) -> Expr: ...
        def __neg__(self) -> Expr: ...

    def __repr__(self) -> str:
        return format_expr(self)

    def __reduce__(self) -> str:
        raise TypeError("expressions are serialised by fusec.ir.wire, never pickled")

    @property
    def order(self) -> tuple[object, ...]:
        """A sort key that depends on the structure alone, never on addresses or hash seeds."""
        return self._order


ExprLike: TypeAlias = "Expr | int"
Bounds: TypeAlias = "tuple[int | None, int | None]"


class Int(Expr):
    """An integer constant."""

    __slots__ = ("value",)
    value: int


class Sym(Expr):
    """A symbol. ``upper`` (exclusive) marks a loop axis: 0 <= symbol < upper. Without it the symbol
    is a size: at least ``lower``."""

    __slots__ = ("lower", "name", "upper")
    name: str
    upper: Expr | None
    lower: int


class Sum(Expr):
    """``const + Σ coefficient · atom``, atoms sorted by `order`, no coefficient zero."""

    __slots__ = ("const", "terms")
    const: int
    terms: tuple[tuple[Expr, int], ...]


class Product(Expr):
    """A product of two or more atoms (no constants), sorted by `order`."""

    __slots__ = ("factors",)
    factors: tuple[Expr, ...]


class Binary(Expr):
    """``//`` or ``%`` (floor semantics) or a comparison ``== != < <=`` (value 0 or 1)."""

    __slots__ = ("left", "op", "right")
    op: str
    left: Expr
    right: Expr


class Extremum(Expr):
    """``min`` or ``max`` of two or more expressions, sorted by `order`."""

    __slots__ = ("args", "op")
    op: str
    args: tuple[Expr, ...]


_RANK: Final = {Int: 0, Sym: 1, Product: 2, Binary: 3, Extremum: 4, Sum: 5}


def intern_node(
    cls: type[Expr], key: tuple[object, ...], order: tuple[object, ...], **fields: object
) -> Expr:
    """The one node with that key; threads that ask at the same time get the same."""
    found = _interned.get(key)
    if found is not None:
        return found
    node = object.__new__(cls)
    node.key = key
    node._order = (_RANK[cls], *order)
    node._bounds = None
    for name, value in fields.items():
        setattr(node, name, value)
    return _interned.add(key, node)


@remember
def integer(value: int) -> Expr:
    return intern_node(Int, ("int", value), (value,), value=value)


def symbol(name: str, lower: int = 0) -> Expr:
    """A size symbol: an integer not below ``lower``."""
    return intern_node(Sym, ("sym", name, lower), (name,), name=name, upper=None, lower=lower)


@remember
def axis(name: str, upper: ExprLike) -> Expr:
    """A loop axis: 0 <= axis < upper."""
    bound = expr(upper)
    return intern_node(
        Sym, ("axis", name, bound), (name, bound.order), name=name, upper=bound, lower=0
    )


def expr(value: ExprLike) -> Expr:
    if isinstance(value, Expr):
        return value
    return integer(int(value))


ZERO: Final = integer(0)
ONE: Final = integer(1)


def is_int(e: Expr) -> bool:
    return isinstance(e, Int)


def as_int(e: Expr) -> int | None:
    """The value of a constant expression, else None."""
    return e.value if isinstance(e, Int) else None


def linear_terms(e: Expr) -> tuple[int, tuple[tuple[Expr, int], ...]]:
    """``(constant, ((atom, coefficient), …))`` of any expression."""
    if isinstance(e, Int):
        return e.value, ()
    if isinstance(e, Sum):
        return e.const, e.terms
    return 0, ((e, 1),)


def binary(op: str, left: Expr, right: Expr) -> Expr:
    """The node as it is, not simplified."""
    return intern_node(
        Binary, (op, left, right), (op, left.order, right.order), op=op, left=left, right=right
    )


COMPARISONS: Final[dict[str, Callable[[int, int], bool]]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
}


def bounds(e: Expr) -> Bounds:
    """Inclusive ``(low, high)``; None where unbounded or unknown."""
    if e._bounds is None:
        e._bounds = _bounds(e)
    return e._bounds


def _bounds(e: Expr) -> Bounds:
    if isinstance(e, Int):
        return e.value, e.value
    if isinstance(e, Sym):
        if e.upper is None:
            return e.lower, None
        high = bounds(e.upper)[1]
        return 0, None if high is None else max(high - 1, 0)
    if isinstance(e, Sum):
        low: int | None = e.const
        high = e.const
        for atom, coefficient in e.terms:
            a_low, a_high = bounds(atom)
            if coefficient < 0:
                a_low, a_high = a_high, a_low
            low = None if low is None or a_low is None else low + coefficient * a_low
            high = None if high is None or a_high is None else high + coefficient * a_high
        return low, high
    if isinstance(e, Product):
        low, high = 1, 1
        for factor in e.factors:
            f_low, f_high = bounds(factor)
            if f_low is None or f_low < 0:
                return None, None
            low = low * f_low
            high = None if high is None or f_high is None else high * f_high
        return low, high
    if isinstance(e, Binary):
        return _binary_bounds(e)
    assert isinstance(e, Extremum)
    pairs = [bounds(a) for a in e.args]
    lows = [p[0] for p in pairs if p[0] is not None]
    highs = [p[1] for p in pairs if p[1] is not None]
    whole = len(pairs)
    if e.op == "min":
        return (min(lows) if len(lows) == whole else None), (min(highs) if highs else None)
    return (max(lows) if lows else None), (max(highs) if len(highs) == whole else None)


def _binary_bounds(e: Binary) -> Bounds:
    if e.op in COMPARISONS:
        return 0, 1
    low, high = bounds(e.left)
    divisor = as_int(e.right)
    if e.op == "%":
        if divisor is not None and divisor > 0:
            top = divisor - 1
            return 0, top if low is None or low < 0 or high is None else min(top, high)
        right_low, right_high = bounds(e.right)
        if right_low is not None and right_low >= 0:
            return 0, None if right_high is None else max(right_high - 1, 0)
        return None, None
    if divisor is not None and divisor > 0:
        return (None if low is None else low // divisor), (
            None if high is None else high // divisor
        )
    right_low = bounds(e.right)[0]
    if low is not None and low >= 0 and right_low is not None and right_low >= 1:
        return 0, high
    return None, None


def format_expr(e: Expr) -> str:
    """Infix text that `fusec.ir.text.parse_expr` reads back."""
    if isinstance(e, Int):
        return str(e.value)
    if isinstance(e, Sym):
        return e.name
    if isinstance(e, Sum):
        parts: list[str] = []
        for atom, coefficient in e.terms:
            body = _operand(atom)
            text = body if abs(coefficient) == 1 else f"{abs(coefficient)}*{body}"
            sign = "-" if coefficient < 0 else "+"
            parts.append(
                text
                if not parts and sign == "+"
                else f"-{text}"
                if not parts
                else f" {sign} {text}"
            )
        if e.const:
            parts.append(f" {'-' if e.const < 0 else '+'} {abs(e.const)}")
        return "".join(parts)
    if isinstance(e, Product):
        return "*".join(_operand(f) for f in e.factors)
    if isinstance(e, Binary):
        return f"{_operand(e.left)} {e.op} {_operand(e.right)}"
    assert isinstance(e, Extremum)
    return f"{e.op}({', '.join(format_expr(a) for a in e.args)})"


def _operand(e: Expr) -> str:
    text = format_expr(e)
    return (
        text
        if isinstance(e, (Sym, Extremum)) or (isinstance(e, Int) and e.value >= 0)
        else f"({text})"
    )
