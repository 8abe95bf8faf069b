"""ATen graphs to our Graph: canonical form, what stays out, what is refused, and that it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from fusec.capture.aot import Traced, trace
from fusec.capture.eager import EagerProgram, constant, run_eager
from fusec.capture.export import export
from fusec.capture.operators import operator_of, target_of
from fusec.errors import CaptureUnsupported, LoadError
from fusec.ir import expr as ex
from fusec.ir.graph import Attr, Graph, Node, ScalarType, Symbolic, TensorType
from fusec.ir.wire import graph_from_bytes, graph_to_bytes
from fusec.trace import Recorder
from tests.capture.keys import Done


def traced(fn: Callable[..., Any], *args: Any, dynamic: bool | None = None) -> Traced:
    """AOTAutograd's graphs of a function."""
    kept: list[Traced] = []

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        kept.append(trace(gm, inputs, lambda g, role: Done(g), recorder=Recorder()))
        kept[-1].fill()
        return kept[-1].fn

    torch.compile(fn, backend=backend, dynamic=dynamic)(*args)
    return kept[-1]


def graph_of(fn: Callable[..., Any], *args: Any, dynamic: bool | None = None) -> Graph:
    """The first graph of a function: forward or inference. It survives its wire form."""
    graph = traced(fn, *args, dynamic=dynamic).parts[0].graph
    assert graph_from_bytes(graph_to_bytes(graph)) == graph
    return graph


def calls(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "call"]


X = torch.arange(12.0).reshape(3, 4)


def test_a_graph_runs_as_the_function_does() -> None:
    def f(x: Tensor) -> Tensor:
        return (x.softmax(-1) @ x.t()).relu().sum(0)

    (got,) = run_eager(graph_of(f, X), [X])
    torch.testing.assert_close(got, f(X))


def test_roles_of_the_parts() -> None:
    x = X.clone().requires_grad_()
    assert [p.role for p in traced(lambda x: x.sin(), x).parts] == ["forward", "backward"]
    torch._dynamo.reset()
    assert [p.role for p in traced(lambda x: x.sin(), X).parts] == ["inference"]


