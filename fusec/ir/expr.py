"""Integer expressions: sizes, strides and index arithmetic.

An `Expr` is immutable, interned (equal expressions are one object, so equality is identity) and
simplified when it is built. Sums are kept in the canonical form ``constant + Σ coefficient · atom``
where an atom is a symbol, a product, a floor division, a modulo, a minimum, a maximum or a
comparison. sympy stays at the border with torch: parsing and simplifying with it is slow.

Build expressions with the operators ``+ - * // %`` and with `minimum`, `maximum` and `compare`.

This module is the whole interface: nodes (`fusec.ir.expr_node`), arithmetic
(`fusec.ir.expr_arithmetic`), comparisons and extrema (`fusec.ir.expr_order`), and here what walks
over finished expressions.
"""

from __future__ import annotations

from collections.abc import Mapping

from fusec.ir.expr_arithmetic import (
    add,
    below,
    floordiv,
    from_terms,
    mod,
    mul,
    product,
    total,
)
from fusec.ir.expr_node import (
    COMPARISONS,
    ONE,
    ZERO,
    Binary,
    Bounds,
    Expr,
    ExprLike,
    Extremum,
    Int,
    Product,
    Sum,
    Sym,
    as_int,
    axis,
    bounds,
    expr,
    format_expr,
    integer,
    is_int,
    linear_terms,
    symbol,
)
from fusec.ir.expr_order import (
    compare,
    extremum,
    maximum,
    minimum,
)
from fusec.ir.remember import remember

__all__ = [
    "COMPARISONS",
    "ONE",
    "ZERO",
    "Binary",
    "Bounds",
    "Expr",
    "ExprLike",
    "Extremum",
    "Int",
    "Product",
    "Sum",
    "Sym",
    "add",
    "as_int",
    "axis",
    "below",
    "bounds",
    "children",
    "compare",
    "evaluate",
    "expr",
    "extremum",
    "floordiv",
    "format_expr",
    "from_terms",
    "integer",
    "is_int",
    "linear_terms",
    "maximum",
    "minimum",
    "mod",
    "mul",
    "product",
    "row_major",
    "step",
    "substitute",
    "substitute_all",
    "symbol",
    "symbols",
    "total",
]


@remember
def row_major(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Row-major strides in elements, as torch gives them (sizes below 1 count as 1)."""
    strides: list[Expr] = []
    step: Expr = ONE
    for size in reversed(shape):
        strides.append(step)
        step = step * maximum(size, 1)
    return tuple(reversed(strides))


def children(e: Expr) -> tuple[Expr, ...]:
    if isinstance(e, Sum):
        return tuple(atom for atom, _ in e.terms)
    if isinstance(e, Product):
        return e.factors
    if isinstance(e, Binary):
        return e.left, e.right
    if isinstance(e, Extremum):
        return e.args
    return ()


@remember
def symbols(e: Expr) -> tuple[Sym, ...]:
    """Every symbol of an expression, with repetitions, depth first."""
    found: list[Sym] = []
    stack = [e]
    while stack:
        node = stack.pop()
        if isinstance(node, Sym):
            found.append(node)
        stack.extend(reversed(children(node)))
    return tuple(found)


def step(e: Expr, axis: Sym) -> int | None:
    """How far a value moves where an axis moves by one: a constant, or None where it is not one."""
    if not any(s is axis for s in symbols(e)):
        return 0
    _, terms = linear_terms(e)
    if any(a is not axis and any(s is axis for s in symbols(a)) for a, _ in terms):
        return None
    return next((c for a, c in terms if a is axis), None)


def substitute(e: Expr, mapping: Mapping[Expr, Expr]) -> Expr:
    """Replace symbols (or whole atoms) and simplify again."""
    if not mapping:
        return e
    hit = mapping.get(e)
    if hit is not None:
        return hit
    if isinstance(e, (Int, Sym)):
        return e
    if isinstance(e, Sum):
        result = integer(e.const)
        for atom, coefficient in e.terms:
            result = add(result, mul(coefficient, substitute(atom, mapping)))
        return result
    if isinstance(e, Product):
        return product(substitute(f, mapping) for f in e.factors)
    if isinstance(e, Binary):
        left, right = substitute(e.left, mapping), substitute(e.right, mapping)
        if e.op == "//":
            return floordiv(left, right)
        if e.op == "%":
            return mod(left, right)
        return compare(e.op, left, right)
    assert isinstance(e, Extremum)
    return extremum(e.op, [substitute(a, mapping) for a in e.args])


@remember
def substitute_all(
    items: tuple[Expr, ...], mapping: tuple[tuple[Expr, Expr], ...]
) -> tuple[Expr, ...]:
    """`substitute` in each of the items; the mapping as pairs."""
    replaced = dict(mapping)
    return tuple(substitute(e, replaced) for e in items)


def evaluate(e: Expr, values: Mapping[str, int]) -> int:
    """The value of an expression with its symbols bound by name.

    Raises KeyError for an unbound symbol, ZeroDivisionError for a division by zero.
    """
    if isinstance(e, Int):
        return e.value
    if isinstance(e, Sym):
        return values[e.name]
    if isinstance(e, Sum):
        return e.const + sum(c * evaluate(a, values) for a, c in e.terms)
    if isinstance(e, Product):
        result = 1
        for factor in e.factors:
            result *= evaluate(factor, values)
        return result
    if isinstance(e, Binary):
        left, right = evaluate(e.left, values), evaluate(e.right, values)
        if e.op == "//":
            return left // right
        if e.op == "%":
            return left % right
        return int(COMPARISONS[e.op](left, right))
    assert isinstance(e, Extremum)
    pick = min if e.op == "min" else max
    return pick(evaluate(a, values) for a in e.args)
