"""One device for all that a graph computes.

Models on a GPU are full of small things on the CPU: constants, ranges and masks that are made there
and moved over, numbers kept as tensors of no dimension. Before: values on either device. After:
every call computes on the graph's device; what is left on the CPU are inputs, outputs and the
transfers of them. What computes on the CPU with the CPU's own data (or with its random numbers) is
refused: such a graph runs eager, each part where the user put it.
"""

from __future__ import annotations

from typing import Final

from fusec.capture.operators import operator_of
from fusec.errors import CaptureUnsupported
from fusec.ir.graph import Arg, Attr, Graph, Node, Ref, TensorType, ValueType, node_refs
from fusec.ir.verify_device import TRANSFER, device_of, devices_of, verify_device

_HINT: Final = "keep what a graph computes on one device; the graph runs eager"


def place(graph: Graph) -> tuple[Graph, tuple[int, ...]]:
    """The graph with all of its calls on one device; for each of its nodes the old node that it
    comes from. Raises CaptureUnsupported for a graph that computes on two devices."""
    found = frozenset[str]().union(*(devices_of(node.type) for node in graph.nodes))
    if "meta" in found:
        raise CaptureUnsupported("a tensor is on the device meta: it has no data")
    if device_of(graph) == "cpu":
        return graph, tuple(range(len(graph.nodes)))
    if not any("cuda" in devices_of(n.type) for n in graph.nodes if n.op == "input"):
        raise CaptureUnsupported("no input tells which GPU a graph runs on", hint=_HINT)
    if "cpu" not in found:
        return graph, tuple(range(len(graph.nodes)))
    placement = _Placement(graph)
    placed = placement.run()
    verify_device(placed)
    return placed, tuple(placement.sources)


class _Placement:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.sources: list[int] = []  # beside `nodes`: the old node
        self.at: list[int] = []  # where the value of an old node is now
        self.moved: set[int] = set()  # old nodes of the CPU that are made on the GPU
        self.copies: dict[int, int] = {}  # input on the CPU -> its copy on the GPU

    def run(self) -> Graph:
        for index, node in enumerate(self.graph.nodes):
            if node.op == "call":
                self._call(index, node)
            elif node.op == "const" and "cpu" in devices_of(node.type):
                self.moved.add(index)
                self._keep(Node("const", "", node.args, type=_on_gpu(node.type)))
            else:
                self._keep(node)
        outputs = tuple(self._output(o) for o in self.graph.outputs)
        return Graph(tuple(self.nodes), outputs, self.graph.symbols)

    def _keep(self, node: Node) -> None:
        self.at.append(self._add(node, len(self.at)))

    def _add(self, node: Node, source: int) -> int:
        self.nodes.append(node)
        self.sources.append(source)
        return len(self.nodes) - 1

    def _call(self, index: int, node: Node) -> None:
        made = devices_of(node.type)
        if "cpu" in made and node.target != TRANSFER:
            self._check_movable(index, node)
        if node.target == TRANSFER and "cpu" in made and not self._movable(node):
            self._keep(self._renumbered(node, node.type))  # from the GPU to the CPU, or kept there
            return
        if "cpu" in made:
            self.moved.add(index)
            self._keep(self._with_device(self._operands(node, _on_gpu(node.type))))
        elif node.target == TRANSFER:
            self._keep(self._renumbered(node, node.type))
        else:
            self._keep(self._operands(node, node.type))

    def _movable(self, node: Node) -> bool:
        """Whether a call on the CPU reads only what is or can well be on the GPU."""
        return all(
            index in self.moved or _is_number(self.graph.nodes[index])
            for index in node_refs(node)
            if devices_of(self.graph.nodes[index].type)
        )

    def _check_movable(self, index: int, node: Node) -> None:
        where = f"%{index} {node.target}"
        if not self._movable(node):
            raise CaptureUnsupported(
                "a graph computes on the CPU and on a GPU", where=where, hint=_HINT
            )
        if _draws(node) or _writes(node):
            raise CaptureUnsupported(
                "a graph of a GPU draws random numbers or writes on the CPU",
                where=where,
                hint=_HINT,
            )

    def _operands(self, node: Node, kind: ValueType) -> Node:
        """The call with operands on the GPU."""
        for index in node_refs(node):
            if index not in self.moved and "cpu" in devices_of(self.graph.nodes[index].type):
                self._copy_over(index)
        return self._renumbered(node, kind)

    def _copy_over(self, index: int) -> None:
        """Make a copy of an input on the GPU, once; eager makes it at each use."""
        if index in self.copies:
            return
        kind = self.graph.nodes[index].type
        if self.graph.nodes[index].op != "input" or not isinstance(kind, TensorType):
            raise CaptureUnsupported("a graph computes on the CPU and on a GPU", hint=_HINT)
        self.copies[index] = self._add(_transfer(self.at[index], kind, "cuda"), index)

    def _renumbered(self, node: Node, kind: ValueType) -> Node:
        own = node.target == TRANSFER  # reads an input where it is
        args = tuple(self._arg(a, own) for a in node.args)
        kwargs = tuple((k, self._arg(v, own)) for k, v in node.kwargs)
        return Node("call", node.target, args, kwargs, kind)

    def _arg(self, arg: Arg, own: bool = False) -> Arg:
        if isinstance(arg, Ref):
            copied = None if own else self.copies.get(arg.index)
            return Ref(self.at[arg.index] if copied is None else copied)
        if isinstance(arg, tuple):
            return tuple(self._arg(item, own) for item in arg)
        return arg

    def _with_device(self, node: Node) -> Node:
        """A call that made a tensor on the CPU told to make it on the GPU, where it is told."""
        schema = getattr(operator_of(node.target), "_schema", None)
        arguments = () if schema is None else schema.arguments
        if all(a.name != "device" for a in arguments):
            return node
        given = dict(node.kwargs)
        if not any(True for _ in node_refs(node)) or "device" in given:
            given["device"] = Attr("device", "cuda")
        order = [a.name for a in arguments]
        kwargs = tuple(sorted(given.items(), key=lambda item: order.index(item[0])))
        return Node(node.op, node.target, node.args, kwargs, node.type)

    def _output(self, output: Arg) -> Arg:
        """An output on the device that the function promised it on."""
        if not isinstance(output, Ref):
            return output
        kind = self.graph.nodes[output.index].type
        if output.index not in self.moved or not isinstance(kind, TensorType):
            return Ref(self.at[output.index])
        copied = _transfer(self.at[output.index], kind, "cpu")
        return Ref(self._add(copied, output.index))


def _transfer(source: int, kind: TensorType, device: str) -> Node:
    to = TensorType(kind.dtype, kind.shape, kind.stride, device, kind.offset)
    return Node("call", TRANSFER, (Ref(source),), (("device", Attr("device", device)),), to)


def _on_gpu(kind: ValueType) -> ValueType:
    if isinstance(kind, tuple):
        return tuple(_on_gpu(item) for item in kind)  # type: ignore[misc]
    if isinstance(kind, TensorType):
        return TensorType(kind.dtype, kind.shape, kind.stride, "cuda", kind.offset)
    return kind


def _is_number(node: Node) -> bool:
    """Whether a node is an input of no dimension: an operand that eager takes on any device."""
    return node.op == "input" and isinstance(node.type, TensorType) and not node.type.shape


def _draws(node: Node) -> bool:
    return "nondeterministic_seeded" in {
        tag.name for tag in getattr(operator_of(node.target), "tags", ())
    }


def _writes(node: Node) -> bool:
    schema = getattr(operator_of(node.target), "_schema", None)
    return schema is not None and schema.is_mutable
