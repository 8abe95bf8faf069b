"""What a front hit needs to call the compiled graphs without AOTAutograd.

A recipe is made on a miss from what AOTAutograd recorded, where that is simple enough for a plain
`torch.autograd.Function`; it is stored beside the compiled graphs. `fusec.capture.restore` follows
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from cache.errors import CacheError
from cache.protocol import pack, unpack
from fusec.capture import seams
from fusec.capture.aot import Traced
from fusec.capture.dtypes import format_name, format_of
from fusec.capture.seams_aot import OutputInfo, SimpleForward, TangentLayout
from fusec.errors import WireError

RECIPE_VERSION: Final = 1
MAX_RECIPE_BYTES: Final = 1 << 20
_MAX_VALUES: Final = 1 << 20  # inputs, outputs or saved values of one graph


@dataclass(frozen=True)
class Recipe:
    """How to call a forward graph and its backward, or an inference graph.

    training: there is a backward; detached: inputs that no gradient flows into; autocast_off:
    autocast is in the graph already; force_grad: captured with gradients off around a region that
    turns them on; deterministic: captured under `torch.use_deterministic_algorithms`. The rest is
    `fusec.capture.seams_aot.SimpleForward`.
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
