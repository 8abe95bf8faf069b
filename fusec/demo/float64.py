"""A float64 reference of a model that asks for lower precisions inside itself.

`model.double()` is not enough: norms and rotary embeddings of the transformers library convert to
float32 on their own. Under `Float64` such a request gives float64 instead.
"""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch.overrides import TorchFunctionMode

_LOWER = frozenset({torch.float32, torch.bfloat16, torch.float16})


class Float64(TorchFunctionMode):
    """While it is active, every request for a lower floating dtype is one for float64."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func in (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16):
            func = torch.Tensor.double
        raised = tuple(_raise(arg) for arg in args)
        return func(*raised, **{key: _raise(value) for key, value in (kwargs or {}).items()})


def _raise(value: object) -> object:
    return torch.float64 if isinstance(value, torch.dtype) and value in _LOWER else value