def export_call(target: Any, *args: Any, **kwargs: Any) -> Node:
    """The node of one ATen call; a tensor argument becomes an input."""
    graph = torch.fx.Graph()

    def put(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        node = graph.placeholder(f"x{len(graph.nodes)}")
        node.meta["val"] = value
        return node

    fx_args = tuple(put(a) for a in args)
    node = graph.call_function(target, fx_args, kwargs)
    node.meta["val"] = target(*args, **kwargs)
    graph.output((node,))
    return calls(export(torch.fx.GraphModule(nn.Module(), graph)).graph)[0]


aten = torch.ops.aten


def test_arguments_have_one_form() -> None:
    """By position or keyword, with a default written out or not: one graph."""
    forms = [
        export_call(aten.sum.dim_IntList, X, [1], True),
        export_call(aten.sum.dim_IntList, X, [1], keepdim=True),
        export_call(aten.sum.dim_IntList, X, (1,), keepdim=True, dtype=None),
    ]
    assert forms[0] == forms[1] == forms[2]
    assert export_call(aten.add.Tensor, X, X, alpha=1) == export_call(aten.add.Tensor, X, X)
    assert export_call(aten.add.Tensor, X, X, alpha=2).kwargs == (("alpha", 2),)
    dropped = export_call(aten.sum.dim_IntList, X, [1], False)
    assert dropped.args[1:] == ((1,),)


def test_a_default_of_another_type_is_kept() -> None:
    assert export_call(aten.add.Tensor, X, X, alpha=1.0).kwargs == (("alpha", 1.0),)


def test_enumerations_become_attributes() -> None:
    node = export_call(
        aten._to_copy.default, X, device=torch.device("cpu", 0), dtype=torch.bfloat16
    )
    assert dict(node.kwargs) == {"dtype": Attr("dtype", "bf16"), "device": Attr("device", "cpu")}
    clone = export_call(aten.clone.default, X, memory_format=torch.contiguous_format)
    assert dict(clone.kwargs) == {"memory_format": Attr("memory_format", "contiguous")}


def test_casts_have_one_form() -> None:
    node = export_call(torch.ops.prims.convert_element_type.default, X, torch.float64)
    assert node == export_call(aten._to_copy.default, X, dtype=torch.float64)


def test_sizes_become_expressions_and_their_arithmetic_vanishes() -> None:
    def f(x: Tensor) -> Tensor:
        return x.reshape(x.shape[0] * 2, -1) / x.shape[1]

    graph = graph_of(f, torch.ones(6, 8), dynamic=True)
    assert [n.target for n in calls(graph)] == ["aten.view.default", "aten.div.Tensor"]
    view, div = calls(graph)
    s0, s1 = (ex.symbol(s.name, s.lower) for s in graph.symbols)
    assert view.args[1] == (Symbolic(s0 * 2), -1)
    assert div.args[1] == Symbolic(s1)
    assert all(s.lower == 2 and s.upper is None for s in graph.symbols)


def test_a_graph_with_symbols_runs_at_other_sizes() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.cat([x, x * x.shape[0]]).sum(0) + torch.arange(x.shape[1])

    graph = graph_of(f, torch.ones(6, 8), dynamic=True)
    for shape in ((3, 5), (9, 2)):
        x = torch.randn(shape)
        inputs: list[Any] = [
            x if isinstance(node.type, TensorType) else 0
            for node in graph.nodes
            if node.op == "input"
        ]
        for i, index in enumerate(graph.inputs):
            kind = graph.nodes[index].type
            if isinstance(kind, ScalarType):
                first = graph.symbols[0].name
                inputs[i] = shape[0] if str(kind.value) == first else shape[1]
        (got,) = run_eager(graph, inputs)
        torch.testing.assert_close(got, f(x))


def test_float_arithmetic_on_sizes_stays() -> None:
    def f(x: Tensor) -> Tensor:
        return x * (x.shape[0] / 3) ** 0.5

    torch._dynamo.reset()
    x = torch.ones(6, 8)
    part = traced(f, x, dynamic=True)
    assert any(n.target.startswith("py.") for n in calls(part.parts[0].graph))


def test_small_constants_travel_and_are_hashed() -> None:
    def f(scale: float) -> Callable[[Tensor], Tensor]:
        return lambda x: x * torch.tensor([1.0, scale, 3.0, 4.0])

    first, second = graph_of(f(2.0), X), graph_of(f(5.0), X)
    assert graph_to_bytes(first) != graph_to_bytes(second)
    (node,) = (n for n in first.nodes if n.op == "const")
    torch.testing.assert_close(constant(node), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    (got,) = run_eager(first, [X])
    torch.testing.assert_close(got, f(2.0)(X))


def test_large_constants_stay_with_the_client() -> None:
    big = torch.randn(600_000)
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(600_000)
    attr = graph.get_attr("weight")
    attr.meta["val"] = big
    add = graph.call_function(aten.add.Tensor, (x, attr))
    add.meta["val"] = big
    graph.output((add,))
    root = nn.Module()
    root.register_buffer("weight", big)
    exported = export(torch.fx.GraphModule(root, graph))
    assert len(exported.graph.inputs) == 2
    assert len(graph_to_bytes(exported.graph)) < 10_000
    given = torch.ones(600_000)
    (got,) = EagerProgram(exported.graph, exported.constants)([given])
    torch.testing.assert_close(got, given + big)


def test_names_of_user_code_stay_out() -> None:
    class Secretive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.secret_weight = nn.Parameter(torch.ones(4))

        def forward(self, secret_input: Tensor) -> Tensor:
            secret_product = secret_input * self.secret_weight
            return secret_product.sin()

    part = traced(Secretive(), X)
    for p in part.parts:
        data = graph_to_bytes(p.graph)
        assert b"ecret" not in data
        assert b"test_export" not in data


def test_control_flow_is_refused_by_name() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    with torch.no_grad(), pytest.raises(Exception, match=r"sub-graph|higher-order") as caught:
        traced(f, X)
    assert "CaptureUnsupported" in repr(caught.value.__cause__ or caught.value)


def test_sizes_that_the_data_decides_are_refused() -> None:
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
        pytest.raises(Exception, match=r"no whole-number form|data|symbol|size"),
    ):
        traced(lambda x: x.nonzero() * 2, X)


@pytest.mark.parametrize(
    "target", ["aten.no_such.default", "aten.add.Nope", "os.system", "py.exec"]
)
def test_unknown_operators_are_refused(target: str) -> None:
    with pytest.raises(LoadError, match="no operator"):
        operator_of(target)


def test_names_of_operators_go_both_ways() -> None:
    convert = torch.ops.prims.convert_element_type.default
    for op in (aten.add.Tensor, aten.sum.dim_IntList, aten.__lshift__.Scalar, convert):
        name = target_of(op)
        assert name is not None
        assert operator_of(name) is op
    assert target_of(print) is None
    assert target_of([]) is None


def test_wrong_number_of_inputs_is_an_error() -> None:
    with pytest.raises(LoadError, match="1 inputs is called with 2"):
        run_eager(graph_of(lambda x: x.sin(), X), [X, X])


def test_a_program_clears_its_inputs() -> None:
    given: list[Any] = [X]
    EagerProgram(graph_of(lambda x: x.sin(), X))(given)
    assert given == []


def test_a_malformed_constant_is_refused() -> None:
    kind = TensorType("f32", (ex.integer(3),), (ex.ONE,))
    with pytest.raises(LoadError, match="does not fill"):
        constant(Node("const", "", (b"1234",), type=kind))


def test_sparse_inputs_are_refused() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.eye(3).to_sparse()
    graph.output((x,))
    with pytest.raises(CaptureUnsupported, match="layout"):
        export(torch.fx.GraphModule(nn.Module(), graph))


def test_additions_in_any_order_are_refused_where_results_must_repeat() -> None:
    mode = FakeTensorMode()
    graph = torch.fx.Graph()
    sources = []
    for shape, dtype in (((5, 3), torch.float32), ((4,), torch.int64), ((4, 3), torch.float32)):
        source = graph.placeholder(f"p{len(sources)}")
        memory = torch.empty(shape, dtype=dtype, device="meta")
        source.meta["val"] = FakeTensor(mode, memory, torch.device("cuda", 0))
        sources.append(source)
    x, i, u = sources
    added = graph.call_function(torch.ops.aten.index_add.default, (x, 0, i, u))
    added.meta["val"] = x.meta["val"]
    graph.output((added,))
    gm = torch.fx.GraphModule({}, graph)
    assert export(gm).graph.nodes[3].target == "aten.index_add.default"
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(CaptureUnsupported, match="any order"):
            export(gm)
    finally:
        torch.use_deterministic_algorithms(False)
