"""Simplification never changes a value; bounds hold; equal expressions are one object."""

from __future__ import annotations

import gc
import pickle
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from fusec.ir import expr as ex
from tests.ir.expressions import Tree, build, leaf, random_point, random_tree, value

CASES = 4000


def _trees(seed: int, count: int = CASES, depth: int = 4) -> list[Tree]:
    rng = random.Random(seed)
    return [random_tree(rng, depth) for _ in range(count)]


def _made(tree: Tree) -> ex.Expr | None:
    try:
        return build(tree)
    except ZeroDivisionError:
        return None


def test_values_are_pythons() -> None:
    rng = random.Random(1)
    compared = 0
    for tree in _trees(2):
        made = _made(tree)
        if made is None:
            continue
        low, high = ex.bounds(made)
        for _ in range(4):
            at = random_point(rng)
            try:
                expected = value(tree, at)
            except ZeroDivisionError:
                continue
            assert ex.evaluate(made, at) == expected, (tree, made, at)
            assert low is None or low <= expected, (tree, made, at)
            assert high is None or expected <= high, (tree, made, at)
            compared += 1
    assert compared > CASES


def test_building_again_from_parts_keeps_the_value() -> None:
    """Substituting a symbol by itself rebuilds everything above it."""
    for tree in _trees(3):
        made = _made(tree)
        if made is None:
            continue
        identity: dict[ex.Expr, ex.Expr] = {leaf("i"): leaf("i")}
        again = ex.substitute(made, identity)
        at = random_point(random.Random(0))
        try:
            assert ex.evaluate(again, at) == ex.evaluate(made, at), (tree, made, again)
        except ZeroDivisionError:
            continue


def test_substitution_is_evaluation_in_steps() -> None:
    rng = random.Random(5)
    for tree in _trees(4):
        made = _made(tree)
        if made is None:
            continue
        at = random_point(rng)
        some: dict[ex.Expr, ex.Expr] = {
            leaf(n): ex.integer(at[n]) for n in ("i", "k", "s", "t") if rng.random() < 0.7
        }
        try:
            expected = value(tree, at)
            closed = ex.substitute(made, some)
        except ZeroDivisionError:
            continue
        assert ex.evaluate(closed, at) == expected, (tree, made, some)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (lambda i, k, s, t: (i * 16 + k) // 16, "i"),
        (lambda i, k, s, t: (i * 16 + k) % 16, "k"),
        (lambda i, k, s, t: (s * t * 3 + k) // s, "3*t + (k // s)"),
        (lambda i, k, s, t: (k // 4) * 4 + k % 4, "k"),
        (lambda i, k, s, t: (k // 2) // 4, "k // 8"),
        (lambda i, k, s, t: (k % 8) % 4, "k % 4"),
        (lambda i, k, s, t: ex.compare("<", k, 16), "1"),
        (lambda i, k, s, t: ex.compare("<", i * 16 + k, 32), "(i - 2) < 0"),
        (lambda i, k, s, t: ex.maximum(t, 1), "t"),
        (lambda i, k, s, t: ex.minimum(i, 3), "i"),
        (lambda i, k, s, t: s - s, "0"),
        (lambda i, k, s, t: (s * t) // t, "s"),
        (lambda i, k, s, t: (s * t) % t, "0"),
        (lambda i, k, s, t: (s * t + 1) % t, "1"),
        (lambda i, k, s, t: ex.compare("<", leaf("m"), t), "1"),
        (lambda i, k, s, t: ex.compare("<", t, leaf("m") + 1), "t < (m + 1)"),
    ],
)
def test_forms(text, expected: str) -> None:
    made = text(leaf("i"), leaf("k"), leaf("s"), leaf("t"))
    assert ex.format_expr(made) == expected


def test_division_by_zero_is_refused() -> None:
    for divide in (ex.floordiv, ex.mod):
        with pytest.raises(ZeroDivisionError):
            divide(leaf("s"), 0)


def test_equal_expressions_are_one_object_in_all_threads() -> None:
    def make(_: int) -> list[ex.Expr]:
        return [
            ex.axis(f"x{n}", n + 2) * 7919 + ex.symbol("z", n) // (n + 2) + n for n in range(300)
        ]

    for _ in range(5):
        gc.collect()
        with ThreadPoolExecutor(8) as pool:
            first, *others = pool.map(make, range(8))
        for other in others:
            assert all(a is b for a, b in zip(first, other, strict=True))


def test_expressions_are_never_pickled() -> None:
    with pytest.raises(TypeError, match="wire"):
        pickle.dumps(leaf("s") + 1)


def test_the_order_of_terms_does_not_depend_on_how_they_came() -> None:
    rng = random.Random(8)
    for tree in _trees(9, 300, 3):
        parts = [p for p in (tree, *_trees(rng.randrange(1 << 30), 4, 2)) if _made(p) is not None]
        forward = ex.total(build(p) for p in parts)
        backward = ex.total(build(p) for p in reversed(parts))
        at = random_point(rng)
        try:
            assert ex.evaluate(forward, at) == ex.evaluate(backward, at)
        except ZeroDivisionError:
            continue
