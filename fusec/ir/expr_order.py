"""Comparisons, minima and maxima of expressions, decided where bounds allow."""

from __future__ import annotations

from collections.abc import Iterable

from fusec.ir.expr_arithmetic import below, from_terms, mul
from fusec.ir.expr_node import (
    COMPARISONS,
    ONE,
    ZERO,
    Expr,
    ExprLike,
    Extremum,
    as_int,
    binary,
    bounds,
    expr,
    integer,
    intern_node,
    linear_terms,
)
from fusec.ir.remember import remember


def extremum(op: str, values: Iterable[ExprLike]) -> Expr:
    flat: set[Expr] = set()
    const: int | None = None
    pick = min if op == "min" else max
    for value in values:
        e = expr(value)
        for part in e.args if isinstance(e, Extremum) and e.op == op else (e,):
            number = as_int(part)
            if number is None:
                flat.add(part)
            else:
                const = number if const is None else pick(const, number)
    if const is not None:
        # Drop what the constant decides: for max, a part that never exceeds it; or the constant
        # itself where one part always reaches it. For min the other way round.
        kept: set[Expr] = set()
        constant_needed = True
        for part in flat:
            low, high = bounds(part)
            reaches = (
                low is not None and low >= const
                if op == "max"
                else high is not None and high <= const
            )
            never = (
                high is not None and high <= const
                if op == "max"
                else low is not None and low >= const
            )
            if reaches:
                constant_needed = False
            if reaches or not never:
                kept.add(part)
        flat = kept
        if constant_needed or not flat:
            flat = flat | {integer(const)}
    args = tuple(sorted(flat, key=lambda e: e.order))
    if len(args) == 1:
        return args[0]
    return intern_node(Extremum, (op, args), (op, tuple(a.order for a in args)), op=op, args=args)


@remember
def minimum(*values: ExprLike) -> Expr:
    return extremum("min", values)


@remember
def maximum(*values: ExprLike) -> Expr:
    return extremum("max", values)


@remember
def compare(op: str, left: ExprLike, right: ExprLike) -> Expr:
    """A comparison (``== != < <= > >=``) with value 0 or 1, decided where bounds allow."""
    a, b = expr(left), expr(right)
    if op in (">", ">="):
        return compare("<" if op == ">" else "<=", b, a)
    difference = a - b
    value = as_int(difference)
    if value is not None:
        return integer(int(COMPARISONS[op](value, 0)))
    low, high = bounds(difference)
    if op in ("<", "<="):
        edge = 0 if op == "<" else 1
        if high is not None and high < edge:
            return ONE
        if low is not None and low >= edge:
            return ZERO
        if below(a, b):
            return ONE
        coarse = _coarsen(difference, op)
        if coarse is not None:
            return compare(op, coarse, 0)
    elif (low is not None and low > 0) or (high is not None and high < 0):
        return ONE if op == "!=" else ZERO
    return binary(op, a, b)


def _coarsen(difference: Expr, op: str) -> Expr | None:
    """``g·q + r < 0`` → ``q < 0`` and ``g·q - r <= 0`` → ``q <= 0``, where 0 <= r < g."""
    const, terms = linear_terms(difference)
    for g in sorted({abs(c) for _, c in terms if abs(c) > 1}, reverse=True):
        quotient = {a: c // g for a, c in terms if c % g == 0}
        rest = {a: c for a, c in terms if c % g}
        if not rest and const % g == 0:
            continue  # nothing but a common factor; leave the form alone
        if op == "<":
            r = from_terms(const % g, rest)
            q = from_terms(const // g, quotient)
        else:
            r = mul(-1, from_terms(-((-const) % g), rest))
            q = from_terms(-((-const) // g), quotient)
        if below(r, integer(g)):
            return q
    return None
