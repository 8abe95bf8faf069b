"""Rewrites of a kernel's axes that make its index arithmetic simple.

`split_axes` cuts an axis where an index divides it or compares it with a boundary:
``x // 64`` and ``x % 64`` over ``x < 512`` become two axes. `merge_axes` joins neighbours that
every index walks as one: ``64·a + b`` everywhere becomes one axis. Both leave a carried axis
as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from fusec.ir import expr as ex
from fusec.ir.expr import Binary, Expr, Sym
from fusec.ir.kernel import KernelLoop, expressions, map_expressions

_MAX_SPLITS = 8


def simplify_axes(loop: KernelLoop) -> KernelLoop:
    """Split, then merge, then number the axes afresh."""
    return _renumber(merge_axes(split_axes(loop)))


def split_axes(loop: KernelLoop) -> KernelLoop:
    for _ in range(_MAX_SPLITS):
        cut = _find_cut(loop)
        if cut is None:
            return loop
        axis, inner_size = cut
        assert axis.upper is not None
        outer = _sym(f"{axis.name}o", ex.floordiv(axis.upper, inner_size))
        inner = _sym(f"{axis.name}i", ex.integer(inner_size))
        axes: list[Sym] = []
        for a in loop.axes:
            axes.extend((outer, inner) if a is axis else (a,))
        folded = set(loop.folded)
        if axis in folded:
            folded.remove(axis)
            folded.update((outer, inner))
        loop = map_expressions(
            loop, tuple(axes), frozenset(folded), {axis: outer * inner_size + inner}
        )
    return loop


def _sym(name: str, upper: Expr) -> Sym:
    made = ex.axis(name, upper)
    assert isinstance(made, Sym)
    return made


def _find_cut(loop: KernelLoop) -> tuple[Sym, int] | None:
    axes = set(loop.axes) - {loop.carried}
    for e in expressions(loop):
        for atom in _binaries(e):
            if atom.op in ("//", "%"):
                divisor = ex.as_int(atom.right)
                candidates = [] if divisor is None else _cuts(atom.left, divisor)
            else:
                candidates = _boundary(atom)
            for axis, size in candidates:
                extent = None if axis.upper is None else ex.as_int(axis.upper)
                if axis in axes and extent is not None and 1 < size < extent and extent % size == 0:
                    return axis, size
    return None


def _cuts(e: Expr, divisor: int) -> list[tuple[Sym, int]]:
    """Axes with a coefficient that divides the divisor: the cut that lets the division go."""
    _, terms = ex.linear_terms(e)
    found = []
    for atom, coefficient in terms:
        if isinstance(atom, Sym) and coefficient > 0 and divisor % coefficient == 0:
            found.append((atom, divisor // coefficient))
    return found


def _boundary(atom: Binary) -> list[tuple[Sym, int]]:
    """For ``axis < boundary`` and the like with a constant: cut at the boundary."""
    const, terms = ex.linear_terms(atom.left - atom.right)
    if len(terms) != 1:
        return []
    axis, coefficient = terms[0]
    if not isinstance(axis, Sym) or abs(coefficient) != 1:
        return []
    edge = -const * coefficient
    if atom.op == "<=":
        edge = edge + 1 if coefficient > 0 else edge
    elif atom.op == "<":
        edge = edge if coefficient > 0 else edge + 1
    else:
        return []
    return [(axis, edge)]


def _binaries(e: Expr) -> Iterator[Binary]:
    stack = [e]
    while stack:
        node = stack.pop()
        if isinstance(node, Binary):
            yield node
        stack.extend(ex.children(node))


def merge_axes(loop: KernelLoop) -> KernelLoop:
    position = 0
    while position + 1 < len(loop.axes):
        outer, inner = loop.axes[position], loop.axes[position + 1]
        alike = (outer in loop.folded) == (inner in loop.folded)
        if alike and loop.carried not in (outer, inner) and _walked_as_one(loop, outer, inner):
            loop = _merge(loop, position)
        else:
            position += 1
    return loop


def _walked_as_one(loop: KernelLoop, outer: Sym, inner: Sym) -> bool:
    """Whether ``outer`` occurs in every expression only as ``size(inner)·c·outer + c·inner``."""
    assert inner.upper is not None
    for e in expressions(loop):
        _, terms = ex.linear_terms(e)
        coefficient: dict[Expr, Expr] = {outer: ex.ZERO, inner: ex.ZERO}
        for atom, c in terms:
            if atom is outer or atom is inner:
                coefficient[atom] = coefficient[atom] + c
                continue
            inside = [s for s in ex.symbols(atom) if s is outer or s is inner]
            if not inside:
                continue
            if not isinstance(atom, ex.Product) or len(inside) != 1:
                return False
            rest = ex.product(f for f in atom.factors if f is not inside[0])
            if any(s in (outer, inner) for s in ex.symbols(rest)):
                return False
            coefficient[inside[0]] = coefficient[inside[0]] + rest * c
        if coefficient[outer] is not coefficient[inner] * inner.upper:
            return False
    return True


def _merge(loop: KernelLoop, position: int) -> KernelLoop:
    outer, inner = loop.axes[position], loop.axes[position + 1]
    assert outer.upper is not None
    assert inner.upper is not None
    joined = _sym(f"{outer.name}{inner.name}", outer.upper * inner.upper)
    axes = (*loop.axes[:position], joined, *loop.axes[position + 2 :])
    folded = loop.folded
    if outer in folded:
        folded = folded - {outer, inner} | {joined}
    # Every expression holds the two as one walk, so the joined axis can stand for the inner one.
    return map_expressions(loop, axes, folded, {outer: ex.ZERO, inner: joined})


def _renumber(loop: KernelLoop) -> KernelLoop:
    mapping: dict[Expr, Expr] = {}
    axes: list[Sym] = []
    for position, axis in enumerate(loop.axes):
        assert axis.upper is not None
        fresh = _sym(f"x{position}", axis.upper)
        axes.append(fresh)
        mapping[axis] = fresh
    if all(a is b for a, b in mapping.items()):
        return loop
    folded = frozenset(f for a, f in zip(loop.axes, axes, strict=True) if a in loop.folded)
    return map_expressions(loop, tuple(axes), folded, mapping)
