"""ATen graphs of AOTAutograd to our Graph.

What must not reach a key is left out here: names, stack traces, device ordinals, torch's symbol
names. Whatever has no place in a Graph (sub-graphs of higher-order operators, generators, sparse
tensors, sizes that only the data decides) raises CaptureUnsupported naming the node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from fusec.capture import seams
from fusec.capture.dtypes import device_name, dtype_name, to_attr
from fusec.capture.operators import target_of
from fusec.capture.placement import place
from fusec.capture.symbols import SymbolTable, bindings
from fusec.capture.user_calls import user_call
from fusec.errors import CaptureUnsupported
from fusec.ir.graph import (
    Arg,
    Graph,
    Node,
    Ref,
    ScalarType,
    Symbolic,
    TensorType,
    ValueType,
    node_refs,
    refs,
)
from fusec.ir.verify import verify_graph

MAX_CONSTANT_BYTES: Final = 1 << 20
"""Larger constants become inputs that the caller appends: weights never leave the client."""


# Operators that may become atomic additions on a GPU.
_ADDING: Final = frozenset(
    f"aten.{name}.default"
    for name in (
        "scatter_add",
        "index_add",
        "index_put",
        "_unsafe_index_put",
        "embedding_dense_backward",
    )
)


def _on_gpu(kind: ValueType) -> bool:
    return isinstance(kind, TensorType) and kind.device == "cuda"


@dataclass(frozen=True)
class Exported:
    """graph: the graph; constants: tensors to append to its inputs at each call.

    traces: for each node the stack trace of the user's code that it comes from, where torch knows
    it. For people only (`fusec.inspect`): no part of the graph, its bytes or any key.
    """

    graph: Graph
    constants: tuple[torch.Tensor, ...]
    traces: tuple[str | None, ...] = ()


def export(gm: torch.fx.GraphModule) -> Exported:
    """Convert one graph that AOTAutograd hands to a compiler.

    Raises CaptureUnsupported for what has no place in a Graph.
    """
    with seams.no_modes():
        return _Exporter(gm).run()


class _Exporter:
    def __init__(self, gm: torch.fx.GraphModule) -> None:
        self.gm = gm
        numbers = [
            x for n in gm.graph.nodes if n.op == "placeholder" for x in _numbers(n.meta.get("val"))
        ]
        self.symbols = SymbolTable(seams.ranges_of(numbers))
        self.nodes: list[Node] = []
        self.traces: list[str | None] = []  # beside `nodes`
        self.args: dict[torch.fx.Node, Arg] = {}
        self.user_results: dict[torch.fx.Node, Any] = {}  # structures of references
        self.constants: list[torch.Tensor] = []
        self.ordinals: set[int | None] = set()  # of GPUs

    def run(self) -> Exported:
        fx_nodes = list(self.gm.graph.nodes)
        placeholders = [n for n in fx_nodes if n.op == "placeholder"]
        for n in placeholders:
            self.symbols.number_plain(_numbers(n.meta.get("val")))
        for n in placeholders:
            self._named(n, self._placeholder)
        for n in fx_nodes:  # inputs come before calls, so large constants come now
            if n.op == "get_attr":
                self._named(n, self._constant)
        outputs: tuple[Arg, ...] = ()
        for n in fx_nodes:
            if n.op == "call_function":
                self._named(n, self._call)
            elif n.op == "output":
                outputs = tuple(self._arg(a) for a in n.args[0])
            elif n.op not in ("placeholder", "get_attr"):
                raise CaptureUnsupported(f"a {n.op} node has no place in a graph", where=n.name)
        whole = Graph(tuple(self.nodes), outputs, self.symbols.ranges)
        kept = _live(whole)
        if len(self.ordinals) > 1:
            raise CaptureUnsupported("a graph has tensors on two GPUs")
        graph, sources = place(_only(whole, kept))
        verify_graph(graph)
        bindings(graph)
        traces = tuple(self.traces[kept[source]] for source in sources)
        return Exported(graph, tuple(self.constants), traces)

    def _named(self, n: torch.fx.Node, convert: Any) -> None:
        """Convert a node; a failure names it."""
        try:
            convert(n)
        except CaptureUnsupported as error:
            if error.where is None:
                error.where = f"{n.name} = {n.target}"
            raise

    def _add(self, n: torch.fx.Node | None, node: Node) -> Ref:
        self.nodes.append(node)
        self.traces.append(n.meta.get("stack_trace") if n is not None else None)
        ref = Ref(len(self.nodes) - 1)
        if n is not None:
            self.args[n] = ref
        return ref

    def _placeholder(self, n: torch.fx.Node) -> None:
        value = n.meta.get("val")
        kind = self._type(value)
        if isinstance(kind, tuple) or (kind is None and value is not None):
            raise CaptureUnsupported(f"an input is a {type(value).__name__}")
        if isinstance(value, torch.Tensor) and value.is_neg() and not value.is_complex():
            # What lies in memory is not the value, and kernels read memory. (Complex tensors are
            # read by torch's own operators alone, which know.)
            raise CaptureUnsupported(
                "an input is negated lazily",
                hint="pass x.resolve_neg(); the graph runs eager",
            )
        ref = self._add(n, Node("input", "", type=kind))
        if isinstance(kind, ScalarType) and kind.value is not None:
            self.args[n] = Symbolic(kind.value) if kind.kind == "int" else ref

    def _constant(self, n: torch.fx.Node) -> None:
        value: Any = self.gm
        for part in str(n.target).split("."):
            value = getattr(value, part)
        if isinstance(value, torch.nn.Module):
            raise CaptureUnsupported(
                "a higher-order operator holds a sub-graph",
                hint="control flow such as torch.cond is not compiled yet; the graph runs eager",
            )
        if not isinstance(value, torch.Tensor) or not seams.is_plain(value):
            raise CaptureUnsupported(f"an attribute is a {type(value).__name__}")
        if value.layout is not torch.strided or value.is_quantized:
            raise CaptureUnsupported(f"a constant has layout {value.layout}")
        value = value.detach()
        size = value.numel() * value.element_size()
        if size > MAX_CONSTANT_BYTES:
            self.constants.append(value)
            self._add(n, Node("input", "", type=self._type(value)))
            return
        plain = value.cpu().contiguous()
        raw = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if size else b""
        kind = self._type(plain)
        assert isinstance(kind, TensorType)
        kind = TensorType(kind.dtype, kind.shape, kind.stride, device_name(value.device))
        self._add(n, Node("const", "", (raw,), type=kind))

    def _call(self, n: torch.fx.Node) -> None:
        kind = self._type(n.meta.get("val"))
        if isinstance(kind, ScalarType) and kind.value is not None and kind.kind == "int":
            self.args[n] = Symbolic(kind.value)  # known from the inputs' sizes: nothing to run
            return
        target = n.target
        name = target_of(target)
        if target is torch.ops.aten.alias.default and not self._is_output(n):
            self.args[n] = self._arg(n.args[0])
            return
        if isinstance(target, seams.HigherOrderOperator):
            self._user_call(n)
            return
        source: Any = n.args[0] if n.args else None
        if name == "py.getitem" and source in self.user_results:
            self._taken(n, self.user_results[source][n.args[1]])
            return
        if name is None or not (isinstance(target, seams.OpOverload) or not n.kwargs):
            raise CaptureUnsupported(f"{target!r} is no ATen operator")
        if name in _ADDING and _on_gpu(kind) and torch.are_deterministic_algorithms_enabled():
            raise CaptureUnsupported(
                "what is added at one place is added in any order on a GPU",
                hint="torch.use_deterministic_algorithms is set: this graph runs in eager",
            )
        args, kwargs = list(n.args), dict(n.kwargs)
        if target is torch.ops.prims.convert_element_type.default:
            name, kwargs = "aten._to_copy.default", {"dtype": args.pop()}
        elif isinstance(target, seams.OpOverload):
            args, kwargs = _normalised(args, kwargs, target)
        positional = tuple(self._arg(a) for a in args)
        named = tuple((k, self._arg(v)) for k, v in kwargs.items())
        self._add(n, Node("call", name, positional, named, kind))

    def _user_call(self, n: torch.fx.Node) -> None:
        """One operator for a call of the user's code; its results go to those that take them."""
        operator, tensors, sizes = user_call(n)
        results, spec = pytree.tree_flatten(n.meta["val"])
        if not all(x is None or isinstance(x, torch.Tensor) for x in results):
            raise CaptureUnsupported("the user's operator gives more than tensors")
        kinds: Any = tuple(self._type(x) for x in results if x is not None)
        args = (tuple(map(self._arg, tensors)), tuple(map(self._arg, sizes)))
        made = self._add(n, Node("call", str(operator), args, (), kinds))
        items = iter(
            [
                self._add(n, Node("call", "py.getitem", (made, place), type=kind))
                for place, kind in enumerate(kinds)
            ]
        )
        taken = [None if x is None else next(items) for x in results]
        self._taken(n, pytree.tree_unflatten(taken, spec))

    def _taken(self, n: torch.fx.Node, results: Any) -> None:
        """A node stands for results of the user's code: one, or several in a structure."""
        if results is None or isinstance(results, Ref):
            self.args[n] = results
        else:
            self.user_results[n] = results

    def _is_output(self, n: torch.fx.Node) -> bool:
        return any(user.op == "output" for user in n.users)

    def _type(self, value: Any) -> ValueType:
        if value is None:
            return None
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided:
                raise CaptureUnsupported(f"a tensor has layout {value.layout}")
            if value.device.type == "cuda":
                self.ordinals.add(value.device.index)
            return TensorType(
                dtype_name(value.dtype),
                tuple(self.symbols.to_expr(s) for s in value.shape),
                tuple(self.symbols.to_expr(s) for s in value.stride()),
                device_name(value.device),
            )
        if isinstance(value, (list, tuple)):
            items = tuple(self._type(v) for v in value)
            if any(isinstance(item, tuple) for item in items):
                raise CaptureUnsupported("a value is a list of lists")
            return items  # type: ignore[return-value]
        if isinstance(value, (torch.SymBool, bool)):
            return ScalarType("bool")
        if isinstance(value, (torch.SymFloat, float)):
            return ScalarType("float")
        if isinstance(value, (torch.SymInt, int)):
            if seams.is_unbacked(value):
                raise CaptureUnsupported(
                    "a size is known only when the data is there",
                    hint="operations such as nonzero and item cut what can be compiled",
                )
            return ScalarType("int", self.symbols.to_expr(value))
        return None

    def _arg(self, value: Any) -> Arg:
        if isinstance(value, torch.fx.Node):
            return self.args[value]
        if value is None or isinstance(value, (bool, int, float, complex, str)):
            return value
        if isinstance(value, torch.SymInt):
            return Symbolic(self.symbols.to_expr(value))
        if isinstance(value, (list, tuple)):
            return tuple(self._arg(item) for item in value)
        attr = to_attr(value)
        if attr is not None:
            return attr
        raise CaptureUnsupported(f"an argument is a {type(value).__name__}")


