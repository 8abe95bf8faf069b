"""Runs of a graph that differ from eager's on purpose: in float64, and with rounding moved.

What draws random numbers draws the same in all of them, in the types of the graph, from a generator
that is seeded before each run. Where a compiled program draws numbers of its own (on a GPU), what
it drew is taken from its results where they hold it, as those of a dropout for its gradient do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from fusec.capture.dtypes import DTYPE_OF
from fusec.capture.eager import Apply, EagerProgram
from fusec.ir.graph import Arg, Graph, Node, Ref, TensorType, node_refs

Draws = Mapping[int, Any]
"""What a node that draws gives, by its place, where that is known."""

_WIDE: Final = {torch.complex32: torch.complex128, torch.complex64: torch.complex128}
_DROPOUT: Final = "aten.native_dropout.default"
# Reads bits, or keeps what depends on the width of a type.
_NARROW: Final = frozenset(("aten.view.dtype", "aten.view_as.dtype"))
# What an operator says that has no float64, or no mixture of it with others.
_REFUSALS: Final = (RuntimeError, NotImplementedError, TypeError, ValueError)


def widened(value: Any) -> Any:
    """Floating-point tensors in float64, complex ones in complex128, in tuples and lists too."""
    return pytree.tree_map(_widened, value)


def _widened(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    if x.is_floating_point():
        return x.detach().to(torch.float64)
    return x.detach().to(torch.complex128) if x.is_complex() else x


class NoReference(Exception):
    """A graph has no run in float64: an operator that changes its arguments refuses it."""


def run(program: EagerProgram, inputs: Sequence[Any], seed: int) -> list[Any]:
    """The outputs of a run for these inputs, random numbers from a seed."""
    torch.manual_seed(seed)
    with torch.no_grad():
        return program(list(inputs))


def eager(graph: Graph, draws: Draws) -> EagerProgram:
    """Eager, but for what is known of its draws. Raises LoadError as `EagerProgram`."""
    return EagerProgram(graph, apply=_drawn(draws, _plain))


def wide(graph: Graph, draws: Draws) -> EagerProgram:
    """In float64 where the operators can. Inputs are to be widened. Raises LoadError."""

    def apply(
        index: int, node: Node, call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        if node.target in _NARROW or _draws(call):
            return _in_graphs_types(graph, node, call, args, kwargs)
        try:
            with _float64_by_default():
                given = pytree.tree_map(_wide_argument, (args, kwargs))
                return call(*given[0], **given[1])
        except _REFUSALS as error:
            if _changes(call):
                raise NoReference(f"{node.target}: {error}") from error
            return _in_graphs_types(graph, node, call, args, kwargs)

    return EagerProgram(graph, apply=_drawn(draws, apply))


def moved(graph: Graph, draws: Draws, inputs: Sequence[Any], seed: int) -> EagerProgram:
    """Eager with each result moved by about a unit in its last place, at random by ``seed``.

    inputs: of the call, which stay as they are and so do views of them.
    """
    old = {x.untyped_storage().data_ptr() for x in inputs if isinstance(x, torch.Tensor)}
    drawn: dict[torch.device, torch.Tensor] = {}

    def noise(x: torch.Tensor) -> torch.Tensor:
        """Numbers from -1 to 1 in the shape of a tensor; equal ones for equal shapes."""
        found = drawn.get(x.device)
        if found is None or found.numel() < x.numel():
            generator = torch.Generator(x.device).manual_seed(seed)
            found = torch.rand(x.numel(), generator=generator, device=x.device) * 2 - 1
            drawn[x.device] = found
        return found[: x.numel()].view(x.shape)

    def nudge(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point() or not x.numel():
            return x
        if x.untyped_storage().data_ptr() in old:
            return x
        values = x if x.dtype == torch.float64 else x.float()
        size = values.abs().nan_to_num(0.0, 0.0, 0.0)
        amount = torch.finfo(x.dtype).eps * (size + size.mean()) * noise(x)
        return torch.empty_like(x).copy_(
            torch.where(torch.isfinite(values), values + amount, values)
        )

    def apply(
        index: int, node: Node, call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        result = call(*args, **kwargs)
        return result if _changes(call) else pytree.tree_map(nudge, result)

    return EagerProgram(graph, apply=_drawn(draws, apply))


def undetermined(graph: Graph, device: str, draws: Draws) -> frozenset[int]:
    """Nodes whose values depend on numbers that the compiled program draws by itself."""
    if device == "cpu":  # there ATen draws, in eager's order
        return frozenset()
    found: set[int] = set()
    for index, node in enumerate(graph.nodes):
        if node.op != "call":
            continue
        # A draw that is known says nothing of what the operator was given.
        own = is_draw(node) and index not in draws
        if own or any(ref in found for ref in node_refs(node)):
            found.add(index)
    return frozenset(found)


def known_draws(graph: Graph, outputs: Sequence[Any]) -> dict[int, Any]:
    """What the nodes that draw gave in the run that these outputs are of, as far as they tell."""
    given = {o.index: value for o, value in zip(graph.outputs, outputs) if isinstance(o, Ref)}
    found: dict[int, Any] = {}
    for index, value in given.items():
        node = graph.nodes[index]
        origin = node.args[0] if node.target == "py.getitem" else None
        if isinstance(origin, Ref) and node.args[1] == 1:
            if graph.nodes[origin.index].target == _DROPOUT:
                found[origin.index] = value
        elif node.op == "call" and is_draw(node) and isinstance(node.type, TensorType):
            found[index] = value
    return found


def is_draw(node: Node) -> bool:
    """Whether an operator draws random numbers."""
    parts = node.target.split(".")
    if len(parts) != 3:
        return False
    packet = getattr(getattr(torch.ops, parts[0]), parts[1], None)
    return _draws(getattr(packet, parts[2], None))


def _draws(call: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(call, "tags", ())


def _changes(call: Any) -> bool:
    schema = getattr(call, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _plain(
    index: int, node: Node, call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> Any:
    return call(*args, **kwargs)


def _drawn(draws: Draws, apply: Apply) -> Apply:
    """The same, but that a node whose draw is known gives that."""
    if not draws:
        return apply

    def with_draws(
        index: int, node: Node, call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        known = draws.get(index)
        if known is None:
            return apply(index, node, call, args, kwargs)
        if node.target != _DROPOUT:
            return known
        x, p = args[0], args[1]
        return x * known * (0.0 if p == 1 else 1.0 / (1.0 - p)), known

    return with_draws


def _in_graphs_types(
    graph: Graph,
    node: Node,
    call: Callable[..., Any],
    args: list[Any],
    kwargs: dict[str, Any],
) -> Any:
    """A call with its arguments rounded to the graph's types, the result widened."""
    given = [_rounded(graph, arg, value) for arg, value in zip(node.args, args)]
    named = {name: _rounded(graph, arg, kwargs[name]) for name, arg in node.kwargs}
    return widened(call(*given, **named))


def _rounded(graph: Graph, arg: Arg, value: Any) -> Any:
    if isinstance(arg, tuple):
        return [_rounded(graph, a, v) for a, v in zip(arg, value)]
    if isinstance(arg, Ref) and isinstance(value, torch.Tensor):
        kind = graph.nodes[arg.index].type
        if isinstance(kind, TensorType):
            return value.to(DTYPE_OF[kind.dtype])
    return value


def _wide_argument(x: Any) -> Any:
    if isinstance(x, torch.dtype):
        return torch.float64 if x.is_floating_point else _WIDE.get(x, x)
    return _widened(x) if isinstance(x, torch.Tensor) and x.dtype != torch.float64 else x


@contextmanager
def _float64_by_default() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
