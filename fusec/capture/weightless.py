"""Models built without memory: fake parameters that can still be cast and moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fusec.capture import seams

Convert = Callable[[torch.Tensor], torch.Tensor]


@contextmanager
def weightless() -> Iterator[None]:
    """Inside, tensors have no memory, and modules are moved and cast by new parameters.

    `Module.to` changes real parameters in place; torch cannot do that to fake ones once somebody
    refers to them weakly, as its own tables do.
    """
    before = nn.Module._apply
    done: dict[tuple[int, int], tuple[Convert, torch.Tensor, torch.Tensor]] = {}

    def converted(convert: Convert, tensor: torch.Tensor) -> torch.Tensor:
        """Once for each tensor, so that shared parameters stay shared."""
        known = done.get((id(convert), id(tensor)))
        if known is not None:
            return known[2]
        with torch.no_grad():
            made = convert(tensor)
        if isinstance(tensor, nn.Parameter):
            made = nn.Parameter(made, tensor.requires_grad)
        done[id(convert), id(tensor)] = (convert, tensor, made)
        return made

    def apply(module: nn.Module, convert: Convert, recurse: bool = True) -> nn.Module:
        if recurse:
            for child in module.children():
                child._apply(convert)
        tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for table in tables:
            for name, tensor in table.items():
                if tensor is not None:
                    table[name] = converted(convert, tensor)
        return module

    nn.Module._apply = apply  # type: ignore[method-assign]
    try:
        with seams.fake_mode():
            yield
    finally:
        nn.Module._apply = before  # type: ignore[method-assign]
