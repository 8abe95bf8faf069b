"""Which values of a training step the forward pass saves, and what the backward computes again.

Before: the joint graph of both passes, as AOTAutograd traces it. After: the values that cross from
one to the other, the cheapest cut of the graph by bytes. A saved value is written, held and read
again; an input is held anyway; what fusion makes free, chains of pointwise operations beside their
users, costs its arithmetic. Never computed again are matrix products, attention, reductions, what
draws random numbers and what has effects; nor what the backward would have to store for a library
call, nor a chain that leads back over library calls, layer by layer: a backward pass that is slower
than one that saves is no gain.

The choice depends on the graph's structure and order alone, never on names; symbolic sizes count as
one typical number.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from fusec.capture import seams, seams_joint
from fusec.capture.equal_nodes import merge_equal_nodes
from fusec.capture.min_cut import UNLIMITED, FlowNetwork
from fusec.capture.pad_products import pad_products

# Costs in quarters of a byte that is read or written.
_READ: Final = 4
_WRITE: Final = 4
_HOLD: Final = 4  # a byte that stays from the forward to the backward pass
_ARITHMETIC: Final = 1  # one operation on one element, whatever its type
_LARGE: Final = 4  # an operand counts as large from this part of the result on

_HEAVY: Final = {
    **dict.fromkeys("exp exp2 log log2 log10 sigmoid silu sqrt rsqrt div reciprocal".split(), 3),
    **dict.fromkeys("expm1 log1p tanh erf gelu mish softplus sin cos atan sinh cosh".split(), 5),
    **dict.fromkeys("tan asin acos atan2 asinh acosh atanh erfc erfinv".split(), 10),
    **dict.fromkeys("pow lgamma digamma polygamma".split(), 15),
    **dict.fromkeys("gather index".split(), 48),  # its source is read in jumps
}
# Not pointwise by torch's tags and yet free of effects and cheap.
_CHEAP: Final = frozenset(
    "_to_copy _unsafe_view reshape full full_like zeros zeros_like ones ones_like empty empty_like "
    "new_zeros new_ones new_full new_empty arange scalar_tensor fill iota lift_fresh_copy "
    "constant_pad_nd cat stack repeat flip roll triu tril select_scatter slice_scatter copy "
    "gather index convert_element_type".split()
)
_FOLDS: Final = frozenset(
    "sum mean amax amin max min var var_mean std prod any all argmax argmin cumsum cumprod "
    "cummax cummin logcumsumexp".split()
)


def partition(
    joint: torch.fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **more: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """The forward and the backward graph of a joint one, for AOTAutograd.

    Where the user says what to compute again (checkpoints, budgets), or the graph holds what this
    module knows nothing of, the choice is torch's.
    """
    if seams_joint.torch_partitions(joint):
        return seams_joint.torch_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **more)
    merge_equal_nodes(joint.graph)
    pad_products(joint.graph, _unseen(joint.graph))
    saved = choose(joint.graph, num_fwd_outputs, seams_joint.mutated_inputs(joint))
    if saved is None:
        return seams_joint.torch_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **more)
    return seams_joint.split_joint(joint, saved, num_fwd_outputs=num_fwd_outputs)


def choose(
    graph: torch.fx.Graph, num_fwd_outputs: int, mutated: frozenset[int] = frozenset()
) -> list[torch.fx.Node] | None:
    """The values to save, in the order of the graph; None where there is no choice.

    mutated: positions of inputs that the step changes; they do not hold their values until the
    backward pass.
    """
    nodes = [n for n in graph.nodes if n.op != "output"]
    backward = _backward(nodes)
    returned = _returned(graph)
    forward = _needed(returned[:num_fwd_outputs])
    finals = set(returned[num_fwd_outputs:])
    if not backward and not finals:
        return None
    wanted = _needed([*backward, *finals])  # nothing else can be worth saving
    facts = _facts(nodes, backward, forward, set(returned[:num_fwd_outputs]), mutated)
    source, sink = 0, 1
    before: dict[torch.fx.Node, int] = {}
    after: dict[torch.fx.Node, int] = {}
    count = 2
    edges: list[tuple[int, int, int]] = []
    for node in nodes:
        if node in backward or node not in wanted:
            continue
        fact = facts[node]
        before[node], after[node] = count, count + 1
        count += 2
        edges.append((source, before[node], fact.again))
        edges.append((before[node], after[node], fact.save))
        if node in finals or any(user in backward for user in node.users):
            edges.append((after[node], sink, UNLIMITED))
        edges += [
            (after[used], before[node], UNLIMITED) for used in dict.fromkeys(node.all_input_nodes)
        ]
    late = FlowNetwork(count, edges).cut(source, sink)
    if late is None:
        return None
    return [n for n in before if after[n] in late and before[n] not in late]


@dataclass(frozen=True, slots=True)
class _Fact:
    """save: cost of keeping a value for the backward pass; again: of computing it again."""

    save: int
    again: int


def _facts(
    nodes: Sequence[torch.fx.Node],
    backward: set[torch.fx.Node],
    forward: set[torch.fx.Node],
    outputs: set[torch.fx.Node],
    mutated: frozenset[int],
) -> dict[torch.fx.Node, _Fact]:
    kinds = {node: _kind(node) for node in nodes}
    level = _levels(nodes, kinds)
    changed = {target for n in nodes for target in _changed(n)}
    changed.update(n for i, n in enumerate(seams_joint.primals(nodes)) if i in mutated)
    stored = _stored(nodes, kinds, level, forward, outputs)
    called = _called_late(nodes, kinds, backward)
    facts: dict[torch.fx.Node, _Fact] = {}
    for node in nodes:
        kind = kinds[node]
        size = seams_joint.size_in_bytes(node.meta.get("val"))
        if size is None or kind in ("view", "constant") or node in changed:
            save = UNLIMITED
        elif kind == "number":
            save = 1
        elif kind == "input":
            save = size * _READ
        else:
            save = size * (_READ + _HOLD + (0 if node in stored else _WRITE))
        if node.op == "placeholder" or kind == "effect":
            again = UNLIMITED
        elif kind in ("view", "constant", "number", "item"):
            again = 0
        elif node not in forward:
            again = 0  # the forward pass has no use for it: it is computed once, wherever
        elif kind != "cheap" or node in called or _leads_back(node, kinds, level):
            again = UNLIMITED
        else:
            again = seams_joint.element_count(node.meta["val"]) * _weight(node)
        facts[node] = _Fact(save, again)
    return facts


def _kind(node: torch.fx.Node) -> str:
    """input; constant; number, of sizes; item, of several results; view; cheap; fold; effect, also
    random numbers; library."""
    value = node.meta.get("val")
    if isinstance(value, torch.SymInt):
        return "number"
    if node.op == "placeholder":
        return "input"
    if node.op == "get_attr" or isinstance(value, (torch.SymFloat, torch.SymBool)):
        return "constant"
    target = node.target
    if target is operator.getitem:
        return "item" if _kind(_parent(node)) != "view" else "view"
    if not isinstance(target, seams.OpOverload):
        return "effect"
    schema, name = target._schema, _packet(node)
    if schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags:
        return "effect"
    if name == "_unsafe_view" or any(r.alias_info is not None for r in schema.returns):
        return "view"
    if target.namespace not in ("aten", "prims"):
        return "library"
    if torch.Tag.pointwise in target.tags or name in _CHEAP:
        return "cheap"
    return "fold" if name in _FOLDS else "library"


def _weight(node: torch.fx.Node) -> int:
    """The cost of one element, its operands given."""
    name = _packet(node)
    if name == "pow" and node.args[1] in (1, 2, 3, 4):
        return 2 * _ARITHMETIC
    return _HEAVY.get(name, _ARITHMETIC)


def _changed(node: torch.fx.Node) -> list[torch.fx.Node]:
    """What a call changes in place."""
    if not isinstance(node.target, seams.OpOverload) or not node.target._schema.is_mutable:
        return []
    pairs = zip(node.target._schema.arguments, node.args, strict=False)
    return [
        value
        for argument, value in pairs
        if isinstance(value, torch.fx.Node)
        and argument.alias_info is not None
        and argument.alias_info.is_write
    ]


def _parent(node: torch.fx.Node) -> torch.fx.Node:
    parent = node.args[0]
    assert isinstance(parent, torch.fx.Node)
    return parent


def _packet(node: torch.fx.Node) -> str:
    """`add` for a call of `aten.add.Tensor`."""
    target = node.target
    return str(target._schema.name).split("::")[-1] if isinstance(target, seams.OpOverload) else ""


def _backward(nodes: Sequence[torch.fx.Node]) -> set[torch.fx.Node]:
    """What depends on gradients, or belongs to the backward pass otherwise."""
    found: set[torch.fx.Node] = set()
    for node in nodes:
        if seams_joint.starts_backward(node) or any(n in found for n in node.all_input_nodes):
            found.add(node)
    return found


def _unseen(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """What the forward pass computes and does not return."""
    nodes = [n for n in graph.nodes if n.op != "output"]
    backward, kinds = _backward(nodes), {n: _kind(n) for n in nodes}
    return [
        node
        for node in nodes
        if node not in backward and all(r.op != "output" for r in _readers(node, kinds))
    ]


def _returned(graph: torch.fx.Graph) -> list[Any]:
    """Outputs of the forward, then of the backward pass."""
    (output,) = graph.find_nodes(op="output")
    return list(output.args[0])


def _needed(outputs: Sequence[Any]) -> set[torch.fx.Node]:
    """These nodes and whatever they are computed from."""
    found: set[torch.fx.Node] = set()
    pending = [o for o in outputs if isinstance(o, torch.fx.Node)]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += node.all_input_nodes
    return found


def _levels(
    nodes: Sequence[torch.fx.Node], kinds: dict[torch.fx.Node, str]
) -> dict[torch.fx.Node, int]:
    """How many library calls lie on the longest way to a value, its own included: computations of
    different levels never share a kernel."""
    level: dict[torch.fx.Node, int] = {}
    for node in nodes:
        own = max((level[n] for n in node.all_input_nodes), default=0)
        level[node] = own + (kinds[node] == "library")
    return level


def _readers(node: torch.fx.Node, kinds: dict[torch.fx.Node, str]) -> list[torch.fx.Node]:
    """What reads a value, through views of it."""
    found: dict[torch.fx.Node, None] = {}
    pending = list(node.users)
    while pending:
        user = pending.pop()
        if kinds.get(user) == "view":
            pending += user.users
        else:
            found[user] = None
    return list(found)


def _stored(
    nodes: Sequence[torch.fx.Node],
    kinds: dict[torch.fx.Node, str],
    level: dict[torch.fx.Node, int],
    forward: set[torch.fx.Node],
    outputs: set[torch.fx.Node],
) -> set[torch.fx.Node]:
    """Values that the forward pass writes to memory in any case."""
    found: set[torch.fx.Node] = set()
    for node in nodes:
        kind = kinds[node]
        made = _parent(node) if kind == "item" else node
        if node in outputs or kinds[made] == "library":
            found.add(node)
        elif kind in ("cheap", "fold", "item", "effect"):
            readers = [r for r in _readers(node, kinds) if r in forward]
            if any(kinds[r] == "library" or level[r] > level[node] for r in readers):
                found.add(node)
    return found


def _called_late(
    nodes: Sequence[torch.fx.Node],
    kinds: dict[torch.fx.Node, str],
    backward: set[torch.fx.Node],
) -> set[torch.fx.Node]:
    """Values that the backward pass hands to a library call: they lie in memory there."""
    return {
        node
        for node in nodes
        if kinds[node] == "cheap"
        and any(r in backward and kinds[r] == "library" for r in _readers(node, kinds))
    }


def _leads_back(
    node: torch.fx.Node, kinds: dict[torch.fx.Node, str], level: dict[torch.fx.Node, int]
) -> bool:
    """Whether a large operand was made before the last library call on the way here. Computing
    such nodes again, one after the other, would go back to the first layer of a model."""
    size = seams_joint.size_in_bytes(node.meta.get("val")) or 0
    for operand in node.all_input_nodes:
        base = operand
        while kinds[base] == "view" and base.all_input_nodes:
            base = base.all_input_nodes[0]
        part = seams_joint.size_in_bytes(base.meta.get("val")) or 0
        if kinds[base] != "input" and level[base] < level[node] and part * _LARGE > size:
            return True
    return False
