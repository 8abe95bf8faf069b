"""A buffer's value in place of a load of it."""

from __future__ import annotations

from collections.abc import Iterable

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr, Sym


def written_out(
    load: lp.Load,
    axes: Iterable[Sym],
    value: lp.Scalar,
    indirect: tuple[tuple[Sym, lp.Scalar], ...] | None = None,
) -> lp.Scalar:
    """What a load reads, where its buffer holds ``value`` at the points of ``axes``: zero where the
    load's guard fails, whatever the value is there. indirect: the load's own, if rewritten."""
    mapping: dict[Expr, Expr] = dict(zip(axes, load.index, strict=True))
    bound = load.indirect if indirect is None else indirect
    found = lp.reindex(value, mapping, load.guard, bound)
    if load.guard is None or _is_read(value):
        return found
    assert not any(symbol is s for s, _ in bound for symbol in ex.symbols(load.guard))
    return lp.op("where", found.dtype, lp.condition(load.guard), found, lp.const(0, found.dtype))


def _is_read(value: lp.Scalar) -> bool:
    """Whether a value is what a load reads, perhaps converted: zero where the load is guarded."""
    while isinstance(value, lp.Op) and value.name == "cast":
        value = value.args[0]
    return isinstance(value, lp.Load)
