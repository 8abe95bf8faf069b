"""Every touch of torch's private API, in few places, for torch 2.11 to 2.14: what is asked of it.

Nothing outside this file, `seams_aot.py` and `seams_joint.py` imports `torch._dynamo`,
`torch._functorch`, `torch._decomp`, `torch._guards` or reads their metadata classes: those change
with each release. Each function here has a test, so that a new release shows at once which seam
moved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
import torch._functorch.config as functorch_config
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._guards import TracingContext
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch._ops import OpOverloadPacket as OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.symbol import SymT, symbol_is_type

Callable_ = Callable[..., Any]


# -- Dynamo -----------------------------------------------------------------------------------


def disable(fn: Callable_) -> Callable_:
    """`fn`, never traced by Dynamo, nor anything that it calls."""
    disabled: Callable_ = torch.compiler.disable(fn, recursive=True)
    return disabled


def no_modes() -> AbstractContextManager[Any]:
    """Real tensors stay real inside: no fake tensors, no functionalisation."""
    return _disable_current_modes()


def fake_mode() -> AbstractContextManager[Any]:
    """Tensors made inside are fake: a device, a dtype and sizes, without memory."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def is_fake(tensor: torch.Tensor) -> bool:
    """True for a tensor or parameter without memory."""
    return isinstance(tensor, FakeTensor)


def is_plain(tensor: torch.Tensor) -> bool:
    """True for a tensor or parameter without a subclass of somebody's own (fake ones count)."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)


def mark_dynamic(tensor: torch.Tensor, dims: frozenset[int]) -> None:
    """Tell Dynamo that these dims of a result vary, so that the next graph is dynamic at once."""
    wrappers: Any = torch._functorch._aot_autograd.runtime_wrappers
    # The attribute that it sets was renamed in 2.13, and the function with it.
    mark = getattr(wrappers, "mark_dynamo_propagated_dynamic_indices", None)
    if mark is None:
        mark = wrappers.maybe_mark_dynamic_helper
    mark(tensor, set(dims))


def expects_fake_outputs() -> bool:
    """True when the caller's first call passes fake tensors (DDP's graph splitter does)."""
    context = TracingContext.try_get()
    return bool(context is not None and getattr(context, "fakify_first_call", False))


def compiled_autograd_active() -> bool:
    """True when the backward pass itself is going to be traced."""
    import torch._dynamo.compiled_autograd as compiled_autograd
    import torch._dynamo.config as dynamo_config

    return bool(
        getattr(dynamo_config, "compiled_autograd", False)
        or getattr(compiled_autograd, "in_compiled_autograd_region", False)
        or getattr(compiled_autograd, "compiled_autograd_enabled", False)
    )


# -- Symbolic shapes --------------------------------------------------------------------------


def shape_env() -> Any:
    """The ShapeEnv of the graph that is being compiled, or None."""
    context = TracingContext.try_get()
    fake_mode = context.fake_mode if context is not None else None
    return fake_mode.shape_env if fake_mode is not None else None


def _bound(value: Any) -> int | None:
    """A bound of a range; None for infinity, whichever of torch's and sympy's it is."""
    if value is int_oo or value is -int_oo or not getattr(value, "is_finite", True):
        return None
    return None if isinstance(value, float) and math.isinf(value) else int(value)


def ranges_of(numbers: Iterable[Any]) -> Callable[[Any], tuple[int | None, int | None]]:
    """`ranges_in` the ShapeEnv behind the first SymInt among these numbers."""
    return ranges_in(next((n.node.shape_env for n in numbers if isinstance(n, torch.SymInt)), None))


def ranges_in(env: Any) -> Callable[[Any], tuple[int | None, int | None]]:
    """A function from a ShapeEnv's sympy symbols to the inclusive ranges that guards promise."""

    def of(symbol: Any) -> tuple[int | None, int | None]:
        known = None if env is None else env.var_to_range.get(symbol)
        return (None, None) if known is None else (_bound(known.lower), _bound(known.upper))

    return of


def guards_in(env: Any) -> tuple[Any, ...]:
    """The guards of a ShapeEnv as sympy expressions."""
    return tuple(guard.expr for guard in env.guards)


