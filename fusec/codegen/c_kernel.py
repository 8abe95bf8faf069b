"""KernelLoop → C: one function over vectors, parallel over the kept axes.

The function's C type is ``void name(void **buffers, const long *sizes)``. Two forms: *rows*, with
lanes along the innermost loop (a row a thread at a time, lanes added up at its end; a kernel that
folds nothing has this form too), and *strips*, with lanes along a kept axis beside the folds (a
strip of columns at a time, each lane its own result).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fusec.codegen.c_body import STORAGE, Frame, Scope
from fusec.codegen.c_expr import FLOOR_HELPERS, c_expr
from fusec.codegen.c_folds import Folds
from fusec.codegen.c_layout import Layout, choose_layout, extent_of, upper
from fusec.codegen.c_prelude import prelude
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr, Sym
from fusec.ir.kernel import KernelLoop, Statement
from fusec.ir.loop import Op, Scalar

PARALLEL_WORK: Final = 16384  # elements; below it starting threads costs more than they save
_BLOCK: Final = 4096  # elements of a vector loop that one thread takes at a time
_TILE: Final = 64  # both sides of a tile where two access orders meet
_FLUSH: Final = 64  # additions to a partial result before it goes into the total
_TYPICAL_SIZE: Final = 64


@dataclass(frozen=True, slots=True)
class CKernel:
    """C source; ``buffers`` in the order of the function's pointers, ``sizes`` likewise."""

    name: str
    source: str
    buffers: tuple[int, ...]
    sizes: tuple[Expr, ...]


def emit_kernel(loop: KernelLoop, isa: str) -> CKernel:
    """Raises CodegenError for an operation that the vector library lacks."""
    return _Emitter(loop, isa).emit()


@dataclass(frozen=True, slots=True)
class _Range:
    """A C loop: ``for (long name = start; name < stop; name++)``."""

    name: str
    start: str
    stop: str


