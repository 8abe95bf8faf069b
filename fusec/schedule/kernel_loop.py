"""Group → KernelLoop: one loop nest out of the computations that were grouped.

Before: members that read each other's buffers. After: statements whose values are written out, so
that what stays inside the kernel never touches memory; only what others read is stored.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from fusec.errors import ScheduleError
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr, Sym
from fusec.ir.kernel import Argument, KernelLoop, Statement
from fusec.ir.loop import BufferView, Compute, Load, LoopProgram, Scalar, external_reads
from fusec.schedule.groups import Group, Schedule, computes
from fusec.schedule.space import Space, folds_across, place


def read_outside(schedule: Schedule) -> dict[int, frozenset[int]]:
    """For each group (by position) the buffers it makes that something else reads."""
    program = schedule.program
    maker: dict[int, int] = {}
    for position, group in enumerate(schedule.groups):
        for number in group.members:
            step = program.steps[number]
            for output in (step.output,) if isinstance(step, Compute) else step.outputs:
                if output is not None:
                    maker[output] = position
    needed: dict[int, set[int]] = {position: set() for position in range(len(schedule.groups))}
    for position, group in enumerate(schedule.groups):
        for number in group.members:
            step = program.steps[number]
            reads = (
                [load.buffer for load in lp.loads(step.value)]
                if isinstance(step, Compute)
                else [view.buffer for view in external_reads(step)]
            )
            for buffer in reads:
                if buffer in maker and maker[buffer] != position:
                    needed[maker[buffer]].add(buffer)
    for returned in program.outputs:
        if isinstance(returned, BufferView) and returned.buffer in maker:
            needed[maker[returned.buffer]].add(returned.buffer)
    for buffer, position in maker.items():
        if program.buffers[buffer].kind == "alias":
            needed[position].add(buffer)
    return {position: frozenset(found) for position, found in needed.items()}


def build_kernel_loop(program: LoopProgram, group: Group, needed: Collection[int]) -> KernelLoop:
    """The loop nest of a group that stores the buffers ``needed`` outside it."""
    if group.space is None:
        raise ScheduleError("an external call has no loops")
    axes = group.space.axes()
    folded = frozenset(a for a, f in zip(axes, group.space.folded, strict=True) if f)
    axes, carried, joined = _join_carried(group.space, axes)
    inlined: dict[int, Scalar] = {}
    stage_of: dict[int, int] = {}
    results: dict[int, str] = {}
    statements: list[Statement] = []
    for number, step in zip(group.members, computes(program, group), strict=True):
        outer = number in group.outer
        mapping = place(step, group.space, outer=outer)
        if joined:
            mapping = {a: ex.substitute(e, joined) for a, e in mapping.items()}
        value = _written_out(lp.reindex(step.value, mapping), inlined)
        stage = _stage(value, stage_of)
        buffer = program.buffers[step.output]
        at: tuple[Expr, ...] = tuple(mapping[a] for a in step.axes)
        if step.reduction is not None:
            compute = DTYPES[buffer.dtype].compute
            across = folds_across(step, group.space)
            statements.append(
                Statement(step.output, at, value, step.reduction.op, True, stage, across)
            )
            scans = step.reduction.scans
            stage_of[step.output] = stage + (not scans)
            results[step.output] = compute
            result = lp.reduced(step.output, buffer.dtype)
            inlined[step.output] = result
            if step.output in needed:
                inner, ready = across or scans, stage_of[step.output]
                statements.append(Statement(step.output, at, result, None, inner, ready, across))
        elif step.scatters:
            statements.append(_scatter(step, value))
        else:
            inlined[step.output] = value
            if step.output in needed:
                inner = not outer
                statements.append(Statement(step.output, at, value, None, inner, stage))
    # A kernel with no folded axes has no outer level: every statement is at its points.
    if not folded:
        statements = [replace(s, inner=True) for s in statements]
    buffers: dict[int, Argument] = {}
    for statement in statements:
        for node in lp.walk(statement.scalars):
            if isinstance(node, Load):
                _argument(program, node.buffer, buffers)
    for statement in statements:
        if statement.fold is None:
            _argument(program, statement.buffer, buffers)
    return KernelLoop(axes, folded, tuple(statements), buffers, results, carried)


def _scatter(step: Compute, value: Scalar) -> Statement:
    assert isinstance(value, lp.Op)
    place, put = value.args
    assert isinstance(place, Load)
    mode = lp.SCATTERS[value.name]
    return Statement(step.output, place.index, put, None, True, 0, False, mode, place.indirect)


def _join_carried(
    space: Space, axes: tuple[Sym, ...]
) -> tuple[tuple[Sym, ...], Sym | None, dict[Expr, Expr]]:
    """The axes with those that are carried as one, that one, and the old in terms of it."""
    if not space.mixed:
        return axes, None, {}
    first = space.carried.index(True)
    last = first + sum(space.carried)
    parts = axes[first:last]
    if len(parts) == 1:
        return axes, parts[0], {}
    joined = ex.axis("".join(a.name for a in parts), ex.product(space.sizes[first:last]))
    assert isinstance(joined, Sym)
    mapping: dict[Expr, Expr] = {}
    rest: Expr = joined
    for axis in reversed(parts[1:]):
        assert axis.upper is not None
        mapping[axis] = ex.mod(rest, axis.upper)
        rest = ex.floordiv(rest, axis.upper)
    mapping[parts[0]] = rest
    return (*axes[:first], joined, *axes[last:]), joined, mapping


def _argument(program: LoopProgram, number: int, buffers: dict[int, Argument]) -> None:
    if number in buffers:
        return
    found = program.buffers[number]
    alias = found.base if found.kind == "alias" else -1
    buffers[number] = Argument(found.dtype, found.stride, alias)


def _written_out(value: Scalar, inlined: dict[int, Scalar]) -> Scalar:
    def leaf(node: Scalar) -> Scalar | None:
        return inlined.get(node.buffer) if isinstance(node, Load) else None

    return lp.rewrite(value, leaf, {}) if inlined else value


def _stage(value: Scalar, stage_of: dict[int, int]) -> int:
    return max(
        (stage_of[n.buffer] for n in lp.walk((value,)) if isinstance(n, lp.Reduced)), default=0
    )
