"""Names of operators in graphs and the callables behind them, both ways."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from fusec.capture import seams
from fusec.errors import LoadError

# What torch leaves on symbolic numbers: operators of Python, and functions of its own.
_BUILTINS: Final[Mapping[str, Callable[..., Any]]] = {
    "py.add": operator.add,
    "py.and_": operator.and_,
    "py.eq": operator.eq,
    "py.floordiv": operator.floordiv,
    "py.ge": operator.ge,
    "py.getitem": operator.getitem,
    "py.gt": operator.gt,
    "py.le": operator.le,
    "py.lt": operator.lt,
    "py.mod": operator.mod,
    "py.mul": operator.mul,
    "py.ne": operator.ne,
    "py.neg": operator.neg,
    "py.not_": operator.not_,
    "py.or_": operator.or_,
    "py.pow": operator.pow,
    "py.sub": operator.sub,
    "py.truediv": operator.truediv,
    "sym.float": torch.sym_float,
    "sym.int": torch.sym_int,
    "sym.ite": torch.sym_ite,
    "sym.max": torch.sym_max,
    "sym.min": torch.sym_min,
    "sym.not_": torch.sym_not,
    "sym.sum": torch.sym_sum,
}
# Operators of torch that are named as Python's are; no other name with two underscores is one.
_DUNDER: Final = frozenset(f"__{name}__" for name in ("and", "or", "xor", "lshift", "rshift"))
_NAME_OF: Final = {function: name for name, function in _BUILTINS.items()}


def target_of(function: object) -> str | None:
    """The name that graphs use for a callable; None for one that graphs do not know."""
    if isinstance(function, seams.OpOverload):
        return str(function)
    try:
        return _NAME_OF.get(function)  # type: ignore[call-overload, no-any-return]
    except TypeError:  # not hashable
        return None


def operator_of(target: str) -> Callable[..., Any]:
    """The callable behind a node's target, `aten.add.Tensor` or `py.getitem`.

    Only operators of libraries that this process has loaded: nothing is loaded for a name. Raises
    LoadError when there is no such operator.
    """
    known = _BUILTINS.get(target)
    if known is not None:
        return known
    parts = target.split(".")
    if len(parts) == 3 and all(p in _DUNDER or not p.startswith("__") for p in parts[:2]):
        packet = getattr(getattr(torch.ops, parts[0]), parts[1], None)
        overload = getattr(packet, parts[2], None)
        if isinstance(overload, seams.OpOverload):
            return overload
    raise LoadError(
        f"there is no operator {target}",
        hint="the library that registers it is not imported in this process",
    )
