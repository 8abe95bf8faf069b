"""Graphs for the real compiler."""

from fusec.artifact.fingerprint import graph_fingerprint, toolchain
from fusec.ir.expr import integer
from fusec.ir.graph import Graph, Node, Ref, TensorType
from fusec.ir.wire import graph_to_bytes
from fusec.options import Options, Target
from fusec.remote.jobs import GraphJob

TARGET = Target("cpu", "x86-64-v3")


def real_job(rows: int) -> GraphJob:
    """x * tanh(x) over a (rows, 64) matrix: one kernel, and the runner."""
    kind = TensorType("f32", (integer(rows), integer(64)), (integer(64), integer(1)))
    graph = Graph(
        (
            Node("input", "x", type=kind),
            Node("call", "aten.tanh.default", (Ref(0),), type=kind),
            Node("call", "aten.mul.Tensor", (Ref(1), Ref(0)), type=kind),
        ),
        (Ref(2),),
    )
    data = graph_to_bytes(graph)
    return GraphJob(graph, data, graph_fingerprint(data, TARGET, Options(), toolchain()), TARGET)
