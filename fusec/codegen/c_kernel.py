"""KernelLoop → C: one function over vectors, parallel over the kept axes.

The function's C type is ``void name(void **buffers, const long *sizes)``. Two forms: *rows*, with
lanes along the innermost loop (a row a thread at a time, lanes added up at its end; a kernel that
folds nothing has this form too; one that folds columns as well takes a chunk of rows at a time),
and *strips*, with lanes along a kept axis beside the folds (a strip of columns at a time, each lane
its own result).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from fusec.codegen.c_body import STORAGE, Scope
from fusec.codegen.c_carried import Carried
from fusec.codegen.c_columns import panel, strips
from fusec.codegen.c_expr import FLOOR_HELPERS
from fusec.codegen.c_layout import choose_layout, extent_of, upper
from fusec.codegen.c_lines import Range, indent, while_loop, wrap
from fusec.codegen.c_nest import Nest
from fusec.codegen.c_prelude import prelude
from fusec.codegen.c_turned import squares, turned_loads
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr, Sym
from fusec.ir.kernel import KernelLoop, Statement
from fusec.ir.loop import Load, Op, Reduced, Scalar

_BLOCK: Final = 4096  # elements of a vector loop that one thread takes at a time
_TILE: Final = 64  # both sides of a tile where two access orders meet
_FLUSH: Final = 64  # additions to a partial result before it goes into the total


@dataclass(frozen=True, slots=True)
class CKernel:
    """C source; ``buffers`` in the order of the function's pointers, ``sizes`` likewise."""

    name: str
    source: str
    buffers: tuple[int, ...]
    sizes: tuple[Expr, ...]


def emit_kernel(loop: KernelLoop, isa: str) -> CKernel:
    """Raises CodegenError for an operation that the vector library lacks."""
    nest = Nest(loop, choose_layout(loop, isa))
    if not nest.layout.column:
        body = _Rows(nest).emit()
    else:
        body = panel(nest) if nest.layout.panel else strips(nest)
    name = _name(loop)
    lines = [f"void {name}(void **buffers, const long *sizes) {{"]
    for i, argument in enumerate(loop.buffers.values()):
        lines.append(f"  {STORAGE[argument.dtype]} *const b{i} = buffers[{i}];")
    lines += [f"  const long n{i} = sizes[{i}];" for i in range(len(nest.sizes))]
    lines += indent(body)
    lines.append("}")
    head = prelude(nest.frame.lanes, isa, sorted(nest.frame.needed))
    source = head + FLOOR_HELPERS + "\n".join(lines) + "\n"
    return CKernel(name, source, tuple(loop.buffers), tuple(nest.sizes))


