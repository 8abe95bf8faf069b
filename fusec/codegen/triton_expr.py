"""Index expressions as Triton text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from fusec.ir import expr as ex
from fusec.ir.expr import Expr, Sym
from fusec.ir.remember import remember

INT32: Final = (1 << 31) - 1
Name = Callable[[Sym], str]


def triton_expr(e: Expr, name: Name) -> str:
    """Text of an integer; ``name`` gives the text of a symbol. Comparisons count as 0 and 1."""
    return _sum(e, name) if isinstance(e, ex.Sum) else _atom(e, name)


def triton_operand(e: Expr, name: Name) -> str:
    """As `triton_expr`, but fit to stand beside ``+``."""
    if isinstance(e, ex.Sum) and len(e.terms) == 1 and not e.const and e.terms[0][1] > 0:
        return _sum(e, name)
    if isinstance(e, ex.Product):
        return _atom(e, name)[1:-1]
    return _atom(e, name)


def triton_condition(e: Expr, name: Name) -> str:
    """Text of a truth value: whether ``e`` is not zero. Fit to stand beside ``&``."""
    if isinstance(e, ex.Product) and all(_is_condition(f) for f in e.factors):
        return " & ".join(triton_condition(f, name) for f in e.factors)
    if isinstance(e, ex.Binary) and e.op in ex.COMPARISONS:
        return f"({triton_expr(e.left, name)} {e.op} {triton_expr(e.right, name)})"
    if isinstance(e, ex.Extremum) and all(_is_condition(a) for a in e.args):
        symbol = "&" if e.op == "min" else "|"
        return "(" + f" {symbol} ".join(triton_condition(a, name) for a in e.args) + ")"
    return f"({triton_expr(e, name)} != 0)"


@remember
def is_wide(e: Expr) -> bool:
    """Whether any step of computing ``e`` can leave 32 bits."""
    low, high = ex.bounds(e)
    if low is None or high is None or low < -INT32 or high > INT32:
        return True
    if isinstance(e, ex.Sum):
        reach = abs(e.const)
        for atom, coefficient in e.terms:
            a_low, a_high = ex.bounds(atom)
            assert a_low is not None
            assert a_high is not None
            reach += abs(coefficient) * max(abs(a_low), abs(a_high))
        if reach > INT32:
            return True
    return any(is_wide(c) for c in ex.children(e))


def reaches(e: Expr) -> Iterator[Expr]:
    """Bounds, over the sizes of a call, of every step of computing ``e`` that may leave 32 bits."""
    if is_wide(e):
        if not isinstance(e, ex.Binary):  # a quotient or a remainder is no more than what it is of
            yield _magnitude(e)
        for c in ex.children(e):
            yield from reaches(c)


def _magnitude(e: Expr) -> Expr:
    """A bound of ``e`` and, for a sum or a product, of all parts of it; not below 0."""
    low, high = ex.bounds(e)
    if isinstance(e, ex.Sum):
        return ex.total(
            [ex.integer(abs(e.const)), *(_magnitude(atom) * abs(c) for atom, c in e.terms)]
        )
    if isinstance(e, ex.Product):
        return ex.product(_magnitude(f) for f in e.factors)
    if low is not None and high is not None:
        return ex.integer(max(abs(low), abs(high)))
    if isinstance(e, ex.Sym):
        if e.upper is not None:
            return _magnitude(e.upper)
        return e if e.lower >= 0 else ex.maximum(e, -e)
    if isinstance(e, ex.Binary):
        if e.op == "%":
            return _magnitude(e.right)
        divisor = ex.as_int(e.right)
        left = _magnitude(e.left)
        return left if divisor is None else ex.floordiv(left, abs(divisor)) + 1
    assert isinstance(e, ex.Extremum)
    return ex.extremum("max", [_magnitude(a) for a in e.args])


def _is_condition(e: Expr) -> bool:
    return ex.bounds(e) in ((0, 1), (0, 0), (1, 1))


def _sum(e: ex.Sum, name: Name) -> str:
    text = ""
    for atom, coefficient in e.terms:
        factor = "" if abs(coefficient) == 1 else f"{abs(coefficient)} * "
        sign = "-" if coefficient < 0 else "+"
        part = f"{factor}{_atom(atom, name)}"
        text = f"{text} {sign} {part}" if text else part if sign == "+" else f"-{part}"
    return f"{text} {'-' if e.const < 0 else '+'} {abs(e.const)}" if e.const else text


def _atom(e: Expr, name: Name) -> str:
    """Text that can stand as an operand of any operator."""
    if isinstance(e, ex.Int):
        return str(e.value) if e.value >= 0 else f"({e.value})"
    if isinstance(e, ex.Sym):
        return name(e)
    if isinstance(e, ex.Sum):
        return f"({_sum(e, name)})"
    if isinstance(e, ex.Product):
        return "(" + " * ".join(_atom(f, name) for f in e.factors) + ")"
    if isinstance(e, ex.Binary):
        if e.op in ex.COMPARISONS:
            return f"tl.cast({triton_condition(e, name)}, tl.int32)"
        left, right = _atom(e.left, name), _atom(e.right, name)
        low = ex.bounds(e.left)[0]
        divisor = ex.as_int(e.right)
        if low is not None and low >= 0 and (divisor is None or divisor > 0):
            return f"({left} {e.op} {right})"
        return f"{'floor_divide' if e.op == '//' else 'floor_modulo'}({left}, {right})"
    assert isinstance(e, ex.Extremum)
    text = triton_expr(e.args[0], name)
    for arg in e.args[1:]:
        text = f"tl.{e.op}imum({text}, {triton_expr(arg, name)})"
    return text
