"""Random inputs for a graph: sizes that its symbols allow, values such as models hold.

Integers may be places in another tensor: what the graph looks up with an input says how far it may
reach. Those of unknown meaning are 0 or 1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, Final

import torch

from fusec.capture.dtypes import DTYPE_OF
from fusec.ir import expr as ex
from fusec.ir.dtypes import DTYPES
from fusec.ir.graph import Arg, Graph, Node, Ref, ScalarType, TensorType
from fusec.ir.typical import typical_sizes

_UNKNOWN: Final = 2
_MOST_TERMS: Final = 1024

# Operator -> (place of the tensor looked up in, place of the places, place of the dimension).
_LOOKUPS: Final[Mapping[str, tuple[int, int, int | None]]] = {
    "aten.embedding.default": (0, 1, None),
    "aten.gather.default": (0, 2, 1),
    "aten.index_select.default": (0, 2, 1),
    "aten.scatter.src": (0, 2, 1),
    "aten.scatter.value": (0, 2, 1),
    "aten.scatter_add.default": (0, 2, 1),
    "aten.scatter_reduce.two": (0, 2, 1),
    "aten.index_add.default": (0, 2, 1),
    "aten.index_copy.default": (0, 2, 1),
    "aten.index_fill.int_Scalar": (0, 2, 1),
    "aten.nll_loss_forward.default": (0, 1, 1),
}
# Operator -> (place of the places, place of the number that they are below).
_NUMBERED: Final[Mapping[str, tuple[int, int]]] = {
    "aten.embedding_dense_backward.default": (1, 2),
    "aten.one_hot.default": (0, 1),
}
_INDEXED: Final = ("aten.index.", "aten.index_put", "aten._unsafe_index")
# What gives the same integers in another form.
_SAME: Final = frozenset(
    f"aten.{name}"
    for name in (
        "_to_copy.default _unsafe_view.default alias.default clone.default expand.default "
        "permute.default reshape.default slice.Tensor select.int split.Tensor squeeze.default "
        "squeeze.dim squeeze.dims t.default transpose.int unsqueeze.default view.default "
        "where.self"
    ).split()
) | {"py.getitem"}


def bounds(graph: Graph, sizes: Mapping[str, int]) -> dict[int, int]:
    """What the integers of an input must be below, by the input's node, where the graph says."""
    below: dict[int, int] = {}

    def limit(arg: Arg, bound: int) -> None:
        """The integers that an argument holds are below this, and so are those it is made of."""
        stack = [arg]
        while stack:
            item = stack.pop()
            if isinstance(item, tuple):
                stack.extend(item)
            elif isinstance(item, Ref):
                node = graph.nodes[item.index]
                if node.op == "input":
                    below[item.index] = min(below.get(item.index, bound), bound)
                elif node.target in _SAME:
                    stack.extend(node.args)

    def extent(arg: Arg, dim: int) -> int | None:
        kind = graph.nodes[arg.index].type if isinstance(arg, Ref) else None
        if not isinstance(kind, TensorType) or not -kind.rank <= dim < kind.rank:
            return None
        return ex.evaluate(kind.shape[dim], sizes)

    for node in graph.nodes:
        if node.op != "call":
            continue
        for arg, bound in _looked_up(node, extent):
            if bound is not None:
                limit(arg, max(1, bound))
    return below


def _looked_up(node: Node, extent: Any) -> list[tuple[Arg, int | None]]:
    """The arguments of a node that hold places, and what those are below."""
    args = node.args
    if node.target in _LOOKUPS:
        table, places, dim = _LOOKUPS[node.target]
        if len(args) <= max(table, places):
            return []
        if node.target.startswith("aten.nll_loss"):
            return [(args[places], extent(args[table], -1))]
        which = 0 if dim is None else args[dim]
        return [(args[places], extent(args[table], which) if isinstance(which, int) else None)]
    if node.target in _NUMBERED:
        places, number = _NUMBERED[node.target]
        count = args[number] if len(args) > number else None
        return [(args[places], count)] if isinstance(count, int) else []
    if node.target.startswith(_INDEXED) and len(args) > 1 and isinstance(args[1], tuple):
        return [
            (item, extent(args[0], dim)) for dim, item in enumerate(args[1]) if item is not None
        ]
    return []


