"""What is replaced in Dynamo's graph before AOTAutograd breaks it down.

Before: functions that torch breaks down differently from machine to machine. After: our operators
and compositions in their place, so that the same graphs come out wherever a model is captured, with
a GPU or without. Attention on a GPU stays whole, and so does linear interpolation on a CPU. The
front key is over the graph as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from fusec.attention.attend import attend
from fusec.capture import seams
from fusec.capture.upsampling import upsample, whole

_ATTENTION: Final = frozenset(
    {
        torch.nn.functional.scaled_dot_product_attention,
        torch.ops.aten.scaled_dot_product_attention.default,
    }
)
_INTERPOLATION: Final = torch.nn.functional.interpolate
_SAMPLED: Final = (
    *("input", "size", "scale_factor", "mode", "align_corners"),
    *("recompute_scale_factor", "antialias"),
)
_PARAMETERS: Final = (
    *("query", "key", "value", "attn_mask", "dropout_p", "is_causal"),
    *("scale", "enable_gqa"),
)


def rewrite(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with our functions in it: a copy, or `gm` itself where there is nothing to do."""
    if not any(n.target in _ATTENTION or n.target is _INTERPOLATION for n in gm.graph.nodes):
        return gm
    copy = copied(gm)
    site = 0
    for n in copy.graph.nodes:
        if n.target is _INTERPOLATION:
            given = dict(zip(_SAMPLED, n.args)) | n.kwargs
            x = given.pop("input")
            arguments = whole(_traced(x), given)
            if arguments is not None:
                n.target, n.args, n.kwargs = upsample, (x, *arguments), {}
        elif n.target in _ATTENTION:
            given = dict(zip(_PARAMETERS, n.args)) | n.kwargs
            if _ours(given):
                n.target, n.args, n.kwargs = attend, (), given | {"site": site}
                site += 1
    copy.recompile()
    return copy


def copied(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A graph module with a graph of its own over the same attributes."""
    graph = torch.fx.Graph()
    outputs = graph.graph_copy(gm.graph, {})
    last = graph.output(outputs)
    last.meta.update(next(n for n in gm.graph.nodes if n.op == "output").meta)
    made = torch.fx.GraphModule(gm, graph)
    made.meta.update(gm.meta)
    return made


def _ours(given: Mapping[str, Any]) -> bool:
    """Whether our operators compute this attention: on a GPU, with numbers that are known, and no
    broadcast of query, key and value. (Their dtypes may differ: autocast then makes them one.)"""
    query, key, value = (_traced(given.get(name)) for name in _PARAMETERS[:3])
    mask, causal = _traced(given.get("attn_mask")), given.get("is_causal", False)
    p, scale = given.get("dropout_p", 0.0), given.get("scale")
    if not all(isinstance(x, torch.Tensor) and x.is_cuda for x in (query, key, value)):
        return False
    if not (type(p) in (int, float) and 0 <= p < 1 and type(causal) is bool):
        return False
    if scale is not None and type(scale) is not float:
        return False
    if mask is not None and (causal or mask.dim() > query.dim()):
        return False
    return _fit(query, key, value, bool(given.get("enable_gqa", False)))


def _fit(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, gqa: bool) -> bool:
    same = seams.surely_equal
    if not query.is_floating_point() or query.dim() not in (3, 4):
        return False
    if not query.dim() == key.dim() == value.dim():
        return False
    pairs = [
        *((x.shape[0], query.shape[0]) for x in (key, value) if query.dim() == 4),
        (key.shape[-3], value.shape[-3]),
        (key.shape[-2], value.shape[-2]),
        (query.shape[-1], key.shape[-1]),
    ]
    if not all(same(a, b) for a, b in pairs):
        return False
    heads, groups = query.shape[-3], key.shape[-3]
    if same(heads, groups):
        return True
    return gqa and type(heads) is int and type(groups) is int and groups > 0 == heads % groups


def _traced(value: Any) -> Any:
    """The tensor behind a node of Dynamo's graph."""
    return value.meta.get("example_value") if isinstance(value, torch.fx.Node) else value
