"""What a joint graph computes twice is computed once.

Before: ``a = sigmoid(x)`` in the forward pass and ``b = sigmoid(x)`` in the backward one.
After: what read ``b`` reads ``a``.

Not merged: random numbers, what has no value yet (``empty``), what changes memory and equal nodes
on both sides of such a change, what the graph returns and its aliases (eager gives different
tensors), and operators that are not torch's own. (torch's pass of the kind,
``torch._functorch.compile_utils.fx_graph_cse``, takes more than a second to load.)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Final

import torch

from fusec.capture.seams import OpOverload, storage_of

_NAMESPACES: Final = frozenset(("aten", "prims"))
_WITHOUT_VALUE: Final = ("empty", "new_empty")
_PLAIN: Final = (
    bool, int, float, complex, str, type(None),
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


def merge_equal_nodes(graph: torch.fx.Graph) -> None:
    """Drop what is not used, and all but the first of equal nodes, in place."""
    graph.eliminate_dead_code()
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    returned = _storages(output.all_input_nodes)
    changes = 0
    first: dict[Hashable, torch.fx.Node] = {}
    for node in list(graph.nodes):
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
            changes += 1
        key = _key(node)
        if key is None or _storages((node,)) & returned:
            continue
        equal = first.setdefault((changes, key), node)
        if equal is not node:
            node.replace_all_uses_with(equal)
            graph.erase_node(node)


def _storages(nodes: Iterable[torch.fx.Node]) -> set[int]:
    values = (n.meta.get("val") for n in nodes)
    return {
        storage_of(v) for v in values if isinstance(v, torch.Tensor) and v.layout is torch.strided
    }


def _key(node: torch.fx.Node) -> Hashable | None:
    """Equal for nodes with equal values; None for one that is not to be merged."""
    target = node.target
    if node.op != "call_function":
        return None
    if isinstance(target, OpOverload):
        random = torch.Tag.nondeterministic_seeded in target.tags
        unset = target._opname.startswith(_WITHOUT_VALUE)
        if target.namespace not in _NAMESPACES or target._schema.is_mutable or random or unset:
            return None
    elif getattr(target, "__module__", "") != "_operator":
        return None
    try:
        return target, _frozen(node.args), _frozen(sorted(node.kwargs.items()))
    except TypeError:
        return None


def _frozen(value: Any) -> Hashable:
    """A value of an argument as a key. Raises TypeError for a kind that is not known here."""
    if isinstance(value, torch.fx.Node):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(item) for item in value)
    if type(value) in _PLAIN:
        return type(value).__name__, repr(value)  # to Python 1, 1.0 and True are equal
    raise TypeError(f"an argument of type {type(value).__name__}")
