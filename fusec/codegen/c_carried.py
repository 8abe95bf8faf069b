"""Folds across the rows of a C kernel: results of all columns, carried from row to row.

A fold has an array ``c<k>`` over the columns, and ``t<k>`` where there are so many rows that what
they add up to goes into a total every few dozen of them.
"""

from __future__ import annotations

from typing import Final

from fusec.codegen import c_arrays
from fusec.codegen.c_body import Scope
from fusec.codegen.c_layout import extent_of, upper
from fusec.codegen.c_lines import Range, indent, while_loop, wrap
from fusec.codegen.c_nest import Nest
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr
from fusec.ir.kernel import Statement

_FLUSH: Final = 64  # rows added up before they go into the total


class Carried:
    """Writes what a kernel does around its rows: arrays before, totals between, stores after."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        across = [s for s in nest.loop.statements if s.across]
        self.folds = [s for s in across if s.fold is not None]
        self.stores = [s for s in across if s.fold is None]
        self.numbers = {s.buffer: k for k, s in enumerate(self.folds)}
        axis = nest.loop.carried
        assert axis is not None
        self.axis = axis
        rows = extent_of(axis)
        self.flushed = rows is None or rows > _FLUSH
        width = ex.as_int(ex.product(upper(a) for a in nest.loop.inner))
        assert width is not None
        self.width = width

    def around(self, rows: list[str]) -> list[str]:
        """The whole body of one program, given that of one row."""
        nest, axis, extent = self.nest, self.axis, self.nest.extent(self.axis)
        lines: list[str] = []
        for s in self.folds:
            kind = c_arrays.storage(nest.loop.results[s.buffer])
            for name in (self._partial(s), self._total(s))[: 1 + self.flushed]:
                lines.append(f"{kind} {name}[{self.width + nest.layout.lanes}];")
        pairs = [(s, self._partial(s)) for s in self.folds]
        pairs += [(s, self._total(s)) for s in self.folds] if self.flushed else []
        lines += self._columns([self._clear(s, n) for s, n in pairs])
        if not self.flushed:
            lines += wrap([Range(axis.name, "0", extent)], rows)
        else:
            start, end = f"from_{axis.name}", f"to_{axis.name}"
            lines += [
                f"for (long {start} = 0; {start} < {extent}; {start} += {_FLUSH}L) {{",
                f"  const long {end} = minl({start} + {_FLUSH}L, {extent});",
                *indent(wrap([Range(axis.name, start, end)], rows)),
                *indent(self._columns([self._flush(s) for s in self.folds])),
                "}",
            ]
        return lines + self._store()

    def fold(self, scope: Scope, s: Statement, place: str) -> None:
        """Fold one vector of a row in; ``place``: its position in the row."""
        dtype = self.nest.loop.results[s.buffer]
        c_arrays.fold_into(scope, s.fold or "", dtype, s.value, f"{self._partial(s)} + {place}")

    def _partial(self, s: Statement) -> str:
        return f"c{self.numbers[s.buffer]}"

    def _total(self, s: Statement) -> str:
        return f"t{self.numbers[s.buffer]}_all" if self.flushed else self._partial(s)

    def _clear(self, s: Statement, array: str) -> str:
        dtype = self.nest.loop.results[s.buffer]
        return c_arrays.clear(self.nest.frame, s.fold or "", dtype, f"{array} + w")

    def _flush(self, s: Statement) -> str:
        dtype = self.nest.loop.results[s.buffer]
        add = c_arrays.add_up(
            self.nest.frame, s.fold or "", dtype, f"{self._total(s)} + w", f"{self._partial(s)} + w"
        )
        return f"{add} {self._clear(s, self._partial(s))}"

    def _columns(self, lines: list[str]) -> list[str]:
        """Lines once for every vector of the arrays."""
        return wrap([Range("w", "0", f"{self.width}L", f"{self.nest.layout.lanes}L")], lines)

    def _store(self) -> list[str]:
        """What follows from the results, at every column."""
        nest = self.nest
        *around, axis = nest.layout.inner
        extent, lanes = nest.extent(axis), nest.layout.lanes
        place: Expr = ex.ZERO
        for a in nest.layout.inner:
            place = place * upper(a) + a
        columns = Scope(nest.frame, frozenset(nest.layout.outer), str(lanes), True)
        loops: list[str] = []
        for count in (str(lanes), "n"):
            scope = Scope(nest.frame, frozenset(nest.layout.inner), count, True, columns)
            for s in self.stores:
                for node in lp.walk((s.value,)):
                    if isinstance(node, lp.Reduced) and node not in scope.known:
                        number = self.folds[self.numbers[node.buffer]]
                        dtype = nest.loop.results[node.buffer]
                        at = f"{self._total(number)} + {scope.c(place)}"
                        scope.known[node] = c_arrays.take(scope, dtype, at)
                scope.store(s.buffer, s.index, s.value)
            if count == "n":
                tail = (
                    f"if ({axis.name} < {extent}) {{ const int n = (int)({extent} - {axis.name});"
                )
                loops += [tail, *indent(scope.lines), "}"]
            else:
                loops += while_loop(axis.name, lanes, extent, scope.lines)
            static = extent_of(axis)
            if static is not None and static % lanes == 0:
                break
        body = [f"long {axis.name} = 0;", *loops]
        return ["{", *indent([*columns.lines, *wrap(nest.ranges(tuple(around)), body)]), "}"]