def surely_equal(a: Any, b: Any) -> bool:
    """Whether two sizes are equal by what is known already; adds no guard."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(a == b))


def shape_promises() -> tuple[int, ...]:
    """Counts that grow when the graph being compiled gets new guards on sizes."""
    env = shape_env()
    if env is None:
        return ()
    return (
        len(env.guards),
        len(env.replacements),
        len(env.deferred_runtime_asserts),
        hash(tuple(map(str, env.var_to_range.values()))),
    )


def is_unbacked(value: Any) -> bool:
    """True when a symbolic number depends on a symbol that only the data decides."""
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return False
    kinds = (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)
    return any(symbol_is_type(s, kinds) for s in value.node.expr.free_symbols)


# -- State that changes what is traced ---------------------------------------------------------


def saved_tensor_hooks_active() -> bool:
    """True inside `torch.autograd.graph.saved_tensors_hooks`."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def functorch_active() -> bool:
    """True inside vmap, grad or another functorch transform."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def any_autocast() -> bool:
    return bool(torch._C._is_any_autocast_enabled())


def disable_autocast() -> AbstractContextManager[Any]:
    """Autocast is already in the graph: a compiled graph runs with it off."""
    guard: AbstractContextManager[Any] = torch._C._DisableAutocast()
    return guard


def release_saved(ctx: Any) -> None:
    """In a backward that keeps no graph: free the saved tensors that only the node still holds."""
    release = getattr(ctx, "maybe_clear_saved_tensors", None)
    if release is not None:
        release()


def leave_constant_gradients_undefined(ctx: Any) -> None:
    """In a forward: make no zeros as gradients of outputs that have none."""
    ctx._materialize_non_diff_grads = False


def storage_of(tensor: torch.Tensor) -> int:
    """A number that tensors have in common exactly when they share a storage."""
    return int(tensor.untyped_storage()._cdata)


def has_names(tensor: torch.Tensor) -> bool:
    """True for a tensor with named dims; torch 2.13 dropped them, and fake ones have none."""
    return not is_fake(tensor) and any(name is not None for name in getattr(tensor, "names", ()))


def fills_uninitialized_memory() -> bool:
    """`torch.utils.deterministic.fill_uninitialized_memory`."""
    return bool(torch._C._get_deterministic_fill_uninitialized_memory())


def mkldnn_enabled() -> bool:
    return bool(torch._C._get_mkldnn_enabled())


def native_functions() -> Any:
    """The namespace that torch.nn.functional hands on to: pad, linear, gelu."""
    return torch._C._nn


def functions_of_dynamo() -> tuple[tuple[str, Callable_], ...]:
    """Functions that Dynamo itself puts into graphs, by name: modes, and what it makes of vmap."""
    import torch._functorch.predispatch as predispatch
    import torch.amp.autocast_mode as autocast_mode

    names = (
        (torch._C, ("_set_grad_enabled", "_log_api_usage_once")),
        (autocast_mode, ("_enter_autocast", "_exit_autocast")),
        (
            predispatch,
            (
                "_add_batch_dim",
                "_remove_batch_dim",
                "_vmap_decrement_nesting",
                "_vmap_increment_nesting",
                "lazy_load_decompositions",
            ),
        ),
    )
    return tuple(
        (name, getattr(module, name))
        for module, wanted in names
        for name in wanted
        if hasattr(module, name)
    )


def python_modes() -> int:
    """How many modes of torch's Python dispatch are active: their code is in no key.

    Fake tensors are none of them: they change no graph, and prewarming traces under them.
    """
    modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    real = [mode for mode in modes if not isinstance(mode, FakeTensorMode)]
    return int(torch._C._len_torch_function_stack()) + len(real)


# Settings of functorch that change the graphs AOTAutograd makes.
_FUNCTORCH_SETTINGS: Final = (
    "activation_memory_budget",
    "activation_memory_budget_runtime_estimator",
    "activation_memory_budget_solver",
    "aggressive_recomputation",
    "backward_pass_autocast",
    "ban_recompute_long_fusible_chains",
    "ban_recompute_materialized_backward",
    "ban_recompute_not_in_allowlist",
    "ban_recompute_reductions",
    "ban_recompute_used_far_apart",
    "custom_op_default_layout_constraint",
    "enable_activation_offloading",
    "enable_complex_wrapper",
    "functionalize_rng_ops",
    "guess_tangent_strides_as_outputs",
    "is_non_builtin_to_include",
    "max_dist_from_bw",
    "recompute_views",
    "remat_using_tags_for_fwd_loss_bwd_graph",
    "selective_decompose",
    "treat_parameters_as_free_to_save",
    "view_replay_for_aliased_outputs",
)


def functorch_settings() -> tuple[tuple[str, str], ...]:
    """Name and value of the settings that this release knows."""
    known = ((n, getattr(functorch_config, n, None)) for n in _FUNCTORCH_SETTINGS)
    return tuple((name, repr(value)) for name, value in known)


def shape_settings() -> tuple[tuple[str, str], ...]:
    """Name and value of the settings that change what symbolic sizes are taken to be."""
    import torch.fx.experimental._config as config

    names = ("aggressive_guard_free_semantics", "backed_size_oblivious", "use_duck_shape")
    return tuple((name, repr(getattr(config, name, None))) for name in names)


def custom_passes_installed() -> bool:
    """True when somebody hooked a pass of their own into AOTAutograd: its code is in no key."""
    return any(
        getattr(functorch_config, name, None) is not None
        for name in ("joint_custom_pass", "partitioner_pass")
    )


# -- Decompositions -------------------------------------------------------------------------


def core_decompositions() -> dict[Any, Callable_]:
    """torch's table of decompositions to core ATen, a copy."""
    return dict(core_aten_decompositions().items())


def registered_decompositions(operators: Sequence[Any]) -> dict[Any, Callable_]:
    """torch's own decompositions of these operators (all overloads of a packet)."""
    return dict(get_decompositions(operators))
