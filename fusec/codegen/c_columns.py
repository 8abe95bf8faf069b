"""Kernels with lanes along a kept axis beside the folds: each lane has its own result.

*Strips*: a strip of a few vectors is walked down all folded points, its results in registers.
*Panels*: all columns of one row after the other, their results in an array that stays in the first
cache; memory is read in the order in which it lies. Panels suit one stage of folds over wide rows.
"""

from __future__ import annotations

from typing import Final

from fusec.codegen import c_arrays
from fusec.codegen.c_body import Scope
from fusec.codegen.c_layout import extent_of
from fusec.codegen.c_lines import Range, indent, while_loop, wrap
from fusec.codegen.c_nest import Nest
from fusec.ir import loop as lp
from fusec.ir.expr import Sym
from fusec.ir.kernel import Statement

_FLUSH: Final = 64  # additions to a partial result before it goes into the total


def strips(nest: Nest) -> list[str]:
    """Wide strips of several vectors, then narrow ones for the rest of the columns."""
    layout = nest.layout
    axis = _axis(nest)
    lanes, extent = layout.lanes, nest.extent(axis)
    wide = layout.copies * lanes
    lines = [
        f"const long wide = {extent} / {wide}L;",
        f"const long strips = wide + ({extent} - wide * {wide}L + {lanes - 1}L) / {lanes}L;",
        f"const long total = {nest.count(layout.outer)} * strips;",
        *nest.threads(),
        "for (long o = 0; o < total; o++) {",
    ]
    body = ["const long strip = o % strips;", *nest.decode("(o / strips)", layout.outer)]
    body.append("if (strip < wide) {")
    body.append(f"  const long {axis.name} = strip * {wide}L;")
    body += indent(_strip(nest, layout.copies, str(lanes)))
    static = extent_of(axis)
    if static is None or static % wide:
        body.append("} else {")
        body.append(f"  const long {axis.name} = wide * {wide}L + (strip - wide) * {lanes}L;")
        body.append(f"  const int n = (int)minl({lanes}L, {extent} - {axis.name});")
        body += indent(_strip(nest, 1, "n"))
    body.append("}")
    return [*lines, *indent(body), "}"]


def _axis(nest: Nest) -> Sym:
    assert nest.layout.axis is not None
    return nest.layout.axis


def _strip(nest: Nest, copies: int, count: str) -> list[str]:
    """All stages for one strip of ``copies`` vectors side by side."""
    layout = nest.layout
    varying = frozenset((*layout.outer, _axis(nest)))
    sides = [Scope(nest.frame, varying, count, True, shift=c * layout.lanes) for c in range(copies)]
    lines: list[str] = []

    def settle() -> None:
        for side in sides:
            lines.extend(side.lines)
            side.lines.clear()

    for stage in range(nest.loop.stages):
        for s in nest.statements(stage, inner=False):
            for side in sides:
                side.store(s.buffer, s.index, s.value)
        statements = nest.statements(stage, inner=True)
        if not statements:
            continue
        folds = [s for s in statements if s.fold is not None and s.fold not in lp.SCANS]
        inside = _strip_loop(nest, sides, statements, folds)
        settle()
        lines += inside
        for s in folds:
            for c, side in enumerate(sides):
                nest.folds.finish(side, s, f"x{c}")
    settle()
    return lines


def _strip_loop(
    nest: Nest, sides: list[Scope], statements: list[Statement], folds: list[Statement]
) -> list[str]:
    """The folded loops of one stage over all vectors of a strip."""
    body: list[str] = []
    flushes: list[str] = []
    for c, side in enumerate(sides):
        for s in statements:
            if s.fold is not None:
                nest.folds.declare(side, s, 1, f"x{c}")
        for s in folds:
            flushes.append(nest.folds.flush(s, 1, f"x{c}"))
        inner = Scope(
            nest.frame, frozenset(nest.layout.inner), side.count, True, side, shift=side.shift
        )
        for s in statements:
            if s.fold is None:
                inner.store(s.buffer, s.index, s.value)
            else:
                nest.folds.accumulate(inner, s, 0, partial_lanes=False, tag=f"x{c}")
        body += inner.lines
    ranges = nest.ranges(nest.layout.inner)
    last = ranges.pop()
    if not folds:
        return wrap([*ranges, last], body)
    inside = wrap([Range(last.name, "k", "end")], body)
    return wrap(
        ranges,
        [
            f"for (long k = {last.start}; k < {last.stop}; k += {_FLUSH}L) {{",
            f"  const long end = minl(k + {_FLUSH}L, {last.stop});",
            *indent(inside),
            *indent(flushes),
            "}",
        ],
    )


