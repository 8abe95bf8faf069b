"""The verifier of graphs: run at every stage boundary that a graph crosses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from fusec.errors import VerifyError
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr, symbols
from fusec.ir.graph import (
    Arg,
    Graph,
    Node,
    ScalarType,
    Symbolic,
    TensorType,
    ValueType,
    node_refs,
    refs,
)

_TARGET: Final = re.compile(r"[A-Za-z_][\w]*(\.[A-Za-z_][\w]*)+")


def _leaf_types(t: ValueType) -> Iterator[TensorType | ScalarType]:
    if isinstance(t, tuple):
        for item in t:
            if item is not None:
                yield item
    elif t is not None:
        yield t


def verify_graph(graph: Graph) -> None:
    """Check the invariants that `fusec.ir.graph` states. Raises VerifyError naming the node."""
    declared = {s.name: s.lower for s in graph.symbols}
    if len(declared) != len(graph.symbols):
        raise VerifyError("a size symbol is declared twice")
    for s in graph.symbols:
        if s.upper is not None and s.upper < s.lower:
            raise VerifyError(f"symbol {s.name} has no value: [{s.lower}, {s.upper}]")
    seen_call = False
    for index, node in enumerate(graph.nodes):
        where = f"%{index} {node.target}"
        if node.op not in ("input", "const", "call"):
            raise VerifyError(f"{where}: unknown kind of node {node.op!r}")
        if node.op == "input" and seen_call:
            raise VerifyError(f"{where}: an input comes after a call")
        seen_call = seen_call or node.op == "call"
        if node.op == "call" and not _TARGET.fullmatch(node.target):
            raise VerifyError(f"{where}: not a qualified operator name")
        if node.op == "const" and not (node.args and isinstance(node.args[0], bytes)):
            raise VerifyError(f"{where}: a constant without its bytes")
        _check_refs(node, index, where)
        for leaf in _leaf_types(node.type):
            _check_type(leaf, declared, where)
        for arg in (*node.args, *(value for _, value in node.kwargs)):
            _check_numbers(arg, declared, where)
    for output in graph.outputs:
        for ref in refs(output):
            if ref >= len(graph.nodes):
                raise VerifyError(f"an output refers to %{ref}, which does not exist")
        _check_numbers(output, declared, "an output")


def _check_refs(node: Node, index: int, where: str) -> None:
    for ref in node_refs(node):
        if not 0 <= ref < index:
            raise VerifyError(f"{where}: refers to %{ref}, which is not before it")


def _check_type(leaf: TensorType | ScalarType, declared: Mapping[str, int], where: str) -> None:
    if isinstance(leaf, ScalarType):
        used = () if leaf.value is None else (leaf.value,)
    else:
        if leaf.dtype not in DTYPES:
            raise VerifyError(f"{where}: unknown dtype {leaf.dtype!r}")
        if len(leaf.shape) != len(leaf.stride):
            raise VerifyError(f"{where}: {len(leaf.shape)} sizes but {len(leaf.stride)} strides")
        used = (*leaf.shape, *leaf.stride, *(() if leaf.offset is None else (leaf.offset,)))
    for e in used:
        _check_symbols(e, declared, where)


def _check_numbers(arg: Arg, declared: Mapping[str, int], where: str) -> None:
    if isinstance(arg, Symbolic):
        _check_symbols(arg.value, declared, where)
    elif isinstance(arg, tuple):
        for item in arg:
            _check_numbers(item, declared, where)


def _check_symbols(e: Expr, declared: Mapping[str, int], where: str) -> None:
    for symbol in symbols(e):
        if symbol.upper is not None:
            raise VerifyError(f"{where}: {symbol.name} is a loop axis")
        if declared.get(symbol.name) != symbol.lower:
            raise VerifyError(f"{where}: symbol {symbol.name} is not declared with that bound")