class _Emitter:
    def __init__(self, loop: KernelLoop, isa: str) -> None:
        self.loop = loop
        self.isa = isa
        self.layout: Layout = choose_layout(loop, isa)
        self.sizes: list[Sym] = []
        names = {b: f"b{i}" for i, b in enumerate(loop.buffers)}
        layout = self.layout
        self.frame = Frame(layout.lanes, loop.buffers, names, layout.axis, self._symbol)
        self.folds = Folds(loop, self.frame, across_lanes=not layout.column)
        self.scratch = {node: f"s{i}" for i, node in enumerate(layout.scratch)}
        self.kept_rows: set[Scalar] = set()  # scratch values already stored by an earlier stage

    def _symbol(self, s: Sym) -> str:
        if s.upper is not None:
            return s.name
        if s not in self.sizes:
            self.sizes.append(s)
        return f"n{self.sizes.index(s)}"

    def _c(self, e: Expr) -> str:
        return c_expr(e, self._symbol)

    # -- the function -----------------------------------------------------------------------

    def emit(self) -> CKernel:
        body = self._strips() if self.layout.column else self._rows()
        name = _name(self.loop)
        lines = [f"void {name}(void **buffers, const long *sizes) {{"]
        for i, argument in enumerate(self.loop.buffers.values()):
            lines.append(f"  {STORAGE[argument.dtype]} *const b{i} = buffers[{i}];")
        lines += [f"  const long n{i} = sizes[{i}];" for i in range(len(self.sizes))]
        lines += ["  " + line for line in body]
        lines.append("}")
        head = prelude(self.frame.lanes, self.isa, sorted(self.frame.needed))
        source = head + FLOOR_HELPERS + "\n".join(lines) + "\n"
        return CKernel(name, source, tuple(self.loop.buffers), tuple(self.sizes))

    def _threads(self) -> list[str]:
        """The pragma for the outer loop, or nothing where the work is small."""
        work = ex.product(upper(a) for a in self.loop.axes)
        number = ex.as_int(work)
        if number is not None and number < PARALLEL_WORK:
            return []
        condition = f" if({self._c(work)} >= {PARALLEL_WORK})" if number is None else ""
        return [f"#pragma omp parallel for schedule(static){condition}"]

    def _decode(self, rest: str, axes: tuple[Sym, ...]) -> list[str]:
        """Declare the axes from one linear index, the last axis the fastest."""
        lines: list[str] = []
        for position in range(len(axes) - 1, 0, -1):
            size = self._c(upper(axes[position]))
            lines.append(f"const long {axes[position].name} = {rest} % {size};")
            lines.append(f"const long q{position} = {rest} / {size};")
            rest = f"q{position}"
        if axes:
            lines.append(f"const long {axes[0].name} = {rest};")
        return lines

    def _of(self, stage: int, *, inner: bool) -> list[Statement]:
        """Statements of a stage; stores that overwrite an input come last."""
        found = [s for s in self.loop.statements if s.stage == stage and s.inner == inner]
        buffers = self.loop.buffers
        return sorted(found, key=lambda s: s.fold is None and buffers[s.buffer].alias_of >= 0)

    # -- rows ---------------------------------------------------------------------------------

    def _rows(self) -> list[str]:
        layout = self.layout
        blocked = not self.loop.folded and layout.axis is not None
        total = [self._c(ex.product(upper(a) for a in layout.outer))]
        lines: list[str] = []
        body: list[str] = []
        rest = "o"
        if blocked:
            assert layout.axis is not None
            sides = [(layout.axis, _TILE if layout.tiled else _BLOCK)]
            if layout.tiled is not None:
                sides.append((layout.tiled, _TILE))
            for axis, side in sides:
                extent = self._c(upper(axis))
                lines.append(f"const long {axis.name}_blocks = ({extent} + {side - 1}L) / {side}L;")
                total.append(f"{axis.name}_blocks")
                body.append(f"const long {axis.name}_from = {rest} % {axis.name}_blocks * {side}L;")
                body.append(
                    f"const long {axis.name}_to = minl({axis.name}_from + {side}L, {extent});"
                )
                body.append(f"const long {axis.name}_rest = {rest} / {axis.name}_blocks;")
                rest = f"{axis.name}_rest"
        lines.append(f"const long total = {' * '.join(total)};")
        body += self._decode(rest, layout.outer)
        scope = Scope(self.frame, frozenset(layout.outer), "1", vector=False)
        for node, name in self.scratch.items():
            row = ex.as_int(ex.product(upper(a) for a in layout.inner)) or 0
            body.append(f"{STORAGE[node.dtype]} {name}[{row + layout.lanes}];")
        for stage in range(self.loop.stages):
            for s in self._of(stage, inner=False):
                scope.store(s.buffer, s.index, s.value)
            statements = self._of(stage, inner=True)
            if statements:
                self._row_loop(scope, statements, blocked)
        body += scope.lines
        parallel = self._threads() if blocked or layout.outer else []
        return [*lines, *parallel, "for (long o = 0; o < total; o++) {", *_indent(body), "}"]

    def _ranges(self, axes: tuple[Sym, ...], blocked: bool) -> list[_Range]:
        return [
            _Range(a.name, f"{a.name}_from", f"{a.name}_to")
            if blocked
            else _Range(a.name, "0", self._c(upper(a)))
            for a in axes
        ]

    def _row_loop(self, scope: Scope, statements: list[Statement], blocked: bool) -> None:
        layout = self.layout
        folds = [s for s in statements if s.fold is not None]
        copies = layout.copies if folds else 1
        for s in folds:
            self.folds.declare(scope, s, copies)
        ranges = self._ranges(layout.inner, blocked)
        if layout.axis is None:
            lines = self._body(scope, statements, [0], scope.count)
            lines += [self.folds.flush(s, 1) for s in folds]
        else:
            lines = self._vector_loop(scope, statements, folds, copies, ranges.pop())
        scope.lines += _wrap(ranges, lines)
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
        over: _Range,
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
            loops += _while(v, copies * lanes, "stop", wide)
        if extent is None or copies == 1 or extent % (copies * lanes) >= lanes or folds:
            loops += _while(v, lanes, "stop", self._body(scope, statements, [0], str(lanes)))
        if extent is None or extent % lanes:
            tail = self._body(scope, statements, [0], "n")
            loops += [f"if ({v} < stop) {{ const int n = (int)(stop - {v});", *_indent(tail), "}"]
        if not folds:
            return [f"const long stop = {stop};", f"long {v} = {start};", *loops]
        span = copies * lanes * _FLUSH
        return [
            f"for (long k = {start}; k < {stop}; k += {span}L) {{",
            f"  const long stop = minl(k + {span}L, {stop});",
            f"  long {v} = k;",
            *_indent(loops),
            *("  " + self.folds.flush(s, copies) for s in folds),
            "}",
        ]

    def _body(
        self, scope: Scope, statements: list[Statement], copies: list[int], count: str
    ) -> list[str]:
        """The statements at one point of the inner loops, once a copy."""
        lines: list[str] = []
        varying = frozenset(self.layout.inner)
        for copy in copies:
            inner = Scope(
                self.frame, varying, count, self.layout.axis is not None, scope,
                shift=copy * self.frame.lanes,
            )  # fmt: skip
            self._reuse_row(inner, statements)
            for s in statements:
                if s.fold is None:
                    inner.store(s.buffer, s.index, s.value)
                else:
                    self.folds.accumulate(inner, s, copy, partial_lanes=count == "n")
            self._keep_row(inner, statements)
            lines += inner.lines
        return lines

    def _row_place(self, scope: Scope) -> str:
        """The linear position in a row, as C."""
        place: Expr = ex.ZERO
        for axis in self.layout.inner:
            place = place * upper(axis) + axis
        return scope.c(place)

    def _reuse_row(self, scope: Scope, statements: list[Statement]) -> None:
        for node in self._computed(statements) & self.kept_rows:
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

    # -- strips -------------------------------------------------------------------------------

    def _strips(self) -> list[str]:
        """Wide strips of several vectors, then narrow ones for the rest of the columns."""
        layout = self.layout
        axis = layout.axis
        assert axis is not None
        lanes, extent = layout.lanes, self._c(upper(axis))
        wide = layout.copies * lanes
        rows = self._c(ex.product(upper(a) for a in layout.outer))
        lines = [
            f"const long wide = {extent} / {wide}L;",
            f"const long strips = wide + ({extent} - wide * {wide}L + {lanes - 1}L) / {lanes}L;",
            f"const long total = {rows} * strips;",
            *self._threads(),
            "for (long o = 0; o < total; o++) {",
        ]
        body = ["const long strip = o % strips;", *self._decode("(o / strips)", layout.outer)]
        body.append("if (strip < wide) {")
        body.append(f"  const long {axis.name} = strip * {wide}L;")
        body += _indent(self._strip(layout.copies, str(lanes)))
        static = extent_of(axis)
        if static is None or static % wide:
            body.append("} else {")
            body.append(f"  const long {axis.name} = wide * {wide}L + (strip - wide) * {lanes}L;")
            body.append(f"  const int n = (int)minl({lanes}L, {extent} - {axis.name});")
            body += _indent(self._strip(1, "n"))
        body.append("}")
        return [*lines, *_indent(body), "}"]

    def _strip(self, copies: int, count: str) -> list[str]:
        """All stages for one strip of ``copies`` vectors side by side."""
        layout = self.layout
        assert layout.axis is not None
        varying = frozenset((*layout.outer, layout.axis))
        sides = [
            Scope(self.frame, varying, count, True, shift=c * layout.lanes) for c in range(copies)
        ]
        lines: list[str] = []

        def settle() -> None:
            for side in sides:
                lines.extend(side.lines)
                side.lines.clear()

        for stage in range(self.loop.stages):
            for s in self._of(stage, inner=False):
                for side in sides:
                    side.store(s.buffer, s.index, s.value)
            statements = self._of(stage, inner=True)
            if not statements:
                continue
            folds = [s for s in statements if s.fold is not None]
            nest = self._strip_loop(sides, statements, folds)
            settle()
            lines += nest
            for s in folds:
                for c, side in enumerate(sides):
                    self.folds.finish(side, s, f"x{c}")
        settle()
        return lines

    def _strip_loop(
        self, sides: list[Scope], statements: list[Statement], folds: list[Statement]
    ) -> list[str]:
        """The folded loops of one stage over all vectors of a strip."""
        body: list[str] = []
        flushes: list[str] = []
        for c, side in enumerate(sides):
            for s in folds:
                self.folds.declare(side, s, 1, f"x{c}")
                flushes.append(self.folds.flush(s, 1, f"x{c}"))
            inner = Scope(
                self.frame, frozenset(self.layout.inner), side.count, True, side, shift=side.shift
            )
            for s in statements:
                if s.fold is None:
                    inner.store(s.buffer, s.index, s.value)
                else:
                    self.folds.accumulate(inner, s, 0, partial_lanes=False, tag=f"x{c}")
            body += inner.lines
        ranges = self._ranges(self.layout.inner, blocked=False)
        last = ranges.pop()
        if not folds:
            return _wrap([*ranges, last], body)
        inside = _wrap([_Range(last.name, "k", "end")], body)
        return _wrap(
            ranges,
            [
                f"for (long k = {last.start}; k < {last.stop}; k += {_FLUSH}L) {{",
                f"  const long end = minl(k + {_FLUSH}L, {last.stop});",
                *_indent(inside),
                *_indent(flushes),
                "}",
            ],
        )


def _indent(lines: list[str]) -> list[str]:
    return ["  " + line for line in lines]


def _while(name: str, step: int, stop: str, body: list[str]) -> list[str]:
    return [f"for (; {name} + {step}L <= {stop}; {name} += {step}L) {{", *_indent(body), "}"]


def _wrap(ranges: list[_Range], body: list[str]) -> list[str]:
    """Lines inside loops, the first outermost."""
    lines = ["{", *_indent(body), "}"]
    for r in reversed(ranges):
        lines = [
            f"for (long {r.name} = {r.start}; {r.name} < {r.stop}; {r.name}++)",
            *_indent(lines),
        ]
    return lines


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
