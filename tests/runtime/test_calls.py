"""Prepared calls: an operator gets its arguments in every form; fast entries are the operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusec.runtime.calls import Argument, Fixed, call_of, listed
from fusec.runtime.operators import _ENTRIES, entry, operator


def _seen(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def _from_frame(offset: int) -> Argument:
    return lambda frame: frame + offset  # a number stands for the frame


_MOVING = [_from_frame(10 * i) for i in range(5)]


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (_MOVING[:2], {"out": _MOVING[2]}),
        (_MOVING[:3], {"out": _MOVING[3]}),
        (_MOVING[:4], {"out": _MOVING[4]}),
        (_MOVING[:1], {"out": _MOVING[1]}),
        (_MOVING[:3], {"out": _MOVING[3], "alpha": Fixed(2)}),
        ([_MOVING[0], Fixed(None), Fixed(3)], {"out": _MOVING[1]}),
        ([Fixed("a"), _MOVING[1], Fixed(None), _MOVING[2]], {}),
        ([], {"size": Fixed(4), "other": _MOVING[1]}),
    ],
)
def test_arguments_come_as_they_are_named(args: Any, kwargs: Any) -> None:
    call = call_of(_seen, args, kwargs)

    def value(argument: Any, frame: int) -> Any:
        return argument.value if isinstance(argument, Fixed) else argument(frame)

    for frame in (1, 2, 1):
        positional, named = call(frame)  # type: ignore[arg-type]
        assert positional == tuple(value(a, frame) for a in args)
        assert named == {name: value(a, frame) for name, a in kwargs.items()}


def test_lists_of_arguments() -> None:
    fixed = listed([Fixed(1), Fixed(2)])
    assert isinstance(fixed, Fixed)
    assert fixed.value == [1, 2]
    mixed = listed([Fixed(1), _MOVING[1]])
    assert not isinstance(mixed, Fixed)
    assert mixed(5) == [1, 15]  # type: ignore[arg-type]


@pytest.mark.parametrize("target", _ENTRIES)
def test_fast_entries_are_the_operators(target: str) -> None:
    name = target.split(".")[1]
    x, y, z = (torch.randn(4, 4) for _ in range(3))
    kwargs: dict[str, Any] = {}
    args: tuple[Any, ...] = (x, y)
    if name == "convolution":
        image, kernel = torch.randn(2, 4, 9, 9), torch.randn(6, 2, 3, 3)
        args = (image, kernel, None, [2, 1], [1, 0], [1, 2], False, [0, 0], 2)
    elif name in ("bmm", "baddbmm"):
        args = tuple(t.reshape(1, 4, 4) for t in (x, y, z))[: 2 if name == "bmm" else 3]
    elif name == "addmm":
        args = (x[0], y, z)
    if name in ("addmm", "baddbmm"):
        kwargs = {"beta": 0.5, "alpha": 3}
    if target.endswith(".out"):
        shape = (1, 4, 4) if "bmm" in name else (4, 4)
        outs = [torch.empty(shape) for _ in range(2)]
        entry(target)(*args, **kwargs, out=outs[0])
        operator(target)(*args, **kwargs, out=outs[1])
        assert torch.equal(*outs)
    else:
        assert torch.equal(entry(target)(*args, **kwargs), operator(target)(*args, **kwargs))


def test_other_operators_are_called_as_they_are() -> None:
    assert entry("aten.sin.default") is operator("aten.sin.default")
