"""The parser of the text form of graphs; `fusec.ir.text` describes it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeVar

from fusec.ir import expr as ex
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr
from fusec.ir.graph import (
    Arg,
    Attr,
    Graph,
    Node,
    Ref,
    ScalarType,
    Symbolic,
    SymbolRange,
    TensorType,
    ValueType,
)
from fusec.ir.text_expr import read_expr
from fusec.ir.text_strings import unquote
from fusec.ir.text_tokens import Reader
from fusec.ir.verify import verify_graph

_KEYWORDS: Final[dict[str, Arg]] = {
    "none": None,
    "true": True,
    "false": False,
}
_ATTR_KINDS: Final = ("dtype", "device", "layout", "memory_format")
_DEVICES: Final = ("cpu", "cuda", "meta")
_SCALARS: Final = ("int", "float", "bool")
_Item = TypeVar("_Item")


def parse_graph(text: str) -> Graph:
    """The graph that `format_graph` wrote.

    Raises ParseError with line and column, VerifyError for a graph that breaks its invariants.
    """
    return _Parser(text).graph()


class _Parser:
    def __init__(self, text: str) -> None:
        self.reader = Reader(text)
        self.symbols: dict[str, Expr] = {}

    def graph(self) -> Graph:
        reader = self.reader
        ranges: list[SymbolRange] = []
        while reader.at("symbol"):
            ranges.append(self._range())
        nodes: list[Node] = []
        while reader.at("%"):
            place = reader.next
            if self._ref().index != len(nodes):
                raise reader.error(f"expected node %{len(nodes)}", place)
            reader.expect("=")
            nodes.append(self._node())
        reader.expect("return")
        outputs: list[Arg] = []
        if reader.next.kind != "end":
            outputs.append(self._arg())
            while reader.skip(","):
                outputs.append(self._arg())
        reader.expect_end()
        graph = Graph(tuple(nodes), tuple(outputs), tuple(ranges))
        verify_graph(graph)
        return graph

    def _range(self) -> SymbolRange:
        reader = self.reader
        reader.expect("symbol")
        name = reader.expect_kind("name")
        if name.text in self.symbols or not name.text.isidentifier():
            raise reader.error("expected the name of a new symbol", name)
        reader.expect("in")
        reader.expect("[")
        lower = reader.integer()
        reader.expect(",")
        upper = None if reader.skip("inf") else reader.integer()
        reader.expect("]")
        self.symbols[name.text] = ex.symbol(name.text, lower)
        return SymbolRange(name.text, lower, upper)

    def _node(self) -> Node:
        reader = self.reader
        op = reader.expect_kind("name")
        if op.text not in ("input", "const", "call"):
            raise reader.error("expected input, const or call", op)
        target = reader.expect_kind("name").text if op.text == "call" else self._string()
        args: list[Arg] = []
        kwargs: list[tuple[str, Arg]] = []
        if reader.skip("(") and not reader.skip(")"):
            self._argument(args, kwargs)
            while reader.skip(","):
                self._argument(args, kwargs)
            reader.expect(")")
        made = self._type() if reader.skip(":") else None
        return Node(op.text, target, tuple(args), tuple(kwargs), made)

    def _argument(self, args: list[Arg], kwargs: list[tuple[str, Arg]]) -> None:
        reader = self.reader
        named = reader.next.kind in ("name", "string") and reader.peek().text == "="
        if named:
            name = self._name()
            reader.expect("=")
            kwargs.append((name, self._arg()))
        elif kwargs:
            raise reader.error("expected a keyword argument")
        else:
            args.append(self._arg())

    # -- types ------------------------------------------------------------------------------

    def _type(self) -> ValueType:
        if self.reader.at("("):
            return tuple(self._list("(", self._item_type, ")"))
        return self._item_type()

    def _item_type(self) -> TensorType | ScalarType | None:
        reader = self.reader
        name = reader.expect_kind("name")
        if name.text == "none":
            return None
        if name.text in DTYPES and reader.at("["):
            return self._tensor_type(name.text)
        if name.text in _SCALARS:
            if not reader.skip("("):
                return ScalarType(name.text)
            value = self._expr()
            reader.expect(")")
            return ScalarType(name.text, value)
        raise reader.error("expected a type", name)

    def _tensor_type(self, dtype: str) -> TensorType:
        reader = self.reader
        shape = tuple(self._list("[", self._expr, "]"))
        stride = ex.row_major(shape)
        if reader.skip("stride"):
            place = reader.next
            stride = tuple(self._list("[", self._expr, "]"))
            if len(stride) != len(shape):
                raise reader.error(f"expected {len(shape)} strides", place)
        device = "cpu"
        if reader.skip("@"):
            name = reader.expect_kind("name")
            if name.text not in _DEVICES:
                raise reader.error(f"expected one of {', '.join(_DEVICES)}", name)
            device = name.text
        offset: Expr | None = None
        if reader.skip("offset"):
            reader.expect("(")
            offset = self._expr()
            reader.expect(")")
        return TensorType(dtype, shape, stride, device, offset)

    # -- arguments --------------------------------------------------------------------------

    def _arg(self) -> Arg:
        reader = self.reader
        token = reader.next
        if token.kind == "string":
            return self._string()
        if reader.at("%"):
            return self._ref()
        if reader.at("["):
            reader.enter()
            items = tuple(self._list("[", self._arg, "]"))
            reader.leave()
            return items
        if reader.skip("<"):
            value = self._expr()
            reader.expect(">")
            return Symbolic(value)
        if token.kind == "number" or reader.at("-", "inf", "nan"):
            return self._number()
        if token.kind == "name":
            return self._word()
        raise reader.error("expected an argument")

    def _word(self) -> Arg:
        reader = self.reader
        word = reader.take()
        if word.text in _KEYWORDS:
            return _KEYWORDS[word.text]
        if word.text == "hex":
            digits = reader.expect_kind("string")
            try:
                return bytes.fromhex(digits.text[1:-1])
            except ValueError:
                raise reader.error("expected hexadecimal digits", digits) from None
        if word.text == "complex":
            reader.expect("(")
            real = self._float()
            reader.expect(",")
            imaginary = self._float()
            reader.expect(")")
            return complex(real, imaginary)
        if word.text in _ATTR_KINDS:
            reader.expect(":")
            return Attr(word.text, self._name())
        raise reader.error("expected an argument", word)

    def _number(self) -> int | float:
        reader = self.reader
        ahead = reader.peek() if reader.at("-") else reader.next
        whole = ahead.kind == "number" and ahead.text.isdecimal()
        return reader.integer() if whole else self._float()

    def _float(self) -> float:
        reader = self.reader
        negative = reader.skip("-")
        token = reader.take()
        if token.text == "nan" and reader.skip("("):
            bits = reader.expect_kind("number")
            reader.expect(")")
            if negative or len(bits.text) != 18 or not bits.text.startswith("0x"):
                raise reader.error("expected 16 hexadecimal digits", bits)
            return float(struct.unpack(">d", bytes.fromhex(bits.text[2:]))[0])
        decimal = token.kind == "number" and not token.text.startswith("0x")
        if not decimal and token.text not in ("inf", "nan"):
            raise reader.error("expected a number", token)
        return -float(token.text) if negative else float(token.text)

    def _ref(self) -> Ref:
        self.reader.expect("%")
        place = self.reader.next
        if place.kind != "number":
            raise self.reader.error("expected the number of a node")
        return Ref(self.reader.integer())

    def _name(self) -> str:
        if self.reader.next.kind == "string":
            return self._string()
        return self.reader.expect_kind("name").text

    def _string(self) -> str:
        token = self.reader.expect_kind("string")
        try:
            return unquote(token.text)
        except ValueError as error:
            raise self.reader.error(f"{error}", token) from None

    def _expr(self) -> Expr:
        return read_expr(self.reader, self.symbols)

    def _list(self, opening: str, item: Callable[[], _Item], closing: str) -> list[_Item]:
        reader = self.reader
        reader.expect(opening)
        items: list[_Item] = []
        if not reader.skip(closing):
            items.append(item())
            while reader.skip(","):
                items.append(item())
            reader.expect(closing)
        return items
