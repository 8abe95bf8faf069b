"""Models that ranks start: small real graphs for the real compiler, any number of them distinct."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.artifact.fingerprint import graph_fingerprint, toolchain
from fusec.codegen.isa import host_target
from fusec.ir.expr import integer
from fusec.ir.graph import Graph, Node, Ref, TensorType
from fusec.ir.wire import graph_to_bytes
from fusec.options import Options
from fusec.remote.jobs import GraphJob

_STEPS = ("aten.tanh.default", "aten.exp.default", "aten.sigmoid.default", "aten.cos.default")


@dataclass(frozen=True, slots=True)
class Model:
    """What one training job compiles: its graphs, forward before backward."""

    name: str
    jobs: tuple[GraphJob, ...]

    def keys(self) -> list[str]:
        """Of the artifacts, in the order of the graphs."""
        return [job.key for job in self.jobs]


def model(number: int, *, graphs: int = 2, kernels: int = 4) -> Model:
    """Model `number`: `graphs` graphs of `kernels` kernels each that no other number has."""
    jobs = tuple(_job(number * graphs + place, kernels) for place in range(graphs))
    return Model(f"model-{number}", jobs)


def _job(number: int, kernels: int) -> GraphJob:
    graph = _graph(rows=8 + number, kernels=kernels)
    data = graph_to_bytes(graph)
    target = host_target()
    made = graph_fingerprint(data, target, Options(), toolchain())
    return GraphJob(graph, data, made, target, f"graph {number}")


def _graph(rows: int, kernels: int) -> Graph:
    """A product, then pointwise work on it, again and again: each product parts two kernels.

    The kernels differ in how often they apply which function, and from other graphs' by their rows.
    """
    square = TensorType("f32", (integer(64), integer(64)), (integer(64), integer(1)))
    tall = TensorType("f32", (integer(rows), integer(64)), (integer(64), integer(1)))
    nodes = [Node("input", "x", type=tall), Node("input", "weight", type=square)]
    last = 0
    for number in range(kernels):
        nodes.append(Node("call", "aten.mm.default", (Ref(last), Ref(1)), type=tall))
        for step in range(number + 1):
            operator = _STEPS[(number + step) % len(_STEPS)]
            nodes.append(Node("call", operator, (Ref(len(nodes) - 1),), type=tall))
        last = len(nodes) - 1
    return Graph(tuple(nodes), (Ref(last),))
