"""Products of a training step, of rows that GPUs' libraries are slow for, made longer.

Before: ``y = addmm(bias, x, w)`` with 30522 columns in half precision.
After: ``y = addmm(bias', x, w')[:, :30522]`` of operands with zeros up to 30528 columns.

Lowering pads such products anyway (`fusec.lower.gemm`), but inside one graph: what crosses to the
backward pass would be copied out of the longer rows. Here the longer rows themselves are there to
be saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from fusec.lower.gemm import ALIGNED, padding_pays

_aten: Final = torch.ops.aten
# By where the matrices begin among the arguments.
_PRODUCTS: Final[dict[Any, int]] = {_aten.mm.default: 0, _aten.addmm.default: 1}
_TURNS: Final = (_aten.t.default, _aten.permute.default, _aten.transpose.int)


def pad_products(graph: torch.fx.Graph, nodes: Sequence[torch.fx.Node]) -> None:
    """Rewrite those of the products ``nodes`` that it is for, in place."""
    for node in nodes:
        first = _PRODUCTS.get(node.target)
        if first is None or not _slow(node, first):
            continue
        extra = -int(node.meta["val"].shape[1]) % ALIGNED
        with graph.inserting_before(node):
            *added, left, right = node.args[: first + 2]
            wider = _call(
                graph,
                node.target,
                (*(_longer(graph, a, extra) for a in added), left, _wider(graph, right, extra)),
                dict(node.kwargs),
                node,
            )
            columns = (wider, 1, 0, node.meta["val"].shape[1])
            result = _call(graph, _aten.slice.Tensor, columns, {}, node)
        node.replace_all_uses_with(result)
        graph.erase_node(node)


def _slow(node: torch.fx.Node, first: int) -> bool:
    """Whether the product is large, in half precision on a GPU, and its rows are not aligned."""
    operands = [a for a in node.args[: first + 2] if isinstance(a, torch.fx.Node)]
    if len(operands) < first + 2:
        return False
    values: list[Any] = [a.meta["val"] for a in operands]
    out, (*added, left, right) = node.meta["val"], values
    sizes = (*out.shape, left.shape[1])
    if out.device.type != "cuda" or out.dtype not in (torch.bfloat16, torch.float16):
        return False
    if not all(isinstance(n, int) for n in sizes) or any(a.ndim != 1 for a in added):
        return False
    if any(a.dtype != out.dtype for a in (*added, left, right)):
        return False
    return sizes[1] % ALIGNED != 0 and padding_pays(sizes, 2.0 * right.numel())


def _wider(graph: torch.fx.Graph, matrix: Any, extra: int) -> torch.fx.Node:
    """A matrix with more columns, or, where it is one turned, more rows of that one."""
    if matrix.target not in _TURNS or matrix.args[0].meta["val"].ndim != 2:
        return _longer(graph, matrix, extra)
    base = matrix.args[0]
    more = _call(graph, _aten.constant_pad_nd.default, (base, [0, 0, 0, extra]), {}, base)
    return _call(graph, matrix.target, (more, *matrix.args[1:]), dict(matrix.kwargs), matrix)


def _longer(graph: torch.fx.Graph, rows: Any, extra: int) -> torch.fx.Node:
    return _call(graph, _aten.constant_pad_nd.default, (rows, [0, extra]), {}, rows)


def _call(
    graph: torch.fx.Graph, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], like: Any
) -> torch.fx.Node:
    """A call in the place of ``like``, or for it."""
    node = graph.call_function(target, args, kwargs)
    given = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
    node.meta = {**like.meta, "val": target(*given, **kwargs)}
    return node
