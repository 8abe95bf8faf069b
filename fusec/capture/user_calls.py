"""Calls of the user's own code that torch puts into graphs as higher-order operators, as operators.

An operator that changes its arguments, and a user's Triton kernel, come from AOTAutograd as
higher-order operators: they copy what would change, call and return the copies. What they call is
an object of this process, which no graph holds. So each such call becomes an operator of torch's
registry, defined when it is first seen, under a name made of what it calls and of all arguments
that are no tensors or sizes: equal in all processes for equal code. Graphs and programs name it
like any other operator; a process that loads one has exported the graph, or finds no operator of
that name and says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch.utils import _pytree as pytree

from fusec.artifact.fingerprint import digest_of
from fusec.capture import seams, seams_joint
from fusec.errors import CaptureUnsupported

NAMESPACE: Final = "fusec_user"
_SCHEMA: Final = "(Tensor[] tensors, SymInt[] sizes) -> Tensor[]"
_TRITON: Final = "triton_kernel_wrapper_functional"
_NUMBERS: Final = ("kernel_idx", "constant_args_idx")  # of this process: no part of a name
_KNOWN: Final = frozenset(("auto_functionalized", "auto_functionalized_v2", _TRITON))
_LIBRARY: Final = torch.library.Library(NAMESPACE, "FRAGMENT")
_DEFINING: Final = threading.Lock()


class UserCall(NamedTuple):
    """operator: takes a list of tensors and one of sizes, returns a list of tensors; tensors and
    sizes: the graph's nodes (sizes: or numbers) to give it."""

    operator: seams.OpOverload
    tensors: list[torch.fx.Node]
    sizes: list[Any]


def user_call(node: torch.fx.Node) -> UserCall:
    """A higher-order operator's call as that of an operator. Raises CaptureUnsupported for one that
    we do not know, and for arguments that no name can hold."""
    hop: Any = node.target
    if hop.name() not in _KNOWN:
        raise CaptureUnsupported(f"the higher-order operator {hop.name()} is not compiled yet")
    kwargs = dict(node.kwargs)
    own = {name: kwargs.pop(name) for name in _NUMBERS} if hop.name() == _TRITON else {}
    leaves, spec = pytree.tree_flatten((node.args, kwargs))
    tensors: list[torch.fx.Node] = []
    sizes: list[Any] = []

    def number(value: Any) -> int | _Size:
        if type(value) is int:
            return value
        sizes.append(value)
        return _Size(len(sizes) - 1)

    fixed: list[Any] = []
    for leaf in leaves:
        value = leaf.meta.get("val") if isinstance(leaf, torch.fx.Node) else leaf
        if isinstance(value, torch.Tensor):
            fixed.append(
                _Tensor(
                    len(tensors), tuple(map(number, value.stride())), number(value.storage_offset())
                )
            )
            tensors.append(leaf)
        else:
            fixed.append(number(leaf) if isinstance(value, torch.SymInt) else leaf)
    what = [hop.name(), str(spec), [_described(leaf) for leaf in fixed], _kernel(own)]
    name = f"call_{digest_of(what)[:32]}"
    return UserCall(_defined(name, _caller(partial(hop, **own), fixed, spec)), tensors, sizes)


class _Size(NamedTuple):
    """A size's place in the list."""

    place: int


class _Tensor(NamedTuple):
    """A tensor's place in the list, and how it lies in its memory: what the callee counts on."""

    place: int
    stride: tuple[int | _Size, ...]
    offset: int | _Size


def _described(leaf: Any) -> str:
    """An argument that is no tensor, as text that is equal in all processes."""
    plain = (type(None), bool, int, float, str, torch.dtype, torch.device, torch.layout)
    if isinstance(leaf, (_Tensor, _Size, seams.OpOverload, *plain)):
        return f"{type(leaf).__name__} {leaf!s}"
    raise CaptureUnsupported(f"an argument of the user's operator is a {type(leaf).__name__}")


def _kernel(numbers: Mapping[str, Any]) -> list[str]:
    """The code of a user's Triton kernel and its constants, by their numbers in this process."""
    if not numbers:
        return []
    kernel, constants = seams_joint.triton_kernel(numbers)
    found = [repr(sorted(constants.items(), key=str))]
    while not hasattr(kernel, "cache_key") and hasattr(kernel, "fn"):  # an autotuner's
        found.append(str([str(c) for c in getattr(kernel, "configs", ())]))
        kernel = kernel.fn
    if not hasattr(kernel, "cache_key"):
        raise CaptureUnsupported(f"a Triton kernel is a {type(kernel).__name__}")
    return [*found, str(kernel.cache_key)]


def _caller(
    call_hop: Callable[..., Any], fixed: Sequence[Any], spec: Any
) -> Callable[..., list[torch.Tensor]]:
    def call(tensors: list[torch.Tensor], sizes: list[int]) -> list[torch.Tensor]:
        def given(x: Any) -> Any:
            if isinstance(x, _Size):
                return sizes[x.place]
            if isinstance(x, _Tensor):
                stride = tuple(given(step) for step in x.stride)
                return _as_captured(tensors[x.place], stride, given(x.offset))
            return x

        args, kwargs = pytree.tree_unflatten([given(x) for x in fixed], spec)
        made = pytree.tree_leaves(call_hop(*args, **kwargs))
        return [x for x in made if isinstance(x, torch.Tensor)]

    return call


def _as_captured(x: torch.Tensor, stride: tuple[int, ...], offset: int) -> torch.Tensor:
    """The tensor, copied where it lies in its memory otherwise than in the captured graph: views
    of it are made by places in memory."""
    if (x.stride() == stride and x.storage_offset() == offset) or x.numel() == 0:
        return x
    reach = 1 + sum((size - 1) * step for size, step in zip(x.shape, stride, strict=True))
    memory = torch.empty(offset + reach, dtype=x.dtype, device=x.device)
    return memory.as_strided(x.shape, stride, offset).copy_(x)


def _defined(name: str, function: Callable[..., list[torch.Tensor]]) -> seams.OpOverload:
    with _DEFINING:
        library = getattr(torch.ops, NAMESPACE)
        if not hasattr(library, name):
            _LIBRARY.define(name + _SCHEMA)
            _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        operator: seams.OpOverload = getattr(library, name).default
    return operator
