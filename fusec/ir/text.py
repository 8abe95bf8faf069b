"""Graphs as text that parses back: for golden files, bug reports and tests.

::

    symbol s0 in [2, 1024]
    %0 = input "x": f32[s0, 4]
    %1 = const "table"(hex "0000803f"): f32[1]
    %2 = call aten.add.Tensor(%0, %1, alpha=2): f32[s0, 4] stride [1, s0]
    return %2, <s0 + 1>

A type is ``dtype[sizes]``, then ``stride [...]`` unless it is row-major, ``@device`` unless it is
the CPU, ``offset (...)`` where there is one. ``<...>`` is a symbolic number, ``dtype:f32`` an
enumeration. Floats always hold a point, an exponent, ``inf`` or ``nan``. The wire bytes of what
`parse_graph` reads are those of what `format_graph` wrote.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from typing import Final

from fusec.ir import expr as ex
from fusec.ir.expr import Expr, format_expr
from fusec.ir.graph import (
    Arg,
    Attr,
    Graph,
    Node,
    Ref,
    ScalarType,
    Symbolic,
    SymbolRange,
    ValueType,
)
from fusec.ir.text_expr import parse_expr
from fusec.ir.text_parser import parse_graph
from fusec.ir.text_strings import quote

__all__ = ["format_arg", "format_graph", "format_node", "format_type", "parse_expr", "parse_graph"]

_NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def format_graph(graph: Graph) -> str:
    """The graph as text, one line a node; see the module docstring."""
    lines = [_format_range(s) for s in graph.symbols]
    lines += [f"%{i} = {format_node(node)}" for i, node in enumerate(graph.nodes)]
    lines.append(" ".join(["return", ", ".join(format_arg(o) for o in graph.outputs)]).rstrip())
    return "\n".join(lines) + "\n"


def _format_range(s: SymbolRange) -> str:
    return f"symbol {s.name} in [{s.lower}, {'inf' if s.upper is None else s.upper}]"


def format_node(node: Node) -> str:
    """One node without its number."""
    parts = [format_arg(a) for a in node.args]
    parts += [f"{_name(k)}={format_arg(v)}" for k, v in node.kwargs]
    target = node.target if node.op == "call" else quote(node.target)
    args = f"({', '.join(parts)})" if parts or node.op == "call" else ""
    shown = "" if node.type is None else f": {format_type(node.type)}"
    return f"{node.op} {target}{args}{shown}"


def format_type(t: ValueType) -> str:
    """A value's type."""
    if t is None:
        return "none"
    if isinstance(t, tuple):
        return f"({', '.join(format_type(item) for item in t)})"
    if isinstance(t, ScalarType):
        return t.kind if t.value is None else f"{t.kind}({format_expr(t.value)})"
    text = f"{t.dtype}[{_exprs(t.shape)}]"
    if t.stride != ex.row_major(t.shape):
        text += f" stride [{_exprs(t.stride)}]"
    if t.device != "cpu":
        text += f" @{t.device}"
    if t.offset is not None:
        text += f" offset ({format_expr(t.offset)})"
    return text


def format_arg(arg: Arg) -> str:
    """An argument of a node."""
    if arg is None:
        return "none"
    if isinstance(arg, bool):
        return "true" if arg else "false"
    if isinstance(arg, int):
        return str(arg)
    if isinstance(arg, float):
        return _float(arg)
    if isinstance(arg, complex):
        return f"complex({_float(arg.real)}, {_float(arg.imag)})"
    if isinstance(arg, str):
        return quote(arg)
    if isinstance(arg, bytes):
        return f'hex "{arg.hex()}"'
    if isinstance(arg, Ref):
        return f"%{arg.index}"
    if isinstance(arg, Symbolic):
        return f"<{format_expr(arg.value)}>"
    if isinstance(arg, Attr):
        return f"{arg.kind}:{_name(arg.name)}"
    return f"[{', '.join(format_arg(a) for a in arg)}]"


def _float(value: float) -> str:
    if math.isnan(value):
        bits = struct.pack(">d", value)
        return "nan" if bits == struct.pack(">d", math.nan) else f"nan(0x{bits.hex()})"
    return repr(value)


def _exprs(items: Sequence[Expr]) -> str:
    return ", ".join(format_expr(e) for e in items)


def _name(name: str) -> str:
    return name if _NAME.fullmatch(name) else quote(name)
