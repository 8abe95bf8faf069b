"""What the forms of a C kernel share: its loop, its layout, and C text for sizes and axes."""

from __future__ import annotations

from typing import Final

from fusec.codegen.c_body import Frame
from fusec.codegen.c_expr import c_expr
from fusec.codegen.c_folds import Folds
from fusec.codegen.c_layout import Layout, upper
from fusec.codegen.c_lines import Range
from fusec.ir import expr as ex
from fusec.ir.expr import Expr, Sym
from fusec.ir.kernel import KernelLoop, Statement

PARALLEL_WORK: Final = 16384  # elements; below it starting threads costs more than they save


class Nest:
    """One kernel being written. ``sizes`` collects the size symbols that its C text names."""

    def __init__(self, loop: KernelLoop, layout: Layout) -> None:
        self.loop = loop
        self.layout = layout
        self.sizes: list[Sym] = []
        names = {b: f"b{i}" for i, b in enumerate(loop.buffers)}
        self.frame = Frame(layout.lanes, loop.buffers, names, layout.axis, self.symbol)
        self.folds = Folds(loop, self.frame, across_lanes=not layout.column)

    def symbol(self, s: Sym) -> str:
        """The C name of an axis or of a size."""
        if s.upper is not None:
            return s.name
        if s not in self.sizes:
            self.sizes.append(s)
        return f"n{self.sizes.index(s)}"

    def c(self, e: Expr) -> str:
        return c_expr(e, self.symbol)

    def extent(self, axis: Sym) -> str:
        return self.c(upper(axis))

    def count(self, axes: tuple[Sym, ...]) -> str:
        """How many points axes have together, as C."""
        return self.c(ex.product(upper(a) for a in axes))

    def threads(self) -> list[str]:
        """The pragma for the outer loop, or nothing where the work is small."""
        work = ex.product(upper(a) for a in self.loop.axes)
        number = ex.as_int(work)
        if number is not None and number < PARALLEL_WORK:
            return []
        condition = f" if({self.c(work)} >= {PARALLEL_WORK})" if number is None else ""
        return [f"#pragma omp parallel for schedule(static){condition}"]

    def decode(self, rest: str, axes: tuple[Sym, ...]) -> list[str]:
        """Declare the axes from one linear index, the last axis the fastest."""
        lines: list[str] = []
        for position in range(len(axes) - 1, 0, -1):
            size = self.extent(axes[position])
            lines.append(f"const long {axes[position].name} = {rest} % {size};")
            lines.append(f"const long q{position} = {rest} / {size};")
            rest = f"q{position}"
        if axes:
            lines.append(f"const long {axes[0].name} = {rest};")
        return lines

    def statements(self, stage: int, *, inner: bool) -> list[Statement]:
        """Statements of a stage at a row; stores that overwrite an input come last."""
        found = [
            s
            for s in self.loop.statements
            if s.stage == stage and s.inner == inner and not (s.across and s.fold is None)
        ]
        buffers = self.loop.buffers
        return sorted(found, key=lambda s: s.fold is None and buffers[s.buffer].alias_of >= 0)

    def ranges(self, axes: tuple[Sym, ...]) -> list[Range]:
        """Whole loops over axes."""
        return [Range(a.name, "0", self.extent(a)) for a in axes]
