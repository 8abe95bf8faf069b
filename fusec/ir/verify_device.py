"""Where a graph's values live: on one device, but for transfers to and from the CPU.

A loop reads memory of the device that it runs on, so a computation that took a tensor of another
one would read anything. `fusec.capture.placement` makes graphs hold this; it is checked again
before they are lowered, since a graph may come from the wire.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fusec.errors import VerifyError
from fusec.ir.graph import Graph, Node, TensorType, ValueType, node_refs

TRANSFER: Final = "aten._to_copy.default"
"""The one operator that may read on one device and write on another."""


def devices_of(kind: ValueType) -> frozenset[str]:
    """The devices of a value's tensors: several for several outputs, none for a number."""
    items = kind if isinstance(kind, tuple) else (kind,)
    return frozenset(item.device for item in items if isinstance(item, TensorType))


def device_of(graph: Graph) -> str:
    """The device that a graph runs on: cuda as soon as one tensor is there, cpu for none."""
    found = frozenset[str]().union(*(devices_of(node.type) for node in graph.nodes))
    return "cuda" if "cuda" in found else "cpu"


def touched(graph: Graph, node: Node) -> Iterator[str]:
    """The devices of all that a call reads and makes."""
    yield from devices_of(node.type)
    for index in node_refs(node):
        yield from devices_of(graph.nodes[index].type)


def verify_device(graph: Graph) -> None:
    """Raise VerifyError for a call that computes on another device than its graph's."""
    device = device_of(graph)
    for index, node in enumerate(graph.nodes):
        if node.op != "call" or node.target == TRANSFER:
            continue
        for found in touched(graph, node):
            if found != device:
                raise VerifyError(
                    f"%{index} {node.target}: a tensor on {found} in a graph that runs on {device}"
                )
