"""Random integer expressions as plain trees: built by `fusec.ir.expr`, and valued by Python alone.

A tree is an int, the name of a symbol, or ``(operator, operand, operand)``.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TypeAlias

from fusec.ir import expr as ex
from fusec.ir.expr import Expr

Tree: TypeAlias = "int | str | tuple[str, Tree, Tree]"

# Sizes with their lower bounds, and axes with their upper ones (a number or a size).
SIZES = {"s": 0, "t": 2, "u": 1}
AXES: dict[str, int | str] = {"i": 4, "j": 6, "k": 16, "l": 1, "m": "t"}
OPERATORS = ("+", "+", "-", "*", "//", "//", "%", "%", "min", "max", "<", "<=", "==", "!=", ">")
_CONSTANTS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 64, -1, -2, -3, -7)
_DIVISORS = (1, 2, 3, 4, 6, 8, 16, 64, -2, -3)


def random_tree(rng: random.Random, depth: int) -> Tree:
    """A tree of at most ``depth`` operators from root to leaf."""
    if depth == 0 or rng.random() < 0.15:
        if rng.random() < 0.35:
            return rng.choice(_CONSTANTS)
        return rng.choice([*SIZES, *AXES, *AXES])
    op = rng.choice(OPERATORS)
    left = random_tree(rng, depth - 1)
    if op in ("//", "%") and rng.random() < 0.8:
        return (op, left, rng.choice(_DIVISORS))
    if op == "*" and rng.random() < 0.6:
        return (op, left, rng.choice(_CONSTANTS))
    return (op, left, random_tree(rng, depth - 1))


def leaf(name: str) -> Expr:
    """The symbol of that name."""
    if name in SIZES:
        return ex.symbol(name, SIZES[name])
    upper = AXES[name]
    return ex.axis(name, leaf(upper) if isinstance(upper, str) else upper)


def build(tree: Tree) -> Expr:
    """The expression; simplified on the way. Raises ZeroDivisionError."""
    if isinstance(tree, int):
        return ex.integer(tree)
    if isinstance(tree, str):
        return leaf(tree)
    op, a, b = tree[0], build(tree[1]), build(tree[2])
    if op == "+":
        return a + b
    if op == "-":
        return a - b
    if op == "*":
        return a * b
    if op == "//":
        return a // b
    if op == "%":
        return a % b
    if op == "min":
        return ex.minimum(a, b)
    if op == "max":
        return ex.maximum(a, b)
    return ex.compare(op, a, b)


def value(tree: Tree, at: Mapping[str, int]) -> int:
    """What Python makes of the tree. Raises ZeroDivisionError."""
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return at[tree]
    op, a, b = tree[0], value(tree[1], at), value(tree[2], at)
    results = {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "//": lambda: a // b,
        "%": lambda: a % b,
        "min": lambda: min(a, b),
        "max": lambda: max(a, b),
        "<": lambda: int(a < b),
        "<=": lambda: int(a <= b),
        "==": lambda: int(a == b),
        "!=": lambda: int(a != b),
        ">": lambda: int(a > b),
    }
    return results[op]()


def random_point(rng: random.Random) -> dict[str, int]:
    """Values of all symbols within their ranges."""
    at = {name: low + rng.choice((0, 0, 1, 2, 3, 5, 8, 13, 64)) for name, low in SIZES.items()}
    for name, upper in AXES.items():
        limit = at[upper] if isinstance(upper, str) else upper
        at[name] = rng.randrange(limit)
    return at
