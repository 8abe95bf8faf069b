"""The verifier of loop programs."""

from __future__ import annotations

from fusec.errors import VerifyError
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr, Sym, symbols
from fusec.ir.loop import (
    SCATTERS,
    WITHIN,
    BufferView,
    Compute,
    Const,
    Index,
    Load,
    LoopProgram,
    Op,
    Reduction,
    Scalar,
    external_reads,
    loads,
    walk,
)

_SAME: frozenset[str] = frozenset("add sub mul div min max".split())
_COMPARE: frozenset[str] = frozenset("lt le gt ge eq ne".split())


def verify_program(program: LoopProgram) -> None:
    """Check shapes of indices, scopes of axes, types of operands, order of writes and reads.

    Raises VerifyError that names the step.
    """
    written: set[int] = {i for i, b in enumerate(program.buffers) if b.kind == "input"}
    sizes = {s.name for s in program.symbols}
    for number, step in enumerate(program.steps):
        if isinstance(step, Compute):
            where = f"step {number} (b{step.output})"
            axes = set(step.axes) | set(step.reduction.axes if step.reduction else ())
            if step.reduction is not None:
                _verify_fold(step.axes, step.reduction, where)
            if step.scatters:
                _verify_scatter(program, step, where)
            elif len(step.axes) != len(program.buffers[step.output].shape):
                raise VerifyError(f"{where}: {len(step.axes)} axes for a buffer of another rank")
            _verify_scalar(step.value, axes, sizes, program, written, where)
            outputs: tuple[int | None, ...] = (step.output,)
        else:
            where = f"step {number} ({step.target})"
            for view in external_reads(step):
                if view.buffer not in written:
                    raise VerifyError(f"{where}: reads b{view.buffer} before it is written")
            outputs = step.outputs
        for output in outputs:
            if output is None:
                continue
            if output in written:
                raise VerifyError(f"{where}: writes b{output} a second time")
            written.add(output)
    for output_view in program.outputs:
        if isinstance(output_view, BufferView) and output_view.buffer not in written:
            raise VerifyError(f"the program returns b{output_view.buffer}, which nothing writes")


def _verify_fold(axes: tuple[Sym, ...], fold: Reduction, where: str) -> None:
    if fold.scans:
        if len(fold.axes) != 1 or fold.axes[0] not in axes or fold.order != axes:
            raise VerifyError(f"{where}: scans something else than one axis of its output")
    elif not set(axes).isdisjoint(fold.axes) or set(fold.order) != {*axes, *fold.axes}:
        raise VerifyError(f"{where}: folds axes that its output has, or loses some")


def _verify_scatter(program: LoopProgram, step: Compute, where: str) -> None:
    assert isinstance(step.value, Op)
    place, value = step.value.args
    output = program.buffers[step.output]
    if output.kind != "alias" or step.reduction is not None:
        raise VerifyError(f"{where}: scatters into memory of its own, or folds")
    if not isinstance(place, Load) or place.buffer != output.base or place.guard is not None:
        raise VerifyError(f"{where}: {place} is no place in b{output.base}")
    if value.dtype != place.dtype:
        raise VerifyError(f"{where}: scatters {value.dtype} into {place.dtype}")
    for part in (value, *(v for _, v in place.indirect)):
        if any(load.buffer == output.base for load in loads(part)):
            raise VerifyError(f"{where}: reads b{output.base}, which it changes")


def _verify_scalar(
    root: Scalar,
    axes: set[Sym],
    sizes: set[str],
    program: LoopProgram,
    written: set[int],
    where: str,
) -> None:
    for node in walk((root,)):
        if isinstance(node, Load):
            if node.buffer not in written:
                raise VerifyError(f"{where}: loads b{node.buffer} before it is written")
            buffer = program.buffers[node.buffer]
            if len(node.index) != len(buffer.shape):
                raise VerifyError(f"{where}: {node} has a wrong number of indices")
            if node.dtype != DTYPES[buffer.dtype].compute:
                raise VerifyError(f"{where}: {node} loads {buffer.dtype} as {node.dtype}")
            scope = axes | {s for s, _ in node.indirect} if node.indirect else axes
            for e in (*node.index, *((node.guard,) if node.guard is not None else ())):
                _verify_scope(e, scope, sizes, where, node)
        elif isinstance(node, Index):
            _verify_scope(node.expr, axes, sizes, where, node)
        elif isinstance(node, Op):
            if node.name in SCATTERS and node is not root:
                raise VerifyError(f"{where}: scatters inside a value")
            _verify_op(node, where)
        elif not isinstance(node, Const):
            raise VerifyError(f"{where}: {node} has no place outside a kernel")


def _verify_scope(e: Expr, axes: set[Sym], sizes: set[str], where: str, node: Scalar) -> None:
    for symbol in symbols(e):
        if symbol not in axes and symbol.name not in sizes:
            raise VerifyError(f"{where}: {node}: {symbol.name} is not in scope")


def _verify_op(node: Op, where: str) -> None:
    types = [a.dtype for a in node.args]
    if node.name in _SAME and types != [node.dtype] * 2:
        raise VerifyError(f"{where}: {node.name} of {types} gives {node.dtype}")
    if node.name in _COMPARE and (node.dtype != "bool" or types[0] != types[1]):
        raise VerifyError(f"{where}: {node.name} of {types} gives {node.dtype}")
    if node.name == "philox_uniform" and (node.dtype != "f32" or types != ["i64", "i64"]):
        raise VerifyError(f"{where}: philox_uniform of {types} gives {node.dtype}")
    if node.name == WITHIN and (node.dtype, types[:2], types[2:]) not in (
        ("i64", ["i64", "i64"], []),
        ("i64", ["i64", "i64"], ["bool"]),
    ):
        raise VerifyError(f"{where}: within of {types} gives {node.dtype}")
    if node.name == "where" and types != ["bool", node.dtype, node.dtype]:
        raise VerifyError(f"{where}: where of {types} gives {node.dtype}")
