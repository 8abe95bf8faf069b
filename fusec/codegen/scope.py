"""Where a value of a kernel's body is computed: in the outermost block in which it is fixed.

Blocks are nested as the code's loops are. What a block has computed serves all blocks inside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, Self, TypeVar

from fusec.ir import expr as ex
from fusec.ir.expr import Sym
from fusec.ir.loop import Index, Load, Scalar


class Block(Protocol):
    """``varying``: symbols that change in the block; ``known``: its values' names in the code."""

    varying: frozenset[Sym]
    known: dict[Scalar, str]

    @property
    def parent(self) -> Self | None:
        """The block around this one."""
        ...


B = TypeVar("B", bound=Block)


def holder(block: B, node: Scalar) -> B | None:
    """The block, this one or one around it, that has computed a value."""
    scope: B | None = block
    while scope is not None and node not in scope.known:
        scope = scope.parent
    return scope


def home(block: B, operands: Iterable[Scalar], own: set[Sym]) -> B:
    """Where to compute a value of operands that are known and of symbols of its ``own``: as far out
    as none of its symbols and, further in, none of its operands changes."""
    needed = {id(holder(block, operand)) for operand in operands}
    while block.parent is not None and id(block) not in needed and not own & block.varying:
        block = block.parent
    return block


def own_symbols(node: Scalar) -> set[Sym]:
    """The symbols that a value's own expressions name, its operands' left out."""
    if isinstance(node, Index):
        return set(ex.symbols(node.expr))
    if not isinstance(node, Load):
        return set()
    guard = () if node.guard is None else (node.guard,)
    return {s for e in (*node.index, *guard) for s in ex.symbols(e)}