def random_inputs(
    graph: Graph, seed: int, device: torch.device, *, positive: bool = False, safe: bool = False
) -> list[Any]:
    """Inputs of a graph, in its order; equal arguments give equal values.

    positive: floating-point values are above 0, for what takes roots and logarithms; safe:
    integers of unknown meaning are 0.
    """
    sizes = typical_sizes(graph.symbols)
    below = bounds(graph, sizes)
    drawn = {where: _Drawn(seed, where) for where in (torch.device("cpu"), device)}
    made: list[Any] = []
    for index in graph.inputs:
        kind = graph.nodes[index].type
        if isinstance(kind, TensorType):
            bound = below.get(index, 1 if safe else _UNKNOWN)
            where = torch.device("cpu") if kind.device == "cpu" else device
            made.append(_tensor(kind, sizes, drawn[where], index, bound, positive))
        else:
            made.append(_scalar(kind, sizes))
    return made


def _scalar(kind: object, sizes: Mapping[str, int]) -> Any:
    if not isinstance(kind, ScalarType):
        return None
    if kind.value is not None:
        return ex.evaluate(kind.value, sizes)
    return {"int": 1, "float": 0.5, "bool": True}[kind.kind]


def _tensor(
    kind: TensorType,
    sizes: Mapping[str, int],
    drawn: _Drawn,
    number: int,
    below: int,
    positive: bool,
) -> torch.Tensor:
    shape = [ex.evaluate(e, sizes) for e in kind.shape]
    stride = [ex.evaluate(e, sizes) for e in kind.stride]
    offset = 0 if kind.offset is None else ex.evaluate(kind.offset, sizes)
    reach = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    # About what a sum over the dimensions of a product leaves: layers then neither grow nor vanish.
    terms = min(_MOST_TERMS, max(1, math.prod(shape[1:])))
    scale = 1.0 / terms if positive else 1.0 / math.sqrt(terms)
    memory = drawn.values(number, offset + reach, kind.dtype, below, positive, scale)
    return memory.as_strided(shape, stride, offset)


_PERIOD: Final = (1 << 22) - 3
"""Values that are drawn. Longer memory repeats them; a prime, so that no two rows are the same."""
_TOP: Final = 1 << 31


class _Drawn:
    """Random values of a seed, the same on every device: drawn once and on the CPU, of which each
    tensor takes a stretch. Drawing for each of them took a minute for the inputs of a backward
    graph, all of them GPU time of a farm."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._device = device
        self._kept: dict[str, torch.Tensor] = {}

    def values(
        self, number: int, count: int, dtype: str, below: int, positive: bool, scale: float
    ) -> torch.Tensor:
        """``count`` values for the tensor of a number, which says where its stretch begins."""
        kind = DTYPES[dtype].kind
        if kind == "bool":
            values = self._stretch("integers", number, count) % 2 == 0
        elif kind in ("int", "uint"):
            values = self._stretch("integers", number, count) % below
        elif positive:
            values = self._stretch("integers", number, count) / _TOP
            values = (values.float() * 0.9 + 0.1) * scale
        else:
            values = self._stretch("normal", number, count) * scale
        if kind == "complex":
            values = torch.complex(values, values.flip(0))
        values = values.to(DTYPE_OF[dtype])
        return values if values.numel() == count else values.repeat(-(-count // _PERIOD))[:count]

    def _stretch(self, what: str, number: int, count: int) -> torch.Tensor:
        """At most _PERIOD values, from a place on that is the tensor's."""
        if what not in self._kept:
            self._kept[what] = _draw(self._seed, what).to(self._device)
        values, start = self._kept[what], number * _STEP % _PERIOD
        if start + count <= _PERIOD:
            return values[start : start + count]
        return torch.cat((values[start:], values[:start]))[:count]


@functools.lru_cache(2)
def _draw(seed: int, what: str) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    if what == "normal":
        return torch.randn(_PERIOD, generator=draw)
    return torch.randint(0, _TOP, (_PERIOD,), generator=draw)


_STEP: Final = 1_299_709
"""Between the stretches of two tensors that follow each other."""
