"""What a front hit needs to call the compiled graphs without AOTAutograd, and the calling itself.

A recipe is made on a miss from what AOTAutograd recorded, where that is simple enough for a plain
`torch.autograd.Function`; it is stored beside the compiled graphs. `restore` then behaves as
AOTAutograd's own wrappers do, down to the errors for a second derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from cache.errors import CacheError
from cache.protocol import pack, unpack
from fusec.capture import seams
from fusec.capture.aot import Executable, Traced
from fusec.capture.dtypes import format_name, format_of
from fusec.capture.seams import OutputInfo, SimpleForward, TangentLayout
from fusec.errors import LoadError, WireError

RECIPE_VERSION: Final = 1
MAX_RECIPE_BYTES: Final = 1 << 20
_MAX_VALUES: Final = 1 << 20  # inputs, outputs or saved values of one graph


@dataclass(frozen=True)
class Recipe:
    """How to call a forward graph and its backward, or an inference graph.

    training: there is a backward; detached: inputs that no gradient flows into; autocast_off:
    autocast is in the graph already; force_grad: captured with gradients off around a region that
    turns them on; deterministic: captured under `torch.use_deterministic_algorithms`. The rest is
    `fusec.capture.seams.SimpleForward`.
    """

    training: bool
    forward: SimpleForward
    detached: tuple[int, ...]
    autocast_off: bool
    force_grad: bool
    deterministic: bool

    def to_bytes(self) -> bytes:
        f = self.forward
        return pack(
            {
                "v": RECIPE_VERSION,
                "training": self.training,
                "inputs": f.inputs,
                "outputs": [
                    [o.is_tensor, o.requires_grad, o.unsafe_view, sorted(o.dynamic_dims)]
                    for o in f.outputs
                ],
                "bumped": list(f.bumped),
                "saved": [f.saved_checked, f.saved_unchecked, f.saved_symbols],
                "tangents": [_layout_to_wire(t) for t in f.tangents],
                "detached": list(self.detached),
                "flags": [self.autocast_off, self.force_grad, self.deterministic],
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Recipe:
        """Raises WireError for anything that `to_bytes` does not write."""
        try:
            body = unpack(data, max_bytes=MAX_RECIPE_BYTES)
        except CacheError as error:
            raise WireError(f"a recipe does not decode: {error}") from error
        if not isinstance(body, dict) or set(body) != _FIELDS or body["v"] != RECIPE_VERSION:
            raise WireError("not a recipe of this version")
        flags = _list(body["flags"], bool)
        saved = _list(body["saved"], int)
        if len(flags) != 3 or len(saved) != 3 or not isinstance(body["training"], bool):
            raise WireError("a recipe's flags or counts are malformed")
        inputs = int(_list([body["inputs"]], int)[0])
        checked, unchecked, symbols = saved
        forward = SimpleForward(
            inputs,
            tuple(_output_from_wire(o) for o in _list(body["outputs"], list)),
            tuple(_list(body["bumped"], int, below=inputs)),
            checked,
            unchecked,
            symbols,
            tuple(_layout_from_wire(t) for t in _list(body["tangents"], list)),
        )
        detached = tuple(_list(body["detached"], int, below=inputs))
        return cls(body["training"], forward, detached, *flags)


_FIELDS: Final = {
    *("v", "training", "inputs", "outputs", "bumped", "saved", "tangents", "detached", "flags")
}


def _list(value: object, kind: type, *, below: int = _MAX_VALUES) -> list[Any]:
    """A list of values of one type, whole numbers within [0, below). Raises WireError."""
    if not isinstance(value, list) or len(value) > _MAX_VALUES:
        raise WireError(f"a recipe holds {value!r:.40} for a list")
    for item in value:
        if type(item) is not kind or (isinstance(item, int) and not 0 <= item < below):
            raise WireError(f"a recipe holds {item!r:.40} for a {kind.__name__}")
    return value


def _output_from_wire(data: list[Any]) -> OutputInfo:
    if len(data) != 4:
        raise WireError("an output in a recipe is malformed")
    is_tensor, requires_grad, unsafe_view = _list(data[:3], bool)
    dims = frozenset(_list(data[3], int, below=64))
    return OutputInfo(is_tensor, requires_grad, unsafe_view, dims)


def _layout_to_wire(layout: TangentLayout) -> list[object]:
    if layout.memory_format is not None:
        return [format_name(layout.memory_format)]
    return [list(layout.size), list(layout.stride)]


def _layout_from_wire(data: list[Any]) -> TangentLayout:
    try:
        if len(data) == 1 and isinstance(data[0], str):
            return TangentLayout(format_of(data[0]))
    except KeyError as error:
        raise WireError(f"a recipe names the memory format {data[0]!r:.40}") from error
    if len(data) == 2:
        size, stride = (_list(part, int, below=1 << 62) for part in data)
        if len(size) == len(stride):
            return TangentLayout(None, tuple(size), tuple(stride))
    raise WireError("a gradient's layout in a recipe is malformed")


def make_recipe(traced: Traced, inputs: Sequence[Any]) -> Recipe | str:
    """The recipe for what was traced, or why there can be none.

    inputs: the example inputs of Dynamo's graph.
    """
    forward = traced.forward
    if isinstance(forward, str):
        return forward
    if any(part.constants for part in traced.parts):
        return "a graph holds a large constant"
    parts = {part.role: part.graph for part in traced.parts}
    training = "forward" in parts
    main = parts["forward" if training else "inference"]
    if len(main.inputs) != forward.inputs or len(inputs) != forward.inputs:
        return "the graph's inputs are not the function's"
    if forward.mutated and _share_memory(inputs):
        return "an input is changed in place and inputs share memory"
    detached: tuple[int, ...] = ()
    if training:
        backward = parts.get("backward")
        if backward is None:
            return "there is no backward graph"
        saved = forward.saved_checked + forward.saved_unchecked + forward.saved_symbols
        if len(backward.inputs) != saved + len(forward.tangents):
            return "the backward's inputs are not what the forward saves"
        if len(backward.outputs) != forward.inputs:
            return "the backward's outputs are not the inputs' gradients"
        detached = tuple(
            i
            for i, grad in enumerate(backward.outputs)
            if grad is None and isinstance(inputs[i], torch.Tensor)
        )
    return Recipe(
        training,
        forward,
        detached,
        seams.any_autocast(),
        training and not torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
    )


def _share_memory(inputs: Sequence[Any]) -> bool:
    storages = [seams.storage_of(t) for t in inputs if isinstance(t, torch.Tensor)]
    return len(storages) != len(set(storages))


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
