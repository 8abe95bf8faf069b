"""Loads that lie along the tiled axis of a kernel, while its lanes run along another.

A square of lanes × lanes elements is loaded as it lies, a vector a point of the lane axis, and
transposed in registers by swapping ever larger blocks (Eklundh, 1972); its columns are then at hand
for one point of the tiled axis after the other. Without squares each vector would be put together
from single elements of as many cache lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusec.codegen.c_body import Scope, vector_type
from fusec.codegen.c_layout import extent_of
from fusec.codegen.c_lines import Range, indent, while_loop, wrap
from fusec.codegen.c_nest import Nest
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Sym
from fusec.ir.kernel import linear
from fusec.ir.loop import Load, Scalar


def turned_loads(nest: Nest) -> tuple[Load, ...]:
    """The loads that squares are worth: contiguous along the tiled axis and not along the lanes."""
    axis, tiled = nest.layout.axis, nest.layout.tiled
    if axis is None or tiled is None or nest.frame.lanes == 1:
        return ()
    found: dict[Load, None] = {}
    for s in nest.loop.statements:
        for load in lp.loads(s.value):
            offset = linear(load.index, nest.loop.buffers[load.buffer].stride)
            jumps = ex.step(offset, axis) not in (0, 1) and ex.step(offset, tiled) == 1
            if jumps and not load.indirect and load.guard is None and load.dtype != "bool":
                found[load] = None
    return tuple(found)


def squares(
    nest: Nest,
    scope: Scope,
    loads: tuple[Load, ...],
    ranges: tuple[Range, Range],
    body: Callable[[Mapping[Scalar, str]], list[str]],
    rest: Callable[[Range], list[str]],
) -> list[str]:
    """The two loops of a tile, square by square.

    ranges: of the tiled axis and of the lane axis. body: the statements for one vector, given the
    names of what is loaded already; rest: the loop over what is left of a row, which ends in
    incomplete squares.
    """
    axis, tiled = nest.layout.axis, nest.layout.tiled
    assert axis is not None
    assert tiled is not None
    rows, over = ranges
    lanes, v, t = nest.frame.lanes, over.name, rows.name
    names = {load: f"m{i}" for i, load in enumerate(loads)}
    inside: list[str] = [f"const long {v} = {v}_done;"]
    for load, name in names.items():
        inside.append(f"{vector_type(load.dtype)} {name}[{lanes}];")
        inside.append(f"{{ const long {t} = {t}_row;")
        inside += indent(_loaded(nest, scope, load, name))
        inside += ["}", f"{nest.frame.call(f'transpose_{load.dtype}', name)};"]
    held: dict[Scalar, str] = {load: f"{name}[{t} - {t}_row]" for load, name in names.items()}
    inside += wrap([Range(t, f"{t}_row", f"{t}_row + {lanes}L")], body(held))
    lines = [
        f"const long {t}_end = minl({t}_row + {lanes}L, {rows.stop});",
        f"long {v}_done = {over.start};",
        f"if ({t}_row + {lanes}L <= {rows.stop}) {{",
        *indent(while_loop(f"{v}_done", lanes, over.stop, inside)),
        "}",
    ]
    if not all(_whole(a, lanes) for a in (axis, tiled)):
        left = rest(Range(v, f"{v}_done", over.stop))
        lines += wrap([Range(t, f"{t}_row", f"{t}_end")], left)
    return wrap([Range(f"{t}_row", rows.start, rows.stop, f"{lanes}L")], lines)


def _whole(axis: Sym, lanes: int) -> bool:
    extent = extent_of(axis)
    return extent is not None and extent % lanes == 0


def _loaded(nest: Nest, scope: Scope, load: Load, name: str) -> list[str]:
    argument = nest.loop.buffers[load.buffer]
    offset, lanes = linear(load.index, argument.stride), nest.frame.lanes
    pointer = nest.frame.names[load.buffer]
    return [
        f"{name}[{lane}] = "
        + nest.frame.call(
            f"ld_{argument.dtype}", f"{pointer} + {scope.c(offset, f'{lane}L')}", str(lanes)
        )
        + ";"
        for lane in range(lanes)
    ]
