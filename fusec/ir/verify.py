"""The verifier of graphs: run at every stage boundary that a graph crosses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from fusec.errors import VerifyError
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import symbols
from fusec.ir.graph import Graph, Node, ScalarType, TensorType, ValueType, node_refs, refs

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
    declared = {s.name for s in graph.symbols}
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
    for output in graph.outputs:
        for ref in refs(output):
            if ref >= len(graph.nodes):
                raise VerifyError(f"an output refers to %{ref}, which does not exist")


def _check_refs(node: Node, index: int, where: str) -> None:
    for ref in node_refs(node):
        if not 0 <= ref < index:
            raise VerifyError(f"{where}: refers to %{ref}, which is not before it")


def _check_type(leaf: TensorType | ScalarType, declared: set[str], where: str) -> None:
    if isinstance(leaf, ScalarType):
        used = list(symbols(leaf.value)) if leaf.value is not None else []
    else:
        if leaf.dtype not in DTYPES:
            raise VerifyError(f"{where}: unknown dtype {leaf.dtype!r}")
        if len(leaf.shape) != len(leaf.stride):
            raise VerifyError(f"{where}: {len(leaf.shape)} sizes but {len(leaf.stride)} strides")
        used = [s for e in (*leaf.shape, *leaf.stride) for s in symbols(e)]
    for symbol in used:
        if symbol.name not in declared:
            raise VerifyError(f"{where}: symbol {symbol.name} is not declared")
