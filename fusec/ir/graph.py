"""Graph: ATen operations over typed values, what capture hands to the compiler.

A graph is a tuple of nodes in execution order. A value is named by the index of the node that
makes it (`Ref`). Nothing in a graph depends on names in user code, on a device ordinal or on torch
objects. Invariants (checked by `fusec.ir.verify.verify_graph`): references point backwards, inputs
come first, every tensor has as many strides as sizes, symbols used in types are declared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from fusec.ir.expr import Expr


@dataclass(frozen=True, slots=True)
class TensorType:
    """A strided tensor: sizes and strides in elements, offset into its storage in elements."""

    dtype: str
    shape: tuple[Expr, ...]
    stride: tuple[Expr, ...]
    device: str = "cpu"
    offset: Expr | None = None  # None is zero

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(frozen=True, slots=True)
class ScalarType:
    """A symbolic number that an input carries or a node computes: ``kind`` int, float or bool."""

    kind: str
    value: Expr | None = None


ValueType: TypeAlias = "TensorType | ScalarType | tuple[TensorType | ScalarType | None, ...] | None"


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of a node, by index."""

    index: int


@dataclass(frozen=True, slots=True)
class Symbolic:
    """A number given by an expression over the graph's symbols."""

    value: Expr


@dataclass(frozen=True, slots=True)
class Attr:
    """An argument that is a torch enumeration: ``kind`` dtype, device, layout or memory_format."""

    kind: str
    name: str


Arg: TypeAlias = (
    "Ref | Symbolic | Attr | bool | int | float | complex | str | bytes | tuple[Arg, ...] | None"
)


@dataclass(frozen=True, slots=True)
class Node:
    """One operation.

    ``op`` is ``input``, ``const`` or ``call``. A call's ``target`` is the qualified operator name,
    ``aten.add.Tensor``, or ``py.getitem`` and the like; a const holds its bytes in ``args[0]``.
    ``type`` is the type of the value made, a tuple for several outputs.
    """

    op: str
    target: str
    args: tuple[Arg, ...] = ()
    kwargs: tuple[tuple[str, Arg], ...] = ()
    type: ValueType = None


@dataclass(frozen=True, slots=True)
class SymbolRange:
    """A size symbol and the inclusive range that guards promise (``upper`` None: unbounded)."""

    name: str
    lower: int
    upper: int | None


@dataclass(frozen=True, slots=True)
class Graph:
    """See the module docstring. ``outputs`` are references, numbers or None."""

    nodes: tuple[Node, ...]
    outputs: tuple[Arg, ...]
    symbols: tuple[SymbolRange, ...] = ()

    @property
    def inputs(self) -> tuple[int, ...]:
        """Indices of the input nodes, in calling order."""
        return tuple(i for i, node in enumerate(self.nodes) if node.op == "input")


def refs(arg: Arg) -> Iterator[int]:
    """Every node index an argument refers to."""
    if isinstance(arg, Ref):
        yield arg.index
    elif isinstance(arg, tuple):
        for item in arg:
            yield from refs(item)


def node_refs(node: Node) -> Iterator[int]:
    """Every node index that a node's arguments refer to."""
    for arg in node.args:
        yield from refs(arg)
    for _, arg in node.kwargs:
        yield from refs(arg)


def tensor_type(node: Node) -> TensorType:
    """The type of a node that makes one tensor. Raises TypeError for any other."""
    if not isinstance(node.type, TensorType):
        raise TypeError(f"{node.target} makes {node.type!r}, not one tensor")
    return node.type