def _numbers(value: Any) -> list[Any]:
    """The sizes, then the strides of an input, or the number that it is."""
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return [*value.shape, *value.stride()]
    return [value] if isinstance(value, torch.SymInt) else []


def _normalised(
    args: list[Any], kwargs: dict[str, Any], target: seams.OpOverload
) -> tuple[list[Any], dict[str, Any]]:
    """Positional arguments and keywords in one canonical form.

    A keyword that the schema allows by position follows the positional ones where none is left
    out between; what equals the schema's default is dropped from the ends; keywords come in the
    schema's order.
    """
    schema = target._schema.arguments
    for argument in schema[len(args) :]:
        if argument.kwarg_only or argument.name not in kwargs:
            break
        args.append(kwargs.pop(argument.name))
    while args and len(args) <= len(schema):
        argument = schema[len(args) - 1]
        if not argument.has_default_value() or not _same(args[-1], argument.default_value):
            break
        args.pop()
    ordered = {
        a.name: kwargs[a.name]
        for a in schema
        if a.name in kwargs
        and not (a.has_default_value() and _same(kwargs[a.name], a.default_value))
    }
    return args, ordered


def _same(value: Any, default: Any) -> bool:
    """Equal, and of the same type: True is not 1."""
    if isinstance(value, (list, tuple)) and isinstance(default, (list, tuple)):
        return len(value) == len(default) and all(map(_same, value, default))
    return (
        type(value) is type(default) and not isinstance(value, torch.fx.Node) and value == default
    )


