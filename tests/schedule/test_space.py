"""Iteration spaces: common refinements, merging, and where a computation's axes lie in them."""

from __future__ import annotations

import itertools
import random

import pytest

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr
from fusec.ir.loop import Compute, Reduction
from fusec.lower.view import loop_axes
from fusec.schedule.space import (
    Space,
    merge,
    place,
    refine,
    refine_kept,
    space_of,
    split_coordinates,
)


def _sizes(*numbers: int) -> tuple[Expr, ...]:
    return tuple(ex.integer(n) for n in numbers)


def _numbers(sizes: tuple[Expr, ...] | None) -> tuple[int | None, ...] | None:
    return None if sizes is None else tuple(ex.as_int(s) for s in sizes)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((2, 3, 4), (6, 4), (2, 3, 4)),
        ((6, 4), (2, 12), (2, 3, 4)),
        ((24,), (2, 3, 4), (2, 3, 4)),
        ((4, 6), (6, 4), None),
        ((8,), (8,), (8,)),
        ((8,), (9,), None),
        ((), (), ()),
        ((0,), (0,), (0,)),
        ((4,), (2, 2, 2), None),
    ],
)
def test_refine(a, b, expected) -> None:
    assert _numbers(refine(_sizes(*a), _sizes(*b))) == expected
    assert _numbers(refine(_sizes(*b), _sizes(*a))) == expected


def test_refine_with_sizes_unknown_until_the_call() -> None:
    s, t = ex.symbol("s", 2), ex.symbol("t", 2)
    assert refine((s * t,), (s, t)) == (s, t)
    assert refine((s, t * 4), (s * t, ex.integer(4))) == (s, t, ex.integer(4))
    assert refine((s,), (t,)) is None
    assert refine((s * t,), (t, s)) == (t, s)


def _random_cut(rng: random.Random, sizes: list[int]) -> tuple[int, ...]:
    """Neighbouring sizes multiplied together here and there."""
    found = [sizes[0]]
    for size in sizes[1:]:
        if rng.random() < 0.5:
            found[-1] *= size
        else:
            found.append(size)
    return tuple(found)


def test_a_refinement_cuts_at_both_boundaries() -> None:
    rng = random.Random(1)
    for _ in range(500):
        fine = [rng.choice((2, 3, 4, 5, 8)) for _ in range(rng.randrange(1, 6))]
        a, b = _random_cut(rng, fine), _random_cut(rng, fine)
        found = _numbers(refine(_sizes(*a), _sizes(*b)))
        assert found is not None
        boundaries = set(itertools.accumulate(found, lambda x, y: x * (y or 1)))
        for side in (a, b):
            assert set(itertools.accumulate(side, lambda x, y: x * y)) <= boundaries


def test_merge_keeps_the_folded_axes_of_either() -> None:
    rows = Space(_sizes(8, 32), (False, True))
    plain = Space(_sizes(2, 4, 32), (False,) * 3)
    flat = Space(_sizes(256), (False,))
    assert merge(rows, plain) == Space(_sizes(2, 4, 32), (False, False, True))
    assert merge(plain, rows) == Space(_sizes(2, 4, 32), (False, False, True))
    assert merge(flat, rows) == rows
    assert merge(rows, Space(_sizes(4, 64), (False, True))) is None
    assert merge(rows, Space(_sizes(8), (False,))) is None


def test_merge_carries_columns_along_rows() -> None:
    rows = Space(_sizes(8, 32), (False, True))
    columns = Space(_sizes(2, 4, 32), (False, True, False))
    both = Space(_sizes(2, 4, 32), (False, False, True), (False, True, False))
    assert merge(rows, columns) == both
    assert merge(columns, rows) == both
    for more in (rows, columns, Space(_sizes(256), (False,)), both):
        assert merge(both, more) == both
        assert merge(more, both) == both
    assert both.free() == _sizes(2)
    assert both.kept() == _sizes(2, 4)
    assert str(both) == "(2, carry 4, fold 32)"
    cut = refine_kept(both, _sizes(2, 2, 2))
    assert cut.carried == (False, True, True, False)
    # Three kinds of folds, columns that are not neighbours, rows that are not the last axes.
    assert merge(both, Space(_sizes(8, 32), (True, False))) is None
    assert merge(Space(_sizes(2, 4, 32), (True, False, False)), both) is None
    assert (
        merge(Space(_sizes(2, 4, 8), (True, False, True)), Space(_sizes(8, 8), (False, True)))
        is None
    )
    assert (
        merge(Space(_sizes(2, 4, 8), (False, True, False)), Space(_sizes(2, 32), (True, False)))
        is None
    )


def test_split_coordinates() -> None:
    sizes, finer = _sizes(6, 20), _sizes(2, 3, 4, 5)
    axes = [a for a in loop_axes(finer) if isinstance(a, ex.Sym)]
    first, second = split_coordinates(sizes, axes)
    assert first is axes[0] * 3 + axes[1]
    assert second is axes[2] * 5 + axes[3]


def test_a_step_visits_each_of_its_points_once_and_in_order() -> None:
    """`place` is a bijection between the points of the finer space and those of the step."""
    rng = random.Random(2)
    for _ in range(100):
        fine = [rng.choice((2, 3, 4)) for _ in range(rng.randrange(1, 5))]
        mine = _random_cut(rng, fine)
        shape = [n for size in mine for n in ((1, size) if rng.random() < 0.3 else (size,))]
        axes = loop_axes(_sizes(*shape))
        step = Compute(0, axes, lp.load(1, "f32", axes))
        space = Space(_sizes(*fine), (False,) * len(fine))
        mapping = place(step, space, outer=False)
        points = list(itertools.product(*(range(n) for n in fine)))
        names = [a.name for a in space.axes()]
        seen = [
            tuple(ex.evaluate(mapping[a], dict(zip(names, point, strict=True))) for a in axes)
            for point in points
        ]
        assert seen == list(itertools.product(*(range(n) for n in shape)))


def test_outer_steps_run_over_kept_axes() -> None:
    (i, r) = (*loop_axes(_sizes(8)), *loop_axes(_sizes(32), "r"))
    fold = Compute(0, (i,), lp.load(1, "f32", (i, r)), Reduction("sum", (r,), (i, r)))
    space = space_of(fold)
    assert space == Space(_sizes(8, 32), (False, True))
    (j,) = loop_axes(_sizes(8))
    after = Compute(2, (j,), lp.load(0, "f32", (j,)))
    assert place(after, space, outer=True) == {j: space.axes()[0]}
