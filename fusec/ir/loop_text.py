"""Loop programs as text, for reading and for tests."""

from __future__ import annotations

from fusec.ir import expr as ex
from fusec.ir.loop import BufferView, Compute, ExternArg, LoopProgram


def format_program(program: LoopProgram) -> str:
    """The program as text, for reading and for golden tests."""
    lines: list[str] = []
    for i, b in enumerate(program.buffers):
        where = f" = b{b.base}" if b.kind == "alias" else ""
        lines.append(f"b{i}{where}: {b.kind} {b.dtype}{list(b.shape)} stride {list(b.stride)}")
    for step in program.steps:
        if isinstance(step, Compute):
            axes = ", ".join(f"{a.name}<{a.upper}" for a in step.axes)
            fold = ""
            if step.reduction is not None:
                inner = ", ".join(f"{a.name}<{a.upper}" for a in step.reduction.axes)
                fold = f"{step.reduction.op}[{inner}] "
            lines.append(f"b{step.output}[{axes}] = {fold}{step.value}")
        else:
            outs = ", ".join("_" if o is None else f"b{o}" for o in step.outputs)
            args = ", ".join(_format_arg(a) for a in step.args)
            kwargs = "".join(f", {k}={_format_arg(v)}" for k, v in step.kwargs)
            lines.append(f"{outs} = {step.reason} {step.target}({args}{kwargs})")
    lines.append("return " + ", ".join(_format_arg(o) for o in program.outputs))  # type: ignore[arg-type]
    return "\n".join(lines) + "\n"


def _format_arg(arg: ExternArg) -> str:
    if isinstance(arg, BufferView):
        offset = "" if arg.offset is ex.ZERO else f"+{arg.offset}"
        return f"b{arg.buffer}{offset}{list(arg.shape)}:{list(arg.stride)}"
    if isinstance(arg, tuple):
        return "(" + ", ".join(_format_arg(a) for a in arg) + ")"
    return repr(arg)
