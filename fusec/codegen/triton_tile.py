"""The tile of a Triton program: which axes lie along which of its dimensions.

A program computes a tile of up to two dimensions; each is a range of one linear index over some
axes, the last the fastest. Axes that no dimension holds are fixed in a program (*single*).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from fusec.ir import expr as ex
from fusec.ir.expr import Expr, Sym
from fusec.ir.remember import remember

FOLDED: Final = "r"
STAGES: Final = "STAGES"
"""The constant that says how many steps of a loop are on their way at once."""
_MOST_STAGES: Final = 5
_LEAST_BLOCK: Final = 16  # worth trying
_MOST_BLOCK: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class Dim:
    """name: ``x`` or ``y`` (kept axes), ``r`` (folded ones); block: how many points of it a program
    has at a time, a power of two; looped: one program walks all of it, block by block."""

    name: str
    axes: tuple[Sym, ...]
    block: int
    looped: bool = False

    @property
    def linear(self) -> Sym:
        """The index of the dimension as a symbol."""
        if len(self.axes) == 1:
            return self.axes[0]
        made = ex.axis(self.name, self.count)
        assert isinstance(made, Sym)
        return made

    @property
    def constant(self) -> str:
        """The name of the block's size in the text."""
        return f"{self.name.upper()}BLOCK"

    @property
    def count(self) -> Expr:
        return _points(self.axes)

    @property
    def masked(self) -> bool:
        """Whether some block has points beyond the end."""
        count = ex.as_int(self.count)
        return not count or count % self.block != 0

    def uniform(self, axis: Sym) -> bool:
        """Whether an axis is the same at all points of a block: it changes between blocks alone."""
        if (
            axis not in self.axes
            or axis is self.axes[-1]
            or (self.name == FOLDED and not self.looped)
        ):
            return False
        below = extent(self.axes[self.axes.index(axis) + 1 :])
        return below is not None and below % self.block == 0

    def programs(self, block: Expr) -> Expr:
        """How many programs share this dimension in blocks of a size."""
        if self.name == FOLDED or self.looped:
            return ex.ONE
        return ex.floordiv(self.count + (block - 1), block)

    @property
    def range(self) -> tuple[int, int]:
        """The least and the greatest block, powers of two, that a text written for this one is
        right for."""
        return _range(self)


@dataclass(frozen=True, slots=True)
class Tile:
    """dims: of a program's tile, in the order of its shape; single: the axes that are fixed in a
    program, the last the fastest from one program to the next, slower than the dims; row: the
    carried axis, where a program visits its points one by one; early: load before the first fold
    what later stages need; walkers: so many programs on each processor visit the points of the
    single axes in turn, and load the next one's row while they compute; 0: a program a point;
    stages: of the loop that a program is, if it is one."""

    dims: tuple[Dim, ...]
    single: tuple[Sym, ...] = ()
    row: Sym | None = None
    warps: int = 4
    stages: int = 1
    early: bool = False
    walkers: int = 0

    @property
    def kept(self) -> tuple[Dim, ...]:
        return tuple(d for d in self.dims if d.name != FOLDED)

    @property
    def folded(self) -> Dim | None:
        return next((d for d in self.dims if d.name == FOLDED), None)

    @property
    def carried(self) -> Dim | None:
        """The dimension of the carried axis, where a program visits several points at once."""
        return next((d for d in self.kept if d.looped), None)

    @property
    def looped(self) -> bool:
        return self.folded is not None and self.folded.looped

    @property
    def programs(self) -> Expr:
        return self._programs([d.programs(ex.integer(d.block)) for d in self.kept])

    @property
    def grid(self) -> Expr:
        """`programs` over the names of the blocks instead of their sizes."""
        return self._programs([d.programs(ex.symbol(d.constant, 1)) for d in self.kept])

    def _programs(self, kept: list[Expr]) -> Expr:
        return ex.product(kept) * ex.product(upper(a) for a in self.single)

    @property
    def constants(self) -> tuple[tuple[str, int], ...]:
        """The constants that the text names, in the order of its parameters."""
        loops = self.walkers or self.row is not None or any(d.looped for d in self.dims)
        stages = ((STAGES, self.stages),) if loops else ()
        return (*((d.constant, d.block) for d in self.dims), *stages)

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """For each constant the least and the greatest value that the text is right for."""
        blocks = tuple(d.range for d in self.dims)
        return (*blocks, (1, _MOST_STAGES)) if len(self.constants) > len(blocks) else blocks

    def along(self, s: Sym) -> Dim | None:
        """The dimension along which a symbol changes inside a block; None where it does not."""
        dim = self.dim_of(s)
        return None if dim is not None and dim.uniform(s) else dim

    def dim_of(self, s: Sym) -> Dim | None:
        return next((d for d in self.dims if s in d.axes or s is d.linear), None)

    def as_linear(self, e: Expr) -> Expr:
        """An expression in which the walk over all axes of a dimension is its linear index."""
        for d in self.dims:
            if len(d.axes) > 1 and any(s in d.axes for s in ex.symbols(e)):
                e = _as_linear(e, d)
        return e

    def shape(self, names: frozenset[str]) -> str:
        """The shape of a value that varies along the dimensions of those names, as text."""
        sizes = (d.constant if d.name in names else "1" for d in self.dims)
        return f"[{', '.join(sizes)}]"

    def spread(self, d: Dim) -> str:
        """What makes of a vector along ``d`` a value of the tile's rank."""
        if len(self.dims) == 1:
            return ""
        return "[" + ", ".join(":" if e is d else "None" for e in self.dims) + "]"


@remember
def _range(d: Dim) -> tuple[int, int]:
    """See `Dim.range`."""
    if d.name == FOLDED and not d.looped:
        return d.block, d.block  # a row, whole
    uniform = [a for a in d.axes if d.uniform(a)]

    def as_right(block: int) -> bool:
        other = replace(d, block=block)
        return all(other.uniform(a) for a in uniform) and (d.masked or not other.masked)

    least = greatest = d.block
    while least > _LEAST_BLOCK and as_right(least // 2):
        least //= 2
    most = min(_MOST_BLOCK, extent(d.axes) or _MOST_BLOCK)
    while greatest < most and as_right(2 * greatest):
        greatest *= 2
    return least, greatest


def _as_linear(e: Expr, d: Dim) -> Expr:
    last = next((c for atom, c in ex.linear_terms(e)[1] if atom is d.axes[-1]), None)
    if last is None:
        return e
    walk: Expr = ex.ZERO
    for axis in d.axes:
        walk = walk * upper(axis) + axis
    rest = e - walk * last
    return e if any(s in d.axes for s in ex.symbols(rest)) else rest + d.linear * last


def upper(axis: Sym) -> Expr:
    assert axis.upper is not None
    return axis.upper


@remember
def _points(axes: tuple[Sym, ...]) -> Expr:
    """How many points axes have together."""
    return ex.product(upper(a) for a in axes)


def extent(axes: tuple[Sym, ...]) -> int | None:
    """How many points axes have together, where that is a constant."""
    return ex.as_int(_points(axes))
