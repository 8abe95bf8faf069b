"""Which programs can be recorded as a CUDA graph: those that never wait for the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fusec.ir.graph import Attr
from fusec.ir.loop import BufferView, ExternArg
from fusec.ir.program import Call, Program
from fusec.runtime.operators import operator

_INDEXING: Final = ("aten.index.Tensor", "aten.index_put.default")
_MASKS: Final = ("bool", "u8")


def refusal(program: Program) -> str | None:
    """Why a program cannot be recorded; None when nothing speaks against it."""
    if not program.steps:
        return "there is nothing to record"
    for step in program.steps:
        if isinstance(step, Call):
            reason = _refuses(program, step)
            if reason is not None:
                return f"{step.target} {reason}"
    return None


def _refuses(program: Program, step: Call) -> str | None:
    parts = list(_flat((*step.args, *(value for _, value in step.kwargs))))
    if any(isinstance(a, Attr) and a.kind == "device" and a.name != "cuda" for a in parts):
        return "moves data between the GPU and the CPU"
    if step.target.startswith(("_c10d_functional", "c10d")):
        return "is a collective"
    if step.target in _INDEXING:
        masks = any(
            isinstance(a, BufferView) and program.slots[a.buffer].dtype in _MASKS
            for a in _flat(step.args[1:2])
        )
        return "takes a mask as an index: it waits for its count" if masks else None
    tags = {str(tag).rpartition(".")[2] for tag in getattr(operator(step.target), "tags", ())}
    if "cudagraph_unsafe" in tags:
        return "declares itself unsafe to record"
    if tags & {"data_dependent_output", "dynamic_output_shape"}:
        return "waits for the GPU: its result decides a size or a number"
    return None


def _flat(items: tuple[ExternArg, ...]) -> Iterator[ExternArg]:
    for item in items:
        if isinstance(item, tuple):
            yield from _flat(item)
        else:
            yield item
