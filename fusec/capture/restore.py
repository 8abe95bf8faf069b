"""Calls compiled graphs by a recipe, where AOTAutograd was skipped.

What this does is what AOTAutograd's own wrappers do, down to the errors for a second derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fusec.capture import seams
from fusec.capture.aot import Executable
from fusec.capture.recipe import Recipe
from fusec.capture.seams_aot import TangentLayout
from fusec.errors import LoadError


def restore(recipe: Recipe, parts: Mapping[str, Executable]) -> Callable[..., Any]:
    """The callable of a Dynamo graph: takes its inputs, returns its outputs.

    parts: executables by role. Raises LoadError when one that the recipe needs is not there.
    """
    try:
        if recipe.training:
            return _training(recipe, parts["forward"], parts["backward"])
        return _inference(recipe, parts["inference"])
    except KeyError as error:
        raise LoadError(f"the {error.args[0]} graph of a recipe is not there") from error


def _inference(recipe: Recipe, run: Executable) -> Callable[..., Any]:
    finish = _finisher(recipe)
    bumped = recipe.forward.bumped

    def call(*args: Any) -> Any:
        if bumped:
            torch.autograd.graph.increment_version([args[i] for i in bumped])
        with torch.no_grad():
            return finish(run(list(args)))

    return _without_autocast(call) if recipe.autocast_off else call


def _finisher(recipe: Recipe) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Checks the number of outputs and tells Dynamo which of their dims vary."""
    outputs = recipe.forward.outputs
    varying = [(i, o.dynamic_dims) for i, o in enumerate(outputs) if o.dynamic_dims]
    count = len(outputs)

    def finish(results: Sequence[Any]) -> Sequence[Any]:
        if len(results) != count:
            raise LoadError(f"a graph made {len(results)} outputs where {count} were recorded")
        for index, dims in varying:
            seams.mark_dynamic(results[index], dims)
        return results

    return finish


def _without_autocast(call: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        with seams.disable_autocast():
            return call(*args)

    return run


def _training(
    recipe: Recipe, run_forward: Executable, run_backward: Executable
) -> Callable[..., Any]:
    function = _function(recipe, run_forward, run_backward)
    finish = _finisher(recipe)
    bumped, detached = recipe.forward.bumped, recipe.detached

    def call(*args: Any) -> Any:
        if bumped:
            torch.autograd.graph.increment_version([args[i] for i in bumped])
        if detached:
            given = list(args)
            for i in detached:
                given[i] = given[i].detach()
            return finish(function.apply(*given))
        return finish(function.apply(*args))

    if not recipe.force_grad:
        return call

    def call_with_grad(*args: Any) -> Any:
        with torch.enable_grad():
            return call(*args)

    return call_with_grad


def _function(
    recipe: Recipe, run_forward: Executable, run_backward: Executable
) -> type[torch.autograd.Function]:
    """The autograd.Function of one forward and its backward."""
    f = recipe.forward
    count = len(f.outputs)
    end_checked = count + f.saved_checked
    end_unchecked = end_checked + f.saved_unchecked
    total = end_unchecked + f.saved_symbols
    views = [i for i, o in enumerate(f.outputs) if o.unsafe_view]
    constant = [i for i, o in enumerate(f.outputs) if o.is_tensor and not o.requires_grad]
    with_grad = [i for i, o in enumerate(f.outputs) if o.requires_grad]
    if recipe.autocast_off:
        run_forward, run_backward = _without_autocast(run_forward), _without_autocast(run_backward)

    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            results = run_forward(list(args))
            if len(results) != total:
                raise LoadError(f"a graph made {len(results)} outputs where {total} were recorded")
            # A view keeps its base and its base's history alive, and would check its version.
            saved = [t.detach() if t._is_view() else t for t in results[count:end_unchecked]]
            ctx.save_for_backward(*saved[: f.saved_checked])
            ctx.unchecked = saved[f.saved_checked :]
            ctx.symbols = results[end_unchecked:]
            outputs = list(results[:count])
            for i in views:
                outputs[i] = torch.ops.aten._unsafe_view(outputs[i], outputs[i].shape)
            ctx.mark_non_differentiable(*[outputs[i] for i in constant])
            seams.leave_constant_gradients_undefined(ctx)
            return tuple(outputs)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            _check_backward(recipe.deterministic)
            args = [*ctx.symbols, *ctx.saved_tensors, *ctx.unchecked]
            args += [_laid_out(grads[i], layout) for i, layout in zip(with_grad, f.tangents)]
            seams.release_saved(ctx)
            del grads
            if torch.is_grad_enabled():
                return _OnlyOnce.apply(  # type: ignore[no-untyped-call]
                    lambda: run_backward(args), torch.empty(0, requires_grad=True)
                )
            return tuple(run_backward(args))

    return Compiled


class _OnlyOnce(torch.autograd.Function):
    """A backward under `create_graph=True`: its results say that a second one is an error."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[], list[Any]], _: torch.Tensor) -> Any:
        return tuple(run())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(
            "fusec compiles no second derivatives: a compiled backward cannot be differentiated. "
            "Run the part that needs them without torch.compile."
        )


def _check_backward(deterministic: bool) -> None:
    """What the backward's caller must not have changed since the forward was captured."""
    if seams.functorch_active():
        raise RuntimeError(
            "a compiled backward is called inside vmap, grad or vjp, which is not supported: "
            "put the transform inside torch.compile"
        )
    if not deterministic and torch.are_deterministic_algorithms_enabled():
        raise RuntimeError(
            "torch.use_deterministic_algorithms(True) was set after the forward was compiled "
            "without it: set it before the model is compiled"
        )


def _laid_out(grad: Any, layout: TangentLayout) -> torch.Tensor:
    """A gradient with the sizes and strides that the backward graph was made for."""
    if not isinstance(grad, torch.Tensor) or not seams.is_plain(grad):
        raise RuntimeError(
            f"a gradient is a {type(grad).__name__}, where the backward was compiled for a plain "
            "tensor: detach outputs that need no gradient"
        )
    if layout.memory_format is not None:
        return grad.contiguous(memory_format=layout.memory_format)
    if grad.shape == layout.size and grad.stride() == layout.stride:
        return grad
    made = torch.empty_strided(layout.size, layout.stride, dtype=grad.dtype, device=grad.device)
    return made.copy_(grad)
