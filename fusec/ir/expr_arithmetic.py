"""Sums, products, floor division and remainders of expressions, simplified as they are built.

Sums are in the canonical form ``constant + Σ coefficient · atom``. The operators of `Expr` are
attached here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from fusec.ir.expr_node import (
    ONE,
    ZERO,
    Binary,
    Expr,
    ExprLike,
    Int,
    Product,
    Sum,
    Sym,
    as_int,
    binary,
    bounds,
    expr,
    integer,
    intern_node,
    linear_terms,
)
from fusec.ir.remember import remember


def from_terms(const: int, terms: Mapping[Expr, int]) -> Expr:
    kept = {a: c for a, c in terms.items() if c}
    _recombine(kept)
    extra = kept.pop(ZERO, None)
    assert extra is None
    nested = [a for a in kept if isinstance(a, (Sum, Int))]
    if nested:  # recombination can expose a sum: x//4*4 + x%4 with x a sum
        flat: dict[Expr, int] = {}
        total = const
        for atom, coefficient in kept.items():
            inner_const, inner = linear_terms(atom)
            total += coefficient * inner_const
            for a, c in inner:
                flat[a] = flat.get(a, 0) + coefficient * c
        return from_terms(total, flat)
    if not kept:
        return integer(const)
    ordered = tuple(sorted(kept.items(), key=lambda item: item[0].order))
    if const == 0 and len(ordered) == 1 and ordered[0][1] == 1:
        return ordered[0][0]
    return _sum(const, ordered)


def _recombine(terms: dict[Expr, int]) -> None:
    """``d·(x // d) + x % d`` → ``x``, in place."""
    for atom in [a for a in terms if isinstance(a, Binary) and a.op == "%"]:
        assert isinstance(atom, Binary)
        coefficient = terms.get(atom, 0)
        divisor = as_int(atom.right)
        if not coefficient or divisor is None:
            continue
        quotient = floordiv(atom.left, divisor)
        if isinstance(quotient, (Int, Sum)) or terms.get(quotient) != coefficient * divisor:
            continue
        del terms[atom], terms[quotient]
        terms[atom.left] = terms.get(atom.left, 0) + coefficient


@remember
def add(left: ExprLike, right: ExprLike) -> Expr:
    a, b = expr(left), expr(right)
    if a is ZERO:
        return b
    if b is ZERO:
        return a
    const_a, terms_a = linear_terms(a)
    const_b, terms_b = linear_terms(b)
    merged = dict(terms_a)
    for atom, coefficient in terms_b:
        merged[atom] = merged.get(atom, 0) + coefficient
    return from_terms(const_a + const_b, merged)


def total(values: Iterable[ExprLike]) -> Expr:
    result: Expr = ZERO
    for value in values:
        result = add(result, value)
    return result


def product(values: Iterable[ExprLike]) -> Expr:
    result: Expr = ONE
    for value in values:
        result = mul(result, value)
    return result


def _times(a: Expr, b: Expr) -> Expr:
    """The product of two atoms."""
    factors: list[Expr] = []
    for e in (a, b):
        factors.extend(e.factors if isinstance(e, Product) else (e,))
    factors.sort(key=lambda f: f.order)
    return intern_node(
        Product,
        ("mul", tuple(factors)),
        (len(factors), tuple(f.order for f in factors)),
        factors=tuple(factors),
    )


def _scaled(e: Expr, factor: int) -> Expr:
    """``factor · e``: the order of the terms stays, and nothing new can be combined."""
    if factor == 0:
        return ZERO
    const, terms = linear_terms(e)
    if not terms:
        return integer(const * factor)
    scaled = tuple((a, c * factor) for a, c in terms)
    if const == 0 and len(scaled) == 1 and scaled[0][1] == 1:
        return scaled[0][0]
    return _sum(const * factor, scaled)


def _sum(const: int, terms: tuple[tuple[Expr, int], ...]) -> Expr:
    """A sum of terms that are sorted and combined already."""
    order = (len(terms), tuple((a.order, c) for a, c in terms), const)
    return intern_node(Sum, ("sum", const, terms), order, const=const, terms=terms)


@remember
def mul(left: ExprLike, right: ExprLike) -> Expr:
    a, b = expr(left), expr(right)
    if a is ONE:
        return b
    if b is ONE:
        return a
    if isinstance(a, Int):
        return _scaled(b, a.value)
    if isinstance(b, Int):
        return _scaled(a, b.value)
    const_a, terms_a = linear_terms(a)
    const_b, terms_b = linear_terms(b)
    merged: dict[Expr, int] = {}

    def put(atom: Expr, coefficient: int) -> None:
        merged[atom] = merged.get(atom, 0) + coefficient

    for atom, coefficient in terms_a:
        put(atom, coefficient * const_b)
    for atom, coefficient in terms_b:
        put(atom, coefficient * const_a)
    for atom_a, c_a in terms_a:
        for atom_b, c_b in terms_b:
            put(_times(atom_a, atom_b), c_a * c_b)
    return from_terms(const_a * const_b, merged)


def _divisible(atom: Expr, coefficient: int, divisor: Expr) -> tuple[Expr, int] | None:
    """``coefficient · atom / divisor`` as (atom, coefficient) where it is exact."""
    value = as_int(divisor)
    if value is not None:
        return (atom, coefficient // value) if coefficient % value == 0 else None
    divisor_const, divisor_terms = linear_terms(divisor)
    if divisor_const or len(divisor_terms) != 1:
        return None
    div_atom, div_coefficient = divisor_terms[0]
    if coefficient % div_coefficient:
        return None
    have = list(atom.factors) if isinstance(atom, Product) else [atom]
    for factor in div_atom.factors if isinstance(div_atom, Product) else (div_atom,):
        if factor not in have:
            return None
        have.remove(factor)
    rest = product(have)
    return rest, coefficient // div_coefficient


def _split(e: Expr, divisor: Expr) -> tuple[Expr, Expr]:
    """``(quotient, rest)`` with ``e == divisor · quotient + rest``, taking only exact terms."""
    const, terms = linear_terms(e)
    value = as_int(divisor)
    quotient: Expr = ZERO
    rest: dict[Expr, int] = {}
    rest_const = const
    if value is not None:
        quotient = integer(const // value)
        rest_const = const % value
    for atom, coefficient in terms:
        exact = _divisible(atom, coefficient, divisor)
        if exact is None:
            rest[atom] = coefficient
        else:
            quotient = add(quotient, mul(exact[0], exact[1]))
    return quotient, from_terms(rest_const, rest)


def below(e: Expr, limit: Expr) -> bool:
    """True when ``0 <= e < limit`` is certain."""
    low, high = bounds(e)
    if low is None or low < 0:
        return False
    least = bounds(limit)[0]
    if high is not None and least is not None and high < least:
        return True
    return isinstance(e, Sym) and e.upper is limit


def _gcd_reduce(e: Expr, divisor: int) -> tuple[int, Expr, int] | None:
    """``(g, x, r)`` with ``e == g·x + r``, g | divisor, 0 <= r < g, g > 1."""
    const, terms = linear_terms(e)
    g = divisor
    for _, coefficient in terms:
        g = _gcd(g, abs(coefficient))
    if g <= 1:
        return None
    rest = const % g
    return g, from_terms((const - rest) // g, {a: c // g for a, c in terms}), rest


def _gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a


@remember
def floordiv(left: ExprLike, right: ExprLike) -> Expr:
    """Floor division. Raises ZeroDivisionError for a constant zero divisor."""
    a, b = expr(left), expr(right)
    if b is ONE:
        return a
    if b is ZERO:
        raise ZeroDivisionError(f"division of {a} by zero")
    va, vb = as_int(a), as_int(b)
    if va is not None and vb is not None:
        return integer(va // vb)
    if a is ZERO:
        return ZERO
    if vb is not None and vb < 0:
        return binary("//", a, b)
    quotient, rest = _split(a, b)
    if below(rest, b):
        return quotient
    if quotient is not ZERO:
        return add(quotient, floordiv(rest, b))
    if vb is not None:
        reduced = _gcd_reduce(rest, vb)
        if reduced is not None:
            g, inner, _ = reduced
            return floordiv(inner, vb // g)
        if isinstance(rest, Binary) and rest.op == "//":
            inner_divisor = as_int(rest.right)
            if inner_divisor is not None and inner_divisor > 0:
                return floordiv(rest.left, inner_divisor * vb)
    return binary("//", rest, b)


@remember
def mod(left: ExprLike, right: ExprLike) -> Expr:
    """The remainder of floor division: for a positive divisor, in [0, divisor)."""
    a, b = expr(left), expr(right)
    if b is ZERO:
        raise ZeroDivisionError(f"remainder of {a} by zero")
    if b is ONE:
        return ZERO
    va, vb = as_int(a), as_int(b)
    if va is not None and vb is not None:
        return integer(va % vb)
    if vb is not None and vb < 0:
        return binary("%", a, b)
    _, rest = _split(a, b)
    if rest is ZERO or below(rest, b):
        return rest
    if vb is not None:
        reduced = _gcd_reduce(rest, vb)
        if reduced is not None:
            g, inner, remainder = reduced
            return add(mul(g, mod(inner, vb // g)), remainder)
        if isinstance(rest, Binary) and rest.op == "%":
            inner_divisor = as_int(rest.right)
            if inner_divisor is not None and inner_divisor % vb == 0:
                return mod(rest.left, vb)
    return binary("%", rest, b)


_OPERATORS: Final[dict[str, Callable[..., Expr]]] = {
    "__add__": add,
    "__radd__": lambda self, other: add(other, self),
    "__sub__": lambda self, other: add(self, mul(-1, other)),
    "__rsub__": lambda self, other: add(other, mul(-1, self)),
    "__mul__": mul,
    "__rmul__": lambda self, other: mul(other, self),
    "__floordiv__": floordiv,
    "__mod__": mod,
    "__neg__": lambda self: mul(-1, self),
}
for _name, _function in _OPERATORS.items():
    setattr(Expr, _name, _function)
