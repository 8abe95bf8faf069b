"""Qualified names of the functions that may stand in Dynamo's graphs: a strict list.

A name stands for code only when the code is torch's or Python's own: those come with a release,
and the release is in every key. Whatever is not listed has no name.
"""

from __future__ import annotations

import functools
import math
import operator
import types
from typing import Any, Final

import torch

from fusec.capture import seams

# Namespace -> where it is; of the objects in it only functions that torch or Python define.
_NAMESPACES: Final[tuple[tuple[str, Any], ...]] = (
    ("operator", operator),
    ("math", math),
    ("torch", torch),
    ("torch.nn.functional", torch.nn.functional),
    ("native.nn", seams.native_functions()),
    ("torch.functional", torch.functional),
    ("torch.linalg", torch.linalg),
    ("torch.special", torch.special),
    ("torch.fft", torch.fft),
)
# Python functions are accepted from these modules alone.
_MODULES: Final = frozenset(
    {"torch", "torch.functional", "torch.nn.functional", "torch._jit_internal"}
)
# Operators of other libraries are compositions of code that is in no key.
_OPERATOR_NAMESPACES: Final = frozenset({"aten", "prims"})


@functools.cache
def _names() -> dict[Any, str]:
    names: dict[Any, str] = {}
    for prefix, namespace in _NAMESPACES:
        for attribute in sorted(vars(namespace)):
            value = vars(namespace)[attribute]
            if not attribute.startswith("_") and _is_own(value, prefix):
                names.setdefault(value, f"{prefix}.{attribute}")
    for name, value in seams.functions_of_dynamo():
        names[value] = f"dynamo.{name}"
    return names


def _is_own(value: Any, prefix: str) -> bool:
    if isinstance(value, types.BuiltinFunctionType):
        return True
    if not isinstance(value, types.FunctionType):
        return False
    if prefix == "torch" and value.__module__ == "torch":
        return value.__name__.startswith("sym_")  # the rest of torch's own is no operator
    return value.__module__ in _MODULES


def name_of(function: Any) -> str | None:
    """The qualified name of a function or operator in Dynamo's graph; None for an unlisted one."""
    if isinstance(function, seams.OpOverload):
        return f"torch.ops.{function}" if function.namespace in _OPERATOR_NAMESPACES else None
    if isinstance(function, seams.OpOverloadPacket):
        namespace = str(function).split(".")[0]
        return f"torch.ops.{function}" if namespace in _OPERATOR_NAMESPACES else None
    try:
        return _names().get(function)
    except TypeError:  # not hashable
        return None
