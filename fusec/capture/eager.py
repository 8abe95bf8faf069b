"""Graphs run by torch's own ATen operators: the fallback's twin, and what results are checked by.

An `EagerProgram` gives what the captured function gives, operator by operator. It decides nothing:
it is the reference that compiled programs are compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fusec.capture import seams
from fusec.capture.dtypes import DTYPE_OF, from_attr
from fusec.capture.operators import operator_of
from fusec.capture.symbols import bindings, read_symbols
from fusec.errors import LoadError
from fusec.ir import expr as ex
from fusec.ir.graph import Arg, Attr, Graph, Node, Ref, Symbolic, TensorType, node_refs, refs

Apply = Callable[[int, Node, Callable[..., Any], list[Any], dict[str, Any]], Any]
"""Calls an operator: the node's place and the node, its operator, the arguments' values."""


def _call(index: int, node: Node, call: Callable[..., Any], args: list[Any], kwargs: Any) -> Any:
    return call(*args, **kwargs)


class EagerProgram:
    """A graph made callable: takes a list of inputs, clears it, returns a list of outputs."""

    _boxed_call = True

    def __init__(
        self, graph: Graph, constants: Sequence[torch.Tensor] = (), *, apply: Apply = _call
    ) -> None:
        """constants: tensors to append to the inputs of each call, large constants of the graph;
        apply: what calls an operator, for runs that are to differ from eager's.

        Raises LoadError for an operator that this process has not.
        """
        self._apply = apply
        self._graph = graph
        self._constants = tuple(constants)
        self._symbols = bindings(graph) if graph.symbols else ()
        self._steps: list[tuple[int, Node, Callable[..., Any]]] = []
        self._fixed: dict[int, torch.Tensor] = {}
        for index, node in enumerate(graph.nodes):
            if node.op == "const":
                self._fixed[index] = constant(node)
            elif node.op == "call":
                self._steps.append((index, node, operator_of(node.target)))
        self._last_use = last_uses(graph)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        given = [*inputs, *self._constants]
        inputs.clear()
        graph = self._graph
        if len(given) != len(graph.inputs):
            raise LoadError(f"a graph of {len(graph.inputs)} inputs is called with {len(given)}")
        values: dict[int, Any] = dict(self._fixed)
        symbols = read_symbols(self._symbols, given)
        values.update(zip(graph.inputs, given))
        given.clear()
        for index, node, call in self._steps:
            args = [_value(a, values, symbols) for a in node.args]
            kwargs = {k: _value(v, values, symbols) for k, v in node.kwargs}
            values[index] = self._apply(index, node, call, args, kwargs)
            del args, kwargs
            for dead in self._last_use.get(index, ()):
                values.pop(dead, None)
        return [_value(o, values, symbols) for o in graph.outputs]


def run_eager(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a graph for these inputs, computed by ATen.

    Raises LoadError for a wrong number of inputs or an operator that this process has not.
    """
    return EagerProgram(graph)(list(inputs))


def constant(node: Node) -> torch.Tensor:
    """The tensor of a `const` node, on the device of its type."""
    kind = node.type
    raw = node.args[0]
    if not isinstance(kind, TensorType) or not isinstance(raw, bytes):
        raise LoadError("a constant is no tensor")
    shape = [ex.as_int(size) for size in kind.shape]
    dtype = DTYPE_OF[kind.dtype]
    count = math.prod(size or 0 for size in shape)
    if None in shape or len(raw) != count * dtype.itemsize:
        raise LoadError(f"a constant of {len(raw)} bytes does not fill its shape {shape}")
    with seams.no_modes():  # a backward is compiled while fake tensors are in force
        return _filled(raw, dtype, shape, kind.device)


def _filled(raw: bytes, dtype: torch.dtype, shape: list[Any], device: str) -> torch.Tensor:
    if not raw:
        return torch.empty(shape, dtype=dtype, device=device)
    flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype)
    return flat.reshape(shape).to(device)


def _value(arg: Arg, values: Mapping[int, Any], symbols: Mapping[str, int]) -> Any:
    if isinstance(arg, Ref):
        return values[arg.index]
    if isinstance(arg, Symbolic):
        return ex.evaluate(arg.value, symbols)
    if isinstance(arg, Attr):
        return from_attr(arg)
    if isinstance(arg, tuple):
        return [_value(item, values, symbols) for item in arg]
    return arg


def last_uses(graph: Graph) -> dict[int, tuple[int, ...]]:
    """Step -> values that no later step or output needs."""
    kept = {ref for output in graph.outputs for ref in refs(output)}
    kept.update(i for i, node in enumerate(graph.nodes) if node.op == "const")
    last: dict[int, int] = {}
    for index, node in enumerate(graph.nodes):
        for ref in node_refs(node):
            last[ref] = index
    dying: dict[int, list[int]] = {}
    for ref, index in last.items():
        if ref not in kept:
            dying.setdefault(index, []).append(ref)
    return {index: tuple(refs_) for index, refs_ in dying.items()}