class _Rows:
    """The form with lanes along the innermost loop."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.loop = nest.loop
        self.layout = nest.layout
        self.frame = nest.frame
        self.folds = nest.folds
        self.scratch = {node: f"s{i}" for i, node in enumerate(self.layout.scratch)}
        self.carried = Carried(nest) if nest.loop.carried is not None else None
        self.turned = turned_loads(nest)
        self.kept_rows: set[Scalar] = set()  # scratch values already stored by an earlier stage

    def emit(self) -> list[str]:
        layout = self.layout
        blocked = not self.loop.folded and layout.axis is not None
        total = [self.nest.count(layout.outer)]
        lines: list[str] = []
        body: list[str] = []
        rest = "o"
        if blocked:
            assert layout.axis is not None
            narrow = layout.tiled is not None or self.loop.scatters
            sides = [(layout.axis, _TILE if narrow else _BLOCK)]
            if layout.tiled is not None:
                sides.append((layout.tiled, _TILE))
            for axis, side in sides:
                extent = self.nest.extent(axis)
                lines.append(f"const long {axis.name}_blocks = ({extent} + {side - 1}L) / {side}L;")
                total.append(f"{axis.name}_blocks")
                body.append(f"const long {axis.name}_from = {rest} % {axis.name}_blocks * {side}L;")
                body.append(
                    f"const long {axis.name}_to = minl({axis.name}_from + {side}L, {extent});"
                )
                body.append(f"const long {axis.name}_rest = {rest} / {axis.name}_blocks;")
                rest = f"{axis.name}_rest"
        lines.append(f"const long total = {' * '.join(total)};")
        body += self.nest.decode(rest, layout.outer)
        axes = frozenset(layout.outer) | ({self.loop.carried} if self.loop.carried else set())
        scope = Scope(self.frame, axes, "1", vector=False)
        arrays: list[str] = []
        for node, name in self.scratch.items():
            row = ex.as_int(ex.product(upper(a) for a in layout.inner)) or 0
            arrays.append(f"{STORAGE[node.dtype]} {name}[{row + layout.lanes}];")
        for stage in range(self.loop.stages):
            for s in self.nest.statements(stage, inner=False):
                scope.store(s.buffer, s.index, s.value)
            statements = self.nest.statements(stage, inner=True)
            if statements:
                self._row_loop(scope, statements, blocked)
        rows = [*arrays, *scope.lines]
        body += rows if self.carried is None else self.carried.around(rows)
        parallel = self.nest.threads() if blocked or layout.outer else []
        return [*lines, *parallel, "for (long o = 0; o < total; o++) {", *indent(body), "}"]

    def _ranges(self, axes: tuple[Sym, ...], blocked: bool) -> list[Range]:
        return [
            Range(a.name, f"{a.name}_from", f"{a.name}_to")
            if blocked and a in (self.layout.axis, self.layout.tiled)
            else Range(a.name, "0", self.nest.extent(a))
            for a in axes
        ]

    def _row_loop(self, scope: Scope, statements: list[Statement], blocked: bool) -> None:
        layout = self.layout
        folds = [
            s for s in statements if s.fold is not None and s.fold not in lp.SCANS and not s.across
        ]
        copies = layout.copies if folds else 1
        for s in statements:
            if s in folds or s.fold in lp.SCANS:
                self.folds.declare(scope, s, copies)
        ranges = self._ranges(layout.inner, blocked)
        if layout.axis is None:
            lines = self._body(scope, statements, [0], scope.count)
            lines += [self.folds.flush(s, 1) for s in folds]
        elif self.turned:
            *ranges, rows, over = ranges
            lines = squares(
                self.nest,
                scope,
                self.turned,
                (rows, over),
                lambda held: self._body(scope, statements, [0], str(self.frame.lanes), held),
                lambda left: self._vector_loop(scope, statements, folds, copies, left),
            )
        else:
            lines = self._vector_loop(scope, statements, folds, copies, ranges.pop())
        scope.lines += wrap(ranges, lines)
        for s in folds:
            self.folds.finish(scope, s)
        self.kept_rows.update(self._computed(statements))

    def _computed(self, statements: list[Statement]) -> set[Scalar]:
        nodes = set(lp.walk(s.value for s in statements))
        return {node for node in self.scratch if node in nodes}

    def _vector_loop(
        self,
        scope: Scope,
        statements: list[Statement],
        folds: list[Statement],
        copies: int,
        over: Range,
    ) -> list[str]:
        """The innermost loop: several vectors at once, single vectors, the rest."""
        axis = self.layout.axis
        assert axis is not None
        lanes, v = self.frame.lanes, over.name
        start, stop = over.start, over.stop
        extent = None if "_" in stop else extent_of(axis)
        loops: list[str] = []
        if copies > 1:
            wide = self._body(scope, statements, list(range(copies)), str(lanes))
            loops += while_loop(v, copies * lanes, "stop", wide)
        if extent is None or copies == 1 or extent % (copies * lanes) >= lanes or folds:
            loops += while_loop(v, lanes, "stop", self._body(scope, statements, [0], str(lanes)))
        if extent is None or extent % lanes:
            tail = self._body(scope, statements, [0], "n")
            loops += [f"if ({v} < stop) {{ const int n = (int)(stop - {v});", *indent(tail), "}"]
        if not folds:
            return [f"const long stop = {stop};", f"long {v} = {start};", *loops]
        span = copies * lanes * _FLUSH
        return [
            f"for (long k = {start}; k < {stop}; k += {span}L) {{",
            f"  const long stop = minl(k + {span}L, {stop});",
            f"  long {v} = k;",
            *indent(loops),
            *("  " + self.folds.flush(s, copies) for s in folds),
            "}",
        ]

    def _body(
        self,
        scope: Scope,
        statements: list[Statement],
        copies: list[int],
        count: str,
        held: Mapping[Scalar, str] = MappingProxyType({}),
    ) -> list[str]:
        """The statements at one point of the inner loops, once a copy; ``held``: names of values
        that are there already."""
        lines: list[str] = []
        varying = frozenset(self.layout.inner)
        for copy in copies:
            inner = Scope(
                self.frame, varying, count, self.layout.axis is not None, scope,
                shift=copy * self.frame.lanes, known=dict(held),
            )  # fmt: skip
            self._reuse_row(inner, statements)
            self._compute_first(inner, statements)
            for s in statements:
                if s.scatter is not None:
                    inner.scatter(s)
                elif s.fold is None:
                    inner.store(s.buffer, s.index, s.value)
                elif s.across:
                    assert self.carried is not None
                    self.carried.fold(inner, s, self._row_place(inner))
                else:
                    self.folds.accumulate(inner, s, copy, partial_lanes=count == "n")
            self._keep_row(inner, statements)
            lines += inner.lines
        return lines

    def _compute_first(self, scope: Scope, statements: list[Statement]) -> None:
        """Compute what overwrites inputs before any of them is; of what a scan here gives only what
        is loaded for it."""
        scans = {s.buffer for s in statements if s.fold in lp.SCANS}

        def waits(node: Scalar) -> bool:
            return any(isinstance(n, Reduced) and n.buffer in scans for n in lp.walk((node,)))

        for s in statements:
            if s.fold is not None or self.loop.buffers[s.buffer].alias_of < 0:
                continue
            if not waits(s.value):
                scope.value(lp.cast(s.value, self.loop.buffers[s.buffer].dtype))
                continue
            for node in lp.walk((s.value,)):
                if isinstance(node, Load) and not waits(node):
                    scope.value(node)

    def _row_place(self, scope: Scope) -> str:
        """The linear position in a row, as C."""
        place: Expr = ex.ZERO
        for axis in self.layout.inner:
            place = place * upper(axis) + axis
        return scope.c(place)

    def _reuse_row(self, scope: Scope, statements: list[Statement]) -> None:
        again = self._computed(statements) & self.kept_rows
        for node in sorted(again, key=self.scratch.__getitem__):
            name = self.frame.fresh()
            text = self.frame.call(
                f"ld_{node.dtype}", f"{self.scratch[node]} + {self._row_place(scope)}", scope.count
            )
            scope.emit(f"v{node.dtype} {name} = {text};")
            scope.known[node] = name

    def _keep_row(self, scope: Scope, statements: list[Statement]) -> None:
        fresh = self._computed(statements) - self.kept_rows
        for node in sorted(fresh, key=self.scratch.__getitem__):
            place = f"{self.scratch[node]} + {self._row_place(scope)}"
            value = scope.value(node)
            scope.emit(self.frame.call(f"st_{node.dtype}", place, value, scope.count) + ";")


def _name(loop: KernelLoop) -> str:
    """Kind and operations, from what the kernel computes alone."""
    kind = "red" if loop.folded else "poi"
    names: dict[str, None] = {}
    for s in loop.statements:
        for node in lp.walk((s.value,)):
            if isinstance(node, Op) and node.name not in ("cast", "where"):
                names[node.name] = None
        if s.fold is not None:
            names[s.fold] = None
    return "_".join(["cpu", kind, "fused", *list(names)[:6]]) if names else f"cpu_{kind}_copy"
