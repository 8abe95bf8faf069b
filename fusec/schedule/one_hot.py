"""A sum that picks one of its terms is that term.

Before: ``b1[i] = sum[r < n] where(r == t[i] and c[i], v[i], 0)``.
After:  ``b1[i] = where(0 <= t[i] < n and c[i], v[i], 0)``.

The gradient of a cross entropy sums such terms over thousands of classes: no pass over them is
needed. Exact: all other terms are zeros.
"""

from __future__ import annotations

from dataclasses import replace

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Sym
from fusec.ir.loop import Compute, Const, Index, Load, LoopProgram, Op, Scalar, Step


def pick_one_hot(program: LoopProgram) -> LoopProgram:
    """See the module docstring. The result computes the same outputs."""
    made = {step.output: step for step in program.steps if isinstance(step, Compute)}
    return replace(program, steps=tuple(_step(program, step, made) for step in program.steps))


def _step(program: LoopProgram, step: Step, made: dict[int, Compute]) -> Step:
    fold = step.reduction if isinstance(step, Compute) else None
    if not isinstance(step, Compute) or fold is None or fold.op != "sum" or len(fold.axes) != 1:
        return step
    (axis,) = fold.axes
    picked = _picked(_looked_up(program, step.value, made), axis)
    if picked is None:
        return step
    value = lp.cast(picked, program.buffers[step.output].dtype)
    return replace(step, value=value, reduction=None)


def _looked_up(program: LoopProgram, value: Scalar, made: dict[int, Compute]) -> Scalar:
    """What a load reads, where it was computed from memory that nobody overwrites."""
    if not isinstance(value, Load) or value.indirect or value.guard is not None:
        return value
    producer = made.get(value.buffer)
    if producer is None or producer.reduction is not None:
        return value
    overwritten = {b.base for b in program.buffers if b.kind == "alias"}
    if any(load.buffer in overwritten for load in lp.loads(producer.value)):
        return value
    return lp.reindex(producer.value, dict(zip(producer.axes, value.index, strict=True)))


def _picked(value: Scalar, axis: Sym) -> Scalar | None:
    """The sum over the axis; None where it is not of the form."""
    if not (isinstance(value, Op) and value.name == "where" and _is_zero(value.args[2])):
        return None
    condition, term, zero = value.args
    if _varies(term, axis):
        return None
    parts = list(_conjuncts(condition))
    place = next((p for part in parts if (p := _place(part, axis)) is not None), None)
    rest = [part for part in parts if _place(part, axis) is None]
    if place is None or len(rest) != len(parts) - 1 or any(_varies(part, axis) for part in rest):
        return None
    assert axis.upper is not None
    inside = lp.op(
        "and",
        "bool",
        lp.op("ge", "bool", place, lp.const(0, "i64")),
        lp.op("lt", "bool", place, lp.index(axis.upper)),
    )
    for part in rest:
        inside = lp.op("and", "bool", inside, part)
    return lp.op("where", value.dtype, inside, term, zero)


def _conjuncts(condition: Scalar) -> list[Scalar]:
    if isinstance(condition, Op) and condition.name == "and":
        return [part for arg in condition.args for part in _conjuncts(arg)]
    return [condition]


def _place(condition: Scalar, axis: Sym) -> Scalar | None:
    """For ``axis == t`` with t the same along the axis: t."""
    if not (isinstance(condition, Op) and condition.name == "eq"):
        return None
    for position, other in (condition.args, condition.args[::-1]):
        if isinstance(position, Index) and position.expr is axis and not _varies(other, axis):
            return other
    return None


def _is_zero(value: Scalar) -> bool:
    return isinstance(value, Const) and value.value == 0


def _varies(value: Scalar, axis: Sym) -> bool:
    for node in lp.walk((value,)):
        if isinstance(node, Index) and axis in ex.symbols(node.expr):
            return True
        if isinstance(node, Load):
            places = (*node.index, *((node.guard,) if node.guard is not None else ()))
            if any(axis in ex.symbols(e) for e in places):
                return True
    return False
