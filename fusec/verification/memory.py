"""How much memory verifying a graph takes, told from its types before any is taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from fusec.capture.eager import last_uses
from fusec.ir import expr as ex
from fusec.ir.dtypes import DTYPES
from fusec.ir.graph import Graph, Node, TensorType, ValueType, refs
from fusec.ir.typical import typical_sizes

_WIDE: Final = {"float": 8, "complex": 16}


def needed_bytes(graph: Graph, *, exact: bool = True) -> int:
    """Most bytes of tensors at once: the inputs, in the graph's types and in float64, the results
    of three runs, and the values that live together in a float64 run. exact: whether there is one;
    without, all three runs are in the graph's types."""
    sizes = typical_sizes(graph.symbols)
    narrow = {i: _size(n, sizes, wide=False) for i, n in enumerate(graph.nodes)}
    wide = {i: _size(n, sizes, wide=exact) for i, n in enumerate(graph.nodes)}
    inputs = sum(narrow[i] + wide[i] for i in graph.inputs)
    kept = {ref for output in graph.outputs for ref in refs(output)}
    outputs = sum(2 * narrow[i] + 3 * wide[i] for i in kept)
    return inputs + outputs + _peak(graph, wide)


def _peak(graph: Graph, size: Mapping[int, int]) -> int:
    dying = last_uses(graph)
    live = most = 0
    for index, node in enumerate(graph.nodes):
        if node.op != "call":
            continue
        live += size[index]
        most = max(most, live)
        live -= sum(size[ref] for ref in dying.get(index, ()) if graph.nodes[ref].op == "call")
    return most


def _size(node: Node, sizes: Mapping[str, int], *, wide: bool) -> int:
    """Bytes of what a node makes; views count as if they were copies."""
    total = 0
    for kind in _tensors(node.type):
        count = 1
        for size in kind.shape:
            count *= ex.evaluate(size, sizes)
        element = DTYPES[kind.dtype]
        total += count * (_WIDE.get(element.kind, element.size) if wide else element.size)
    return total


def _tensors(kind: ValueType) -> Iterator[TensorType]:
    if isinstance(kind, TensorType):
        yield kind
    elif isinstance(kind, tuple):
        for item in kind:
            yield from _tensors(item)
