"""KernelLoop: one kernel as a loop nest, between scheduling and code generation.

The nest runs over ``axes``; ``folded`` are the ones that reductions run over. Statements happen in
stages: stage k may use the results of reductions of stages below k. An *inner* statement happens at
every point of the nest, an outer one at every point of the kept axes.

A *scan* is an inner statement whose fold is a scan (`loop.SCANS`). It folds over all
folded axes in their order; its result up to and with a point can be used at that point, by inner
statements of the same stage that come after it, and nowhere else. So one walk over the folded axes
computes, scans and uses.

A nest can fold rows and columns in one pass: ``carried`` is a kept axis whose points one program
(or thread) visits in order, and a fold ``across`` it has a result for each point of all other axes,
the folded ones included. Norms' backward passes are of this kind: each row needs sums over itself,
and the weights' gradients are sums over the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr, Sym
from fusec.ir.loop import Scalar
from fusec.ir.remember import remember


@dataclass(frozen=True, slots=True)
class Argument:
    """A buffer that a kernel takes: element type and strides in elements."""

    dtype: str
    stride: tuple[Expr, ...]
    alias_of: int = -1  # the argument whose memory this one overwrites


@dataclass(frozen=True, slots=True)
class Statement:
    """Store ``value`` at ``index`` of ``buffer`` (``fold`` None), or fold it into the reduction
    result of that number. Buffers are numbered as in the loop program.

    ``across``: a fold over the carried axis, or a store of such results, which happens once the
    carried axis is done, at every point of the other axes (both are *inner*); its value loads
    nothing and its index never names the carried axis. No other statement uses these results.

    ``scatter``: store, add, mul, max or min; the place is one known at run time: ``indirect`` binds
    the symbols of ``index`` that stand for loaded values (all in range), as in a `Load`. Points in
    any order, also at once, may name one place: folded values must all count, of stored ones any
    may stay.
    """

    buffer: int
    index: tuple[Expr, ...]
    value: Scalar
    fold: str | None
    inner: bool
    stage: int
    across: bool = False
    scatter: str | None = None
    indirect: tuple[tuple[Sym, Scalar], ...] = ()

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        """The value, and what the place follows from."""
        return (self.value, *(v for _, v in self.indirect))


@dataclass(frozen=True, slots=True)
class KernelLoop:
    """See the module docstring. ``results`` gives the accumulator type of each reduction."""

    axes: tuple[Sym, ...]
    folded: frozenset[Sym]
    statements: tuple[Statement, ...]
    buffers: dict[int, Argument]
    results: dict[int, str]
    carried: Sym | None = None

    @property
    def scatters(self) -> bool:
        return any(s.scatter is not None for s in self.statements)

    @property
    def scans(self) -> bool:
        return any(s.fold in lp.SCANS for s in self.statements)

    @property
    def kept(self) -> tuple[Sym, ...]:
        return tuple(a for a in self.axes if a not in self.folded)

    @property
    def inner(self) -> tuple[Sym, ...]:
        return tuple(a for a in self.axes if a in self.folded)

    @property
    def stages(self) -> int:
        return 1 + max((s.stage for s in self.statements), default=0)


def map_expressions(
    loop: KernelLoop,
    axes: tuple[Sym, ...],
    folded: frozenset[Sym],
    mapping: dict[Expr, Expr],
) -> KernelLoop:
    """The loop over other axes, every expression rewritten by ``mapping``. The carried axis may get
    another name, never other points."""
    memo: dict[Scalar, Scalar] = {}  # statements hold each other's values
    statements = tuple(
        replace(
            s,
            index=tuple(ex.substitute(e, mapping) for e in s.index),
            value=lp.reindex(s.value, mapping, memo=memo),
            indirect=tuple((symbol, lp.reindex(v, mapping, memo=memo)) for symbol, v in s.indirect),
        )
        for s in loop.statements
    )
    carried = loop.carried
    if carried in mapping:
        renamed = mapping[carried]
        assert isinstance(renamed, Sym)
        carried = renamed
    return replace(loop, axes=axes, folded=folded, statements=statements, carried=carried)


@remember
def linear(index: tuple[Expr, ...], stride: tuple[Expr, ...]) -> Expr:
    """The element offset of an index."""
    return ex.total(e * s for e, s in zip(index, stride, strict=True))


def expressions(loop: KernelLoop) -> list[Expr]:
    """Every index expression of the loop: element offsets, guards and index values."""
    found: dict[Expr, None] = {}
    for statement in loop.statements:
        if statement.fold is None:
            found[linear(statement.index, loop.buffers[statement.buffer].stride)] = None
        for node in lp.walk(statement.scalars):
            if isinstance(node, lp.Load):
                found[linear(node.index, loop.buffers[node.buffer].stride)] = None
                if node.guard is not None:
                    found[node.guard] = None
            elif isinstance(node, lp.Index):
                found[node.expr] = None
    return list(found)
