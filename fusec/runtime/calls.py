"""Library calls of a program, prepared: what is the same in every run is put in its place once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusec.runtime.frame import Frame

Read = Callable[[Frame], Any]
"""Gives an argument of a run."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """An argument that is the same in every run."""

    value: Any


Argument = Fixed | Read


def listed(parts: Sequence[Argument]) -> Argument:
    """The argument that is a list of arguments."""
    if all(isinstance(p, Fixed) for p in parts):
        return Fixed([p.value for p in parts if isinstance(p, Fixed)])
    reads = [_read(p) for p in parts]
    return lambda frame: [read(frame) for read in reads]


def call_of(
    op: Callable[..., Any], args: Sequence[Argument], kwargs: Mapping[str, Argument]
) -> Read:
    """The call of an operator with the arguments of a run. Calls of few tensors, which are most,
    build no lists."""
    fixed = {name: a.value for name, a in kwargs.items() if isinstance(a, Fixed)}
    moving = {name: a for name, a in kwargs.items() if not isinstance(a, Fixed)}
    if not fixed and list(moving) == ["out"] and not any(isinstance(a, Fixed) for a in args):
        out = moving["out"]
        if len(args) == 2:
            one, two = map(_read, args)
            return lambda frame: op(one(frame), two(frame), out=out(frame))
        if len(args) == 3:
            one, two, three = map(_read, args)
            return lambda frame: op(one(frame), two(frame), three(frame), out=out(frame))
    template = [a.value if isinstance(a, Fixed) else None for a in args]
    reads = [(i, a) for i, a in enumerate(args) if not isinstance(a, Fixed)]

    def call(frame: Frame) -> Any:
        given = template.copy()
        for i, read in reads:
            given[i] = read(frame)
        if not moving:
            return op(*given, **fixed)
        return op(*given, **fixed, **{name: read(frame) for name, read in moving.items()})

    return call


def _read(argument: Argument) -> Read:
    if isinstance(argument, Fixed):
        value = argument.value
        return lambda frame: value
    return argument
