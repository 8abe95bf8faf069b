"""Iteration spaces: when two computations can run in one loop nest, and how their axes relate.

A space is a sequence of loop axes in tensor order, some of them folded by reductions. Axes of size
1 do not count. Two spaces are the same loop nest when their sizes agree after both are cut at
common boundaries: (B, S, C) and (B·S, C) become (B, S, C).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusec.ir import expr as ex
from fusec.ir.expr import Expr, Sym
from fusec.ir.loop import Compute


@dataclass(frozen=True, slots=True)
class Space:
    """``sizes`` in tensor order; ``folded`` marks the axes that reductions run over."""

    sizes: tuple[Expr, ...]
    folded: tuple[bool, ...]

    @property
    def reduces(self) -> bool:
        return any(self.folded)

    def kept(self) -> tuple[Expr, ...]:
        return tuple(s for s, f in zip(self.sizes, self.folded, strict=True) if not f)

    def axes(self) -> tuple[Sym, ...]:
        """The loop axes of this space."""
        made = (ex.axis(f"g{i}", s) for i, s in enumerate(self.sizes))
        return tuple(a for a in made if isinstance(a, Sym))


def space_of(step: Compute) -> Space:
    order = step.axes if step.reduction is None else step.reduction.order
    folded = frozenset(step.reduction.axes) if step.reduction is not None else frozenset()
    live = [(a, a.upper) for a in order if a.upper is not None and a.upper is not ex.ONE]
    return Space(tuple(size for _, size in live), tuple(a in folded for a, _ in live))


def refine(a: Sequence[Expr], b: Sequence[Expr]) -> tuple[Expr, ...] | None:
    """The coarsest sizes into which both sequences can be cut; None where there are none."""
    left, right = list(reversed(a)), list(reversed(b))
    cut: list[Expr] = []
    while left and right:
        x, y = left.pop(), right.pop()
        if x is y:
            cut.append(x)
            continue
        small, large, rest = (x, y, right) if _fits(x, y) else (y, x, left)
        quotient = _exact(large, small)
        if quotient is None:
            return None
        cut.append(small)
        if quotient is not ex.ONE:
            rest.append(quotient)
    if left or right:
        return None
    return tuple(cut)


def _fits(x: Expr, y: Expr) -> bool:
    a, b = ex.as_int(x), ex.as_int(y)
    if a is not None and b is not None:
        return a <= b
    return _exact(y, x) is not None


def _exact(large: Expr, small: Expr) -> Expr | None:
    if small is ex.ZERO or ex.mod(large, small) is not ex.ZERO:
        return None
    return ex.floordiv(large, small)


def merge(group: Space, other: Space) -> Space | None:
    """One space for both with every axis cut as finely as either needs; None where impossible.

    Where only one of them folds axes, the merged space folds those.
    """
    sizes = refine(group.sizes, other.sizes)
    if sizes is None:
        return None
    first = _spread(group, sizes) if group.reduces else None
    second = _spread(other, sizes) if other.reduces else None
    if first is not None and second is not None and first != second:
        return None
    return Space(sizes, first or second or (False,) * len(sizes))


def _spread(space: Space, sizes: Sequence[Expr]) -> tuple[bool, ...]:
    """``space.folded`` over the finer sizes."""
    flags: list[bool] = []
    position = 0
    done: Expr = ex.ONE
    for size in sizes:
        flags.append(space.folded[position])
        done = done * size
        if done is space.sizes[position]:
            position, done = position + 1, ex.ONE
    return tuple(flags)


def split_coordinates(sizes: Sequence[Expr], axes: Sequence[Sym]) -> list[Expr]:
    """Coordinates of shape ``sizes`` (no 1s) from finer ``axes`` that run in the same order."""
    coordinates: list[Expr] = []
    rest = list(axes)
    for size in sizes:
        linear: Expr = ex.ZERO
        done: Expr = ex.ONE
        while done is not size:
            axis = rest.pop(0)
            assert axis.upper is not None
            linear = linear * axis.upper + axis
            done = done * axis.upper
        coordinates.append(linear)
    assert not rest
    return coordinates


def place(step: Compute, space: Space, *, outer: bool) -> dict[Expr, Expr]:
    """The step's axes in terms of the space's; ``outer``: the step runs over the kept axes only."""
    axes = space.axes()
    if outer:
        axes = tuple(a for a, f in zip(axes, space.folded, strict=True) if not f)
    order = step.axes if step.reduction is None else step.reduction.order
    live = [a for a in order if a.upper is not ex.ONE]
    found = split_coordinates([a.upper for a in live if a.upper is not None], axes)
    mapping: dict[Expr, Expr] = dict.fromkeys(order, ex.ZERO)
    mapping.update(zip(live, found, strict=True))
    return mapping
