"""Iteration spaces: when two computations can run in one loop nest, and how their axes relate.

A space is a sequence of loop axes in tensor order, some of them folded by reductions. Axes of size
1 do not count. Two spaces are the same loop nest when their sizes agree after both are cut at
common boundaries: (B, S, C) and (B·S, C) become (B, S, C).

A nest can fold rows and columns in one pass: folds over its last axes, and folds over axes further
out that it carries results along (`fusec.ir.kernel`). Sums over (64, fold 768) and over
(fold 64, 768) become (carry 64, fold 768).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusec.ir import expr as ex
from fusec.ir.expr import Expr, Sym
from fusec.ir.loop import Compute
from fusec.ir.remember import remember


@dataclass(frozen=True, slots=True)
class Space:
    """``sizes`` in tensor order; ``folded`` marks the axes that reductions run over, ``carried``
    those that folds across rows run over (empty: there are no such folds)."""

    sizes: tuple[Expr, ...]
    folded: tuple[bool, ...]
    carried: tuple[bool, ...] = ()

    @property
    def reduces(self) -> bool:
        return any(self.folded)

    @property
    def mixed(self) -> bool:
        """Whether rows and columns are folded in one pass."""
        return bool(self.carried)

    def kept(self) -> tuple[Expr, ...]:
        return tuple(s for s, f in zip(self.sizes, self.folded, strict=True) if not f)

    def width(self) -> tuple[Expr, ...]:
        """The folded sizes."""
        return tuple(s for s, f in zip(self.sizes, self.folded, strict=True) if f)

    def free(self) -> tuple[Expr, ...]:
        """Sizes of the axes whose points are independent: neither folded nor carried."""
        carried = self.carried or (False,) * len(self.sizes)
        flags = zip(self.sizes, self.folded, carried, strict=True)
        return tuple(s for s, f, c in flags if not f and not c)

    def labels(self) -> tuple[str, ...]:
        """The axes for a person: ``64``, ``carry 64``, ``fold 512``."""
        carried = self.carried or (False,) * len(self.sizes)
        return tuple(
            f"{'fold ' if f else 'carry ' if c else ''}{s}"
            for s, f, c in zip(self.sizes, self.folded, carried, strict=True)
        )

    def __str__(self) -> str:
        return f"({', '.join(self.labels())})"

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


@remember
def merge(group: Space, other: Space) -> Space | None:
    """One space for both with every axis cut as finely as either needs; None where impossible.

    Where only one of them folds axes, the merged space folds those; where one folds rows and the
    other columns, it carries the columns' results along the rows.
    """
    sizes = refine(group.sizes, other.sizes)
    if sizes is None:
        return None
    folds: list[tuple[bool, ...]] = []  # rows, then columns
    for space in (group, other):
        for flags in (space.folded, space.carried):
            if any(flags) and (found := spread(space.sizes, flags, sizes)) not in folds:
                folds.append(found)
    if len(folds) < 2:
        return Space(sizes, folds[0] if folds else (False,) * len(sizes))
    if len(folds) > 2:
        return None
    rows, columns = sorted(folds)  # rows fold the last axes: False comes first
    return Space(sizes, rows, columns) if _crosses(rows, columns) else None


def _crosses(rows: Sequence[bool], columns: Sequence[bool]) -> bool:
    """Whether rows fold the last axes and columns neighbouring ones before all of these."""
    first = columns.index(True)
    last = first + sum(columns)
    return rows[-1] and all(columns[first:last]) and not any(rows[:last])


def folds_across(step: Compute, space: Space) -> bool:
    """Whether a computation of a space that folds rows and columns folds columns."""
    own = space_of(step)
    return (
        space.mixed and own.reduces and spread(own.sizes, own.folded, space.sizes) == space.carried
    )


def spread(
    coarse: Sequence[Expr], marks: Sequence[bool], sizes: Sequence[Expr]
) -> tuple[bool, ...]:
    """Marks of coarse sizes over finer ones."""
    flags: list[bool] = []
    position = 0
    done: Expr = ex.ONE
    for size in sizes:
        flags.append(marks[position])
        done = done * size
        if done is coarse[position]:
            position, done = position + 1, ex.ONE
    return tuple(flags)


def refine_kept(space: Space, kept: tuple[Expr, ...]) -> Space:
    """The space with its kept axes cut as in ``kept``."""
    sizes: list[Expr] = []
    folded: list[bool] = []
    rest = list(kept)
    for size, fold in zip(space.sizes, space.folded, strict=True):
        if fold:
            sizes.append(size)
            folded.append(True)
            continue
        done: Expr = ex.ONE
        while done is not size:
            part = rest.pop(0)
            done = done * part
            sizes.append(part)
            folded.append(False)
    carried = spread(space.sizes, space.carried, sizes) if space.mixed else ()
    return Space(tuple(sizes), tuple(folded), carried)


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
