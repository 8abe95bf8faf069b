"""What the values of a Triton kernel are written against: tile, buffers, names, shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from fusec.codegen.triton_expr import INT32, is_wide, reaches, triton_expr
from fusec.codegen.triton_tile import FOLDED, Dim, Tile
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr, Sym
from fusec.ir.kernel import Argument, KernelLoop
from fusec.ir.loop import Index, Load, Reduced, Scalar

Shape = frozenset[str]
"""The names of the dimensions that a value varies along."""

SCALAR: Final[Shape] = frozenset()


@dataclass(slots=True)
class Frame:
    """What a kernel's values are emitted against: shared by all of its scopes.

    narrow: its sizes are arguments of 32 bits, and what follows from them is computed in 32 bits;
    reached: bounds of what is, over the sizes, all of which a call has to keep within 32 bits.
    """

    tile: Tile
    isa: str
    buffers: dict[int, Argument]
    names: dict[int, str]  # buffer → pointer
    precise: frozenset[Scalar]  # values that have to be as good as their types
    across: frozenset[int]  # reductions over the carried axis
    scans: frozenset[int]  # those with a result at every point
    eviction: Callable[[Load], str]  # the policy of a load, or nothing
    sizes: tuple[Sym, ...]
    narrow: bool = False
    reached: set[Expr] = field(default_factory=set)
    shapes: dict[Scalar, Shape] = field(default_factory=dict)
    counter: int = 0
    single: str = "pid"  # the linear index of the tile's single axes
    starts: dict[str, str] = field(default_factory=dict)  # the first point of each dimension

    def fresh(self) -> str:
        self.counter += 1
        return f"tmp{self.counter - 1}"

    def wide(self, e: Expr) -> bool:
        """Whether an expression has to be computed in 64 bits."""
        if not is_wide(e) or not self.narrow:
            return is_wide(e)
        found = set(reaches(e))
        known = dict.fromkeys((s.name for s in self.sizes), 1)
        symbols = {s for reach in found for s in ex.symbols(reach)}
        if not symbols <= set(self.sizes) or any(ex.evaluate(r, known) > INT32 for r in found):
            return True  # by what is loaded, or at any size
        self.reached |= found
        return False

    def size(self, s: Sym, *, wide: bool = False) -> str:
        """A size known only at the call; ``wide``: to compute in 64 bits with."""
        name = f"n{self.sizes.index(s)}"
        return f"tl.cast({name}, tl.int64)" if wide and self.narrow else name

    def size_text(self, e: Expr) -> str:
        """An expression of sizes alone."""
        wide = self.wide(e)
        return triton_expr(e, lambda s: self.size(s, wide=wide))

    def shape_of(self, e: Expr) -> Shape:
        """Along which dimensions an expression of axes and sizes varies."""
        found = {d.name for s in ex.symbols(e) if (d := self.tile.along(s)) is not None}
        return frozenset(found)

    def shape(self, node: Scalar) -> Shape:
        """Along which dimensions a value varies."""
        for n in lp.walk((node,)):
            if n not in self.shapes:
                self.shapes[n] = self._own_shape(n).union(*(self.shapes[c] for c in lp.children(n)))
        return self.shapes[node]

    def _own_shape(self, node: Scalar) -> Shape:
        if isinstance(node, Index):
            return self.shape_of(node.expr)
        if isinstance(node, Load):
            parts = [*node.index, *([node.guard] if node.guard is not None else [])]
            return SCALAR.union(*(self.shape_of(e) for e in parts))
        if isinstance(node, Reduced):
            here = {d.name for d in self.tile.dims}
            if node.buffer in self.across:
                return frozenset(here & {FOLDED})
            return frozenset(here if node.buffer in self.scans else here - {FOLDED})
        return SCALAR


def dim_lines(frame: Frame, d: Dim, start: str) -> list[str]:
    """Declare a dimension's index from its first point, and its mask."""
    frame.starts[d.name] = start
    spread = frame.tile.spread(d)
    ramp = f"tl.arange(0, {d.constant}){spread}"
    lines = [f"{d.name} = {ramp}" if start == "" else f"{d.name} = {start} + {ramp}"]
    if d.masked:
        lines.append(f"{d.name}mask = {d.name} < {frame.size_text(d.count)}")
    return lines


def shared_pointers(loop: KernelLoop) -> dict[int, int]:
    """For each buffer, in order, the one whose pointer it goes by: a memory that is overwritten has
    one pointer, given as the buffer that overwrites it."""
    memory = {b: b if a.alias_of < 0 else a.alias_of for b, a in loop.buffers.items()}
    given = dict.fromkeys(memory.values(), -1)
    for buffer, argument in loop.buffers.items():
        if argument.alias_of >= 0 or given[memory[buffer]] < 0:
            given[memory[buffer]] = buffer
    return {b: given[m] for b, m in memory.items()}
