"""Graphs compiled for this machine's CPU, and wrong programs under the right graph."""

from __future__ import annotations

from cache.artifacts import Found
from cache.memory import MemoryStore
from fusec.codegen.isa import host_target
from fusec.ir.graph import Graph
from fusec.ir.text import parse_graph
from fusec.options import Options
from fusec.pipeline import compile_local
from fusec.trace import Recorder

_STORE = MemoryStore()

SOFTMAX = """\
%0 = input "x": f32[64, 100]
%1 = call aten._softmax.default(%0, 1, false): f32[64, 100]
%2 = call aten.mul.Tensor(%1, %0): f32[64, 100]
return %2
"""
EMBEDDED = """\
%0 = input "w": f32[10, 32]
%1 = input "i": i64[7, 3]
%2 = call aten.embedding.default(%0, %1): f32[7, 3, 32]
%3 = call aten.exp.default(%2): f32[7, 3, 32]
return %3
"""


def compiled(text: str) -> tuple[Graph, Found]:
    """A graph and its artifact."""
    graph = parse_graph(text)
    options = Options(progress=False)
    return graph, compile_local(graph, host_target(), options, _STORE, recorder=Recorder())