def panel(nest: Nest) -> list[str]:
    """Row after row over all columns, results in arrays; then what follows from the results."""
    layout = nest.layout
    axis = _axis(nest)
    lanes, width = layout.lanes, extent_of(axis)
    assert width is not None
    folds = [s for s in nest.statements(0, inner=True) if s.fold is not None]
    totals = {s.buffer: f"a{i}" for i, s in enumerate(folds)}
    partials = {s.buffer: f"p{i}" for i, s in enumerate(folds)}
    body = [*nest.decode("o", layout.outer)]
    for s in folds:
        dtype = nest.loop.results[s.buffer]
        body.append(f"{c_arrays.storage(dtype)} {totals[s.buffer]}[{width + lanes}];")
        body.append(f"{c_arrays.storage(dtype)} {partials[s.buffer]}[{width + lanes}];")
    body += _whole(
        nest, [_clear(nest, s, names[s.buffer]) for names in (totals, partials) for s in folds]
    )
    *around, last = nest.ranges(layout.inner)
    row = _columns(nest, nest.statements(0, inner=True), partials, layout.inner)
    add = [_add_up(nest, s, totals[s.buffer], partials[s.buffer]) for s in folds]
    clear = [_clear(nest, s, partials[s.buffer]) for s in folds]
    blocks = [
        f"for (long k = {last.start}; k < {last.stop}; k += {_FLUSH}L) {{",
        f"  const long end = minl(k + {_FLUSH}L, {last.stop});",
        *indent(wrap([Range(last.name, "k", "end")], row)),
        *indent(_whole(nest, [*add, *clear])),
        "}",
    ]
    body += wrap(around, blocks)
    arrays = totals
    for stage in range(nest.loop.stages):
        after = nest.statements(stage, inner=False)
        if after:
            body += _columns(nest, after, arrays, ())
    lines = [f"const long total = {nest.count(layout.outer)};"]
    if layout.outer:
        lines += nest.threads()
    return [*lines, "for (long o = 0; o < total; o++) {", *indent(body), "}"]


def _whole(nest: Nest, lines: list[str]) -> list[str]:
    """Lines once for every vector of the arrays."""
    axis = _axis(nest)
    width, lanes = extent_of(axis), nest.layout.lanes
    return wrap([Range(axis.name, "0", f"{width}L", f"{lanes}L")], lines)


def _clear(nest: Nest, s: Statement, array: str) -> str:
    dtype = nest.loop.results[s.buffer]
    return c_arrays.clear(nest.frame, s.fold or "", dtype, f"{array} + {_axis(nest).name}")


def _add_up(nest: Nest, s: Statement, total: str, partial: str) -> str:
    dtype, v = nest.loop.results[s.buffer], _axis(nest).name
    places = (f"{total} + {v}", f"{partial} + {v}")
    return c_arrays.add_up(nest.frame, s.fold or "", dtype, *places)


def _columns(
    nest: Nest, statements: list[Statement], arrays: dict[int, str], rows: tuple[Sym, ...]
) -> list[str]:
    """One walk over all columns: fold into the arrays, or use what they hold."""
    axis = _axis(nest)
    lanes, width = nest.layout.lanes, extent_of(axis)
    assert width is not None
    around = Scope(nest.frame, frozenset((*nest.layout.outer, *rows)), str(lanes), True)
    loops: list[str] = []
    for count in (str(lanes), "n"):
        scope = Scope(nest.frame, frozenset((axis,)), count, True, around)
        for s in statements:
            if s.fold is None:
                _known_results(nest, scope, s, arrays)
                scope.store(s.buffer, s.index, s.value)
            else:
                place = f"{arrays[s.buffer]} + {axis.name}"
                dtype = nest.loop.results[s.buffer]
                c_arrays.fold_into(scope, s.fold or "", dtype, s.value, place)
        if count == "n":
            loops.append(f"if ({axis.name} < {width}L) {{ const int n = {width % lanes};")
            loops += [*indent(scope.lines), "}"]
        else:
            loops += while_loop(axis.name, lanes, f"{width}L", scope.lines)
        if width % lanes == 0:
            break
    return ["{", *indent([*around.lines, f"long {axis.name} = 0;", *loops]), "}"]


def _known_results(nest: Nest, scope: Scope, s: Statement, arrays: dict[int, str]) -> None:
    for node in lp.walk((s.value,)):
        if isinstance(node, lp.Reduced) and node not in scope.known:
            place = f"{arrays[node.buffer]} + {_axis(nest).name}"
            scope.known[node] = c_arrays.take(scope, nest.loop.results[node.buffer], place)