def _live(graph: Graph) -> list[int]:
    """Indices of all nodes but calls that only made numbers which became expressions."""
    used: set[int] = set()
    for output in graph.outputs:
        used.update(refs(output))
    for index in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[index]
        if node.op != "call" or not isinstance(node.type, ScalarType) or index in used:
            used.add(index)
            used.update(node_refs(node))
    return sorted(used)


def _only(graph: Graph, kept: Sequence[int]) -> Graph:
    """The graph with only these nodes, in order, renumbered."""
    if len(kept) == len(graph.nodes):
        return graph
    moved = {index: number for number, index in enumerate(kept)}
    nodes = tuple(_renumbered(graph.nodes[index], moved) for index in kept)
    return Graph(nodes, tuple(_moved(o, moved) for o in graph.outputs), graph.symbols)


def _renumbered(node: Node, moved: Mapping[int, int]) -> Node:
    args = tuple(_moved(a, moved) for a in node.args)
    kwargs = tuple((k, _moved(v, moved)) for k, v in node.kwargs)
    return Node(node.op, node.target, args, kwargs, node.type)


def _moved(arg: Arg, moved: Mapping[int, int]) -> Arg:
    if isinstance(arg, Ref):
        return Ref(moved[arg.index])
    if isinstance(arg, tuple):
        return tuple(_moved(item, moved) for item in arg)
    return arg
