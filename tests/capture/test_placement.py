"""Graphs of a GPU compute on the GPU: what was on the CPU is moved, or the graph is refused."""

from __future__ import annotations

import pytest

from fusec.capture.placement import place
from fusec.errors import CaptureUnsupported, VerifyError
from fusec.ir import expr as ex
from fusec.ir.graph import Attr, Graph, Node, Ref, TensorType
from fusec.ir.verify import verify_graph
from fusec.ir.verify_device import device_of, devices_of, verify_device
from fusec.lower.lowering import lower


def tensor(*shape: int, device: str = "cuda", dtype: str = "f32") -> TensorType:
    sizes = [ex.integer(n) for n in shape]
    steps, step = [], 1
    for n in reversed(shape):
        steps.insert(0, ex.integer(step))
        step *= n
    return TensorType(dtype, tuple(sizes), tuple(steps), device)


def given(*shape: int, device: str = "cuda") -> Node:
    return Node("input", "", type=tensor(*shape, device=device))


def call(target: str, *args: object, type: TensorType, **kwargs: object) -> Node:
    return Node("call", target, args, tuple(kwargs.items()), type)  # type: ignore[arg-type]


def placed(*nodes: Node, outputs: tuple[int, ...]) -> Graph:
    graph, sources = place(Graph(nodes, tuple(Ref(o) for o in outputs)))
    assert len(sources) == len(graph.nodes)
    verify_graph(graph)
    verify_device(graph)
    lower(graph)
    return graph


CPU = Attr("device", "cpu")
CUDA = Attr("device", "cuda")
MUL, ADD, COPY = "aten.mul.Tensor", "aten.add.Tensor", "aten._to_copy.default"


def test_a_graph_of_one_device_is_left_alone() -> None:
    for device in ("cpu", "cuda"):
        x = given(4, device=device)
        graph = Graph((x, call(MUL, Ref(0), Ref(0), type=tensor(4, device=device))), (Ref(1),))
        assert place(graph) == (graph, (0, 1))
        assert device_of(graph) == device


def test_a_number_on_the_cpu_is_copied_once() -> None:
    graph = placed(
        given(4),
        given(device="cpu"),
        call(MUL, Ref(0), Ref(1), type=tensor(4)),
        call(ADD, Ref(2), Ref(1), type=tensor(4)),
        outputs=(3,),
    )
    assert [n.target for n in graph.nodes if n.op == "call"] == [COPY, MUL, ADD]


def test_a_constant_is_made_where_it_is_used() -> None:
    constant = Node("const", "", (b"\0\0\0\0",), type=tensor(device="cpu"))
    graph = placed(given(4), constant, call(MUL, Ref(0), Ref(1), type=tensor(4)), outputs=(2,))
    assert devices_of(graph.nodes[1].type) == {"cuda"}
    assert len(graph.nodes) == 3


def test_what_is_made_on_the_cpu_from_nothing_is_made_on_the_gpu() -> None:
    on_cpu = tensor(4, device="cpu")
    graph = placed(
        given(4),
        call("aten.full.default", (4,), 2.0, type=on_cpu),
        call("aten.exp.default", Ref(1), type=on_cpu),
        call(COPY, Ref(2), type=tensor(4), device=CUDA),
        call(MUL, Ref(0), Ref(3), type=tensor(4)),
        outputs=(4,),
    )
    assert graph.nodes[1].kwargs == (("device", CUDA),)
    assert all(devices_of(n.type) == {"cuda"} for n in graph.nodes)


def test_outputs_on_the_cpu_stay_there() -> None:
    graph = placed(
        given(4),
        given(4, device="cpu"),
        call(COPY, Ref(0), type=tensor(4, device="cpu"), device=CPU),
        call("aten.full.default", (4,), 2.0, type=tensor(4, device="cpu")),
        outputs=(1, 2, 3),
    )
    kinds = [graph.nodes[o.index].type for o in graph.outputs if isinstance(o, Ref)]
    assert [k.device for k in kinds if isinstance(k, TensorType)] == ["cpu"] * 3


def test_an_index_on_the_cpu_is_copied_over() -> None:
    index = Node("input", "", type=tensor(2, device="cpu", dtype="i64"))
    graph = placed(
        given(4),
        index,
        call("aten.index.Tensor", Ref(0), (Ref(1),), type=tensor(2)),
        outputs=(2,),
    )
    assert [n.target for n in graph.nodes if n.op == "call"] == [COPY, "aten.index.Tensor"]


@pytest.mark.parametrize(
    "node",
    [
        call(MUL, Ref(1), Ref(1), type=tensor(4, device="cpu")),
        call("aten.rand.default", (4,), type=tensor(4, device="cpu")),
        call("aten.copy_.default", Ref(1), Ref(0), type=tensor(4, device="cpu")),
        call("aten.copy_.default", Ref(2), Ref(2), type=tensor(device="cpu")),
    ],
)
def test_computation_on_the_cpu_is_refused(node: Node) -> None:
    inputs = (given(4), given(4, device="cpu"), given(device="cpu"))
    with pytest.raises(CaptureUnsupported, match="CPU"):
        place(Graph((*inputs, node), (Ref(3),)))


def test_what_comes_back_from_the_gpu_is_not_computed_with() -> None:
    on_cpu = tensor(4, device="cpu")
    nodes = (given(4), call(COPY, Ref(0), type=on_cpu, device=CPU))
    with pytest.raises(CaptureUnsupported, match="CPU"):
        place(Graph((*nodes, call(MUL, Ref(1), Ref(1), type=on_cpu)), (Ref(2),)))


def test_some_input_says_which_gpu() -> None:
    made = call("aten.full.default", (4,), 2.0, type=tensor(4), device=CUDA)
    with pytest.raises(CaptureUnsupported, match="which GPU"):
        place(Graph((made,), (Ref(0),)))


def test_a_graph_from_elsewhere_that_mixes_devices_is_not_lowered() -> None:
    graph = Graph(
        (given(4), given(4, device="cpu"), call(MUL, Ref(0), Ref(1), type=tensor(4))), (Ref(2),)
    )
    with pytest.raises(VerifyError, match="a tensor on cpu"):
        lower(graph)
