"""Expressions from the text that `fusec.ir.expr.format_expr` writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fusec.ir import expr as ex
from fusec.ir.expr import Expr
from fusec.ir.text_tokens import Reader, Token

_COMPARISONS: Final = ("==", "!=", "<=", "<")
_PRODUCTS: Final[dict[str, Callable[[Expr, Expr], Expr]]] = {
    "*": ex.mul,
    "//": ex.floordiv,
    "%": ex.mod,
}
_EXTREMA: Final[dict[str, Callable[..., Expr]]] = {"min": ex.minimum, "max": ex.maximum}


def parse_expr(text: str, symbols: Mapping[str, Expr] | None = None) -> Expr:
    """The expression; its names stand for ``symbols``, or for sizes where none are given.

    Raises ParseError with line and column.
    """
    reader = Reader(text)
    made = read_expr(reader, symbols)
    reader.expect_end()
    return made


def read_expr(reader: Reader, symbols: Mapping[str, Expr] | None) -> Expr:
    """One expression from where a reader stands. Raises ParseError."""
    reader.enter()
    left = _sum(reader, symbols)
    if reader.at(*_COMPARISONS):
        op = reader.take().text
        left = ex.compare(op, left, _sum(reader, symbols))
    reader.leave()
    return left


def _sum(reader: Reader, symbols: Mapping[str, Expr] | None) -> Expr:
    made = _product(reader, symbols)
    while reader.at("+", "-"):
        sign = reader.take().text
        right = _product(reader, symbols)
        made = made + right if sign == "+" else made - right
    return made


def _product(reader: Reader, symbols: Mapping[str, Expr] | None) -> Expr:
    negative = reader.skip("-")
    made = _operand(reader, symbols)
    while reader.at(*_PRODUCTS):
        sign = reader.take()
        right = _operand(reader, symbols)
        if right is ex.ZERO and sign.text != "*":
            raise reader.error("division by zero", sign)
        made = _PRODUCTS[sign.text](made, right)
    return -made if negative else made


def _operand(reader: Reader, symbols: Mapping[str, Expr] | None) -> Expr:
    if reader.skip("("):
        made = read_expr(reader, symbols)
        reader.expect(")")
        return made
    if reader.next.kind == "number":
        return ex.integer(reader.integer())
    token = reader.expect_kind("name")
    if token.text in _EXTREMA and reader.skip("("):
        parts = [read_expr(reader, symbols)]
        while reader.skip(","):
            parts.append(read_expr(reader, symbols))
        reader.expect(")")
        return _EXTREMA[token.text](*parts)
    return _symbol(reader, token, symbols)


def _symbol(reader: Reader, token: Token, symbols: Mapping[str, Expr] | None) -> Expr:
    if symbols is None and token.text.isidentifier():
        return ex.symbol(token.text)
    found = symbols.get(token.text) if symbols is not None else None
    if found is None:
        raise reader.error("an unknown symbol", token)
    return found
