"""A reduction over axes of size one is the value itself.

Before: ``b1[i] = sum[r < 1] b0[i, r]``. After: ``b1[i] = b0[i, 0]``. No later pass meets a
reduction that folds nothing: such a kernel would have no loop to fold over.
"""

from __future__ import annotations

from dataclasses import replace

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr
from fusec.ir.loop import Compute, LoopProgram, Step


def drop_single_folds(program: LoopProgram) -> LoopProgram:
    """See the module docstring. The result computes the same outputs."""
    return replace(program, steps=tuple(_step(program, s) for s in program.steps))


def _step(program: LoopProgram, step: Step) -> Step:
    if not isinstance(step, Compute) or step.reduction is None:
        return step
    if any(axis.upper is not ex.ONE for axis in step.reduction.axes):
        return step
    dtype = program.buffers[step.output].dtype
    if step.reduction.op in ("argmax", "argmin"):
        return replace(step, value=lp.const(0, dtype), reduction=None)
    origin: dict[Expr, Expr] = dict.fromkeys(step.reduction.axes, ex.ZERO)
    value = lp.cast(lp.reindex(step.value, origin), dtype)
    return replace(step, value=value, reduction=None)
