"""Every touch of torch's private API around joint graphs: tracing them, cutting them in two.

The other half of `fusec.capture.seams`, under the same rules.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
import torch._functorch.config as functorch_config
import torch._functorch.partitioners as partitioners
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput
from torch._functorch.compile_utils import raise_getitems
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

from fusec.capture.seams import HigherOrderOperator, OpOverload

# What the user may set to have more, or something else, computed again than we would.
_PARTITION_DEFAULTS: Final = {
    "activation_memory_budget": 1.0,
    "aggressive_recomputation": False,
    "enable_activation_offloading": False,
    "functionalize_rng_ops": False,
    "_sync_decision_cross_ranks": False,
}
_PLAIN_VALUES: Final = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)


def torch_partitions(joint: torch.fx.GraphModule) -> bool:
    """True for a joint graph that torch's own partitioner must cut: the user tagged or set what to
    compute again, or it holds sub-graphs, collectives, or values that are no tensors."""
    settings = ((n, getattr(functorch_config, n, d), d) for n, d in _PARTITION_DEFAULTS.items())
    return any(value != default for _, value, default in settings) or any(
        _is_special(node) for node in joint.graph.nodes
    )


def _is_special(node: torch.fx.Node) -> bool:
    tags = ("recompute", "memory_budget", "saved_tensor_with_no_vc_check")
    if any(tag in node.meta for tag in tags) or "memory_budget" in str(node.meta.get("custom", "")):
        return True
    if isinstance(node.target, HigherOrderOperator):
        return True
    if isinstance(node.target, OpOverload) and node.target.namespace.startswith("_c10d"):
        return True
    value = node.meta.get("val")
    items = value if isinstance(value, (list, tuple)) else (value,)
    return any(item is not None and not isinstance(item, _PLAIN_VALUES) for item in items)


def torch_partition(
    joint: torch.fx.GraphModule, inputs: Any, **how: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """torch's min cut: the forward and the backward graph of a joint one."""
    forward, backward = partitioners.min_cut_rematerialization_partition(joint, inputs, **how)
    return forward, backward


def split_joint(
    joint: torch.fx.GraphModule, saved: Sequence[torch.fx.Node], *, num_fwd_outputs: int
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """The forward and the backward graph of a joint one, with these values between them."""
    numbers = [n for n in saved if isinstance(n.meta.get("val"), torch.SymInt)]
    tensors = [n for n in saved if n not in set(numbers)]
    forward, backward = partitioners._extract_fwd_bwd_modules(
        joint, tensors, saved_sym_nodes=numbers, num_fwd_outputs=num_fwd_outputs
    )
    backward = partitioners.reordering_to_mimic_autograd_engine(backward)
    return raise_getitems(forward), raise_getitems(backward)


def starts_backward(node: torch.fx.Node) -> bool:
    """True for a gradient that the backward pass is given, and for what changes memory in it."""
    if node.op == "placeholder":
        return "tangents" in str(node.target)
    tag = node.meta.get("partitioner_tag")
    changes = isinstance(node.target, OpOverload) and node.target._schema.is_mutable
    return tag == "must_be_in_backward" or (tag == "is_backward" and changes)


def primals(nodes: Iterable[torch.fx.Node]) -> list[torch.fx.Node]:
    """The inputs of the step itself, in order."""
    return [n for n in nodes if n.op == "placeholder" and "primals" in str(n.target)]


def mutated_inputs(joint: torch.fx.GraphModule) -> frozenset[int]:
    """Positions, among the primals, of inputs whose data the step being compiled changes: torch
    tells of each output what it is."""
    output = next(n for n in reversed(joint.graph.nodes) if n.op == "output")
    changed = [
        told.mutated_input
        for told in output.meta.get("desc", ())
        if isinstance(told, InputMutationAOTOutput)
    ]
    inputs = [n.meta.get("desc") for n in primals(joint.graph.nodes)]
    return frozenset(i for i, told in enumerate(inputs) if told in changed)


def element_count(value: torch.Tensor) -> int:
    """Elements of a tensor; symbols of its sizes count as one typical number."""
    count = 1
    for size in value.shape:
        count *= size if isinstance(size, int) else _typical(size.node.expr)
    return count


def size_in_bytes(value: Any) -> int | None:
    """Bytes of a tensor, as `element_count` counts; 8 for a number; None for anything else."""
    if isinstance(value, torch.Tensor):
        return element_count(value) * value.dtype.itemsize
    return 8 if isinstance(value, torch.SymInt) else None


_TYPICAL_SIZE: Final = 256


@functools.lru_cache(maxsize=4096)
def _typical(expression: Any) -> int:
    return max(1, int(expression.xreplace(dict.fromkeys(expression.free_symbols, _TYPICAL_SIZE))))


def below_autograd() -> AbstractContextManager[Any]:
    """Operators called in it are dispatched as if autograd's own kernels had been passed, those of
    Python among them, which break down what is to stay whole."""
    context: AbstractContextManager[Any] = torch._C._AutoDispatchBelowAutograd()
    return context


def triton_kernel(arguments: Any) -> tuple[Any, dict[str, Any]]:
    """A user's Triton kernel and its constants, by the arguments of the operator that calls it."""
    return (
        kernel_side_table.get_kernel(arguments["kernel_idx"]),
        kernel_side_table.get_constant_args(arguments["constant_args_idx"]),
    )
