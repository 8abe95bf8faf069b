"""Every touch of torch's private API that runs AOTAutograd and reads what it recorded.

A part of `fusec.capture.seams`, under the same rules.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch._functorch.config as functorch_config
from torch._functorch._aot_autograd.schemas import MutationType, OutputType
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import TracingContext
from torch.utils._python_dispatch import _disable_current_modes

from fusec.capture.seams import Callable_


def aot_module(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    forward: Callable_,
    backward: Callable_,
    inference: Callable_,
    partition: Callable_,
    decompositions: dict[Any, Callable_],
) -> Callable_:
    """Run AOTAutograd; each compiler gets (graph module, inputs) and returns a boxed callable.

    partition: called as `seams_joint.torch_partition` is, with the joint graph of a training step.
    The backward is compiled with the forward, so that both can be under way at once. Donated
    buffers are off: with them a second backward through a retained graph is an error.
    """
    settings = {"force_non_lazy_backward_lowering": True, "donated_buffer": False}
    with functorch_config.patch(settings):
        compiled: Callable_ = aot_module_simplified(
            gm,
            inputs,
            fw_compiler=forward,
            bw_compiler=backward,
            inference_compiler=inference,
            partition_fn=partition,
            decompositions=decompositions,
            keep_inference_input_mutations=True,
        )
    # DDP's graph splitter asks this counter whether the first call will give it fake tensors.
    torch._dynamo.utils.counters["aot_autograd"]["total"] += 1
    return compiled


def without_output_check() -> AbstractContextManager[Any]:
    """Leaves the mode in which AOTAutograd watches custom operators during a graph's first call.

    It refuses tensor subclasses that the compiled graph has no trouble with, and has nothing to
    find: our graphs hold no custom operator's code.
    """
    modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    if [type(mode).__name__ for mode in modes] == ["_AnalyzeCustomOpInputOutputMode"]:
        return _disable_current_modes()
    return contextlib.nullcontext()


def no_donated_buffers() -> None:
    """Called while a backward is compiled: state that it reuses no saved buffer."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


@dataclass(frozen=True)
class TangentLayout:
    """The layout that a backward graph is made for: a memory format, or exact sizes, strides."""

    memory_format: torch.memory_format | None
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()


@dataclass(frozen=True)
class OutputInfo:
    """One output of the user's function."""

    is_tensor: bool
    requires_grad: bool
    unsafe_view: bool
    dynamic_dims: frozenset[int]


@dataclass(frozen=True)
class SimpleForward:
    """What is needed to call a forward and a backward graph without AOTAutograd's wrappers.

    outputs: the user's outputs; bumped: inputs whose version a call increments, as an in-place
    operation in the graph writes them; saved: tensors saved with the version check, then without;
    symbols: numbers saved; tangents: layout by output that has a gradient; mutated: inputs that
    the graph writes, known only right after tracing.
    """

    inputs: int
    outputs: tuple[OutputInfo, ...]
    bumped: tuple[int, ...]
    saved_checked: int
    saved_unchecked: int
    saved_symbols: int
    tangents: tuple[TangentLayout, ...]
    mutated: tuple[int, ...] = ()


def simple_forward(outputs_of_graph: int, training: bool) -> SimpleForward | str:
    """What AOTAutograd recorded about the graph being compiled, or why it is not simple.

    outputs_of_graph: number of outputs of the forward or inference graph.
    """
    context = TracingContext.try_get()
    meta = context.fw_metadata if context is not None else None
    if context is None or meta is None:
        return "no record of AOTAutograd"
    reason = _not_simple(meta, context)
    if reason is not None:
        return reason
    outputs = tuple(
        OutputInfo(
            is_tensor=issubclass(o.raw_type, torch.Tensor),
            requires_grad=bool(o.requires_grad),
            unsafe_view=o.output_type is OutputType.unsafe_view_alias,
            dynamic_dims=frozenset(o.dynamic_dims or ()),
        )
        for o in meta.output_info
    )
    symbols = int(meta.num_symints_saved_for_bw or 0) if training else 0
    unchecked = int(getattr(meta, "num_tensors_saved_with_no_vc_check", 0) or 0) if training else 0
    checked = outputs_of_graph - len(outputs) - symbols - unchecked
    if checked < 0 or (not training and checked):
        return "the graph's outputs are not the ones recorded"
    layouts: list[TangentLayout] = []
    if training:
        for tangent in meta.subclass_tangent_meta:
            layout = getattr(tangent, "memory_format", None)
            if layout is None:
                return "a gradient's layout is not recorded"
            if layout.memory_format is not None:
                layouts.append(TangentLayout(layout.memory_format))
            elif all(isinstance(x, int) for x in (*layout.size, *layout.stride)):
                layouts.append(TangentLayout(None, tuple(layout.size), tuple(layout.stride)))
            else:
                return "a gradient's layout is symbolic"
        if len(layouts) != sum(o.requires_grad for o in outputs):
            return "gradients and outputs do not match"
    return SimpleForward(
        len(meta.input_info),
        outputs,
        tuple(meta.mutated_graph_handled_indices_seen_by_autograd),
        checked,
        unchecked,
        symbols,
        tuple(layouts),
        tuple(meta.mutated_graph_handled_indices),
    )


def _not_simple(meta: Any, context: Any) -> str | None:
    """Why a plain autograd.Function cannot stand for this graph; None when it can."""
    plain = (OutputType.non_alias, OutputType.unsafe_view_alias)
    if any(i.mutation_type is MutationType.MUTATED_OUT_GRAPH for i in meta.input_info):
        return "an input is changed in place outside the graph"
    if any(i.mutates_metadata or i.mutates_storage_metadata for i in meta.input_info):
        return "the shape or storage of an input is changed"
    if any(getattr(i, "mutation_inductor_storage_resize", False) for i in meta.input_info):
        return "the storage of an input is resized"
    if any(o.output_type not in plain for o in meta.output_info) or meta.num_intermediate_bases:
        return "an output shares memory with an input or another output"
    if any(
        bool(o.requires_grad) != bool(getattr(o, "requires_grad_for_backward", o.requires_grad))
        for o in meta.output_info
    ):
        return "an output requires a gradient that does not come from this graph"
    if any(o.requires_grad and not issubclass(o.raw_type, torch.Tensor) for o in meta.output_info):
        return "an output that is no tensor requires a gradient"
    if meta.is_rng_op_functionalized or getattr(meta, "num_graphsafe_rng_states", 0):
        return "random numbers are functionalised"
    if meta.tokens or getattr(meta, "num_backward_tokens", 0):
        return "operators with side effects are ordered by tokens"
    if meta.grad_enabled_mutation is not None:
        return "the function leaves the gradient mode changed"
    if getattr(meta, "num_opaque_objects_saved_for_bw", 0):
        return "opaque objects are saved for the backward"
    if getattr(meta, "act_input_indices", None):
        return "an input is an unfinished collective"
    if meta.indices_of_inputs_that_requires_grad_with_mutations_in_bw:
        return "the backward changes an input in place"
    if any(type(x).__name__ == "SubclassCreationMeta" for x in _subclass_metas(meta)):
        return "a tensor subclass is involved"
    if context.guards_context.aotautograd_guards:
        return "AOTAutograd added guards on inputs that share memory"
    return None


def _subclass_metas(meta: Any) -> Iterable[Any]:
    yield from meta.subclass_inp_meta
    yield from meta.subclass_fw_graph_out_meta
    yield from meta.subclass_tangent_meta
