"""Graphs for a GPU, lowered as for a GPU and then compiled for and run on this machine's CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from fusec.codegen.host import EmitOnce, build_host_plan
from fusec.codegen.isa import host_target
from fusec.codegen.kernel_source import KernelSource
from fusec.codegen.targets import code_generator
from fusec.ir import loop as lp
from fusec.ir.graph import Attr, Graph
from fusec.ir.loop import Compute, External, ExternArg, LoopProgram, Op, Scalar, Step
from fusec.ir.program_wire import program_from_bytes, program_to_bytes
from fusec.ir.text import parse_graph
from fusec.lower.lowering import lower
from fusec.parts import finish
from fusec.pipeline import Plan
from fusec.schedule.dissolve import dissolve
from fusec.schedule.search import schedule
from fusec.schedule.single import drop_single_folds
from fusec.schedule.split_folds import split_folds
from fusec.schedule.verify import verify_schedule
from tests.fuzz.check import KERNELS, load


class OnCpu:
    """A cuda graph as a callable over CPU tensors. ``calls``: its ATen calls in order."""

    def __init__(self, text: str | Graph, *, fusion: bool = True) -> None:
        graph = parse_graph(text) if isinstance(text, str) else text
        self.program = _moved(lower(graph))
        loops = split_folds(dissolve(drop_single_folds(self.program)))
        grouped = schedule(loops, fusion=fusion)
        verify_schedule(grouped)
        target = host_target()
        generator = code_generator(target)
        host = finish(build_host_plan(grouped, EmitOnce(generator.emit)))
        encoded = program_to_bytes(host.program)
        assert program_to_bytes(program_from_bytes(encoded)) == encoded
        plan = Plan(encoded, (*host.kernels, generator.runner), {})
        KERNELS.add(plan.kernels)
        self.sources = [k.source for k in host.kernels if isinstance(k, KernelSource)]
        self.calls = [s.target for s in grouped.program.steps if isinstance(s, External)]
        self.run = load(plan, target)

    def __call__(self, *inputs: torch.Tensor) -> list[Any]:
        return self.run(list(inputs))


def _moved(program: LoopProgram) -> LoopProgram:
    """Calls make tensors on the CPU; its code generator knows no assertions."""
    steps: list[Step] = []
    memo: dict[Scalar, Scalar] = {}
    for step in program.steps:
        if isinstance(step, Compute):
            step = replace(step, value=lp.rewrite(step.value, lambda n: _clamped(n, memo), memo))
        else:
            kwargs = tuple((k, _cpu(v)) for k, v in step.kwargs)
            step = replace(step, args=tuple(_cpu(a) for a in step.args), kwargs=kwargs)
        steps.append(step)
    return replace(program, steps=tuple(steps))


def _clamped(node: Scalar, memo: dict[Scalar, Scalar]) -> Scalar | None:
    """For a place that is asserted to be in range: the nearest one in it."""
    if not isinstance(node, Op) or node.name != lp.WITHIN:
        return None
    place, size = memo[node.args[0]], memo[node.args[1]]
    last = lp.op("sub", "i64", size, lp.const(1, "i64"))
    return lp.op("max", "i64", lp.op("min", "i64", place, last), lp.const(0, "i64"))


def _cpu(arg: ExternArg) -> ExternArg:
    return Attr("device", "cpu") if arg == Attr("device", "cuda") else arg


def cuda_graph(graph: Graph) -> Graph:
    """The graph with every tensor on a GPU."""
    nodes = [replace(n, type=_on_cuda(n.type)) for n in graph.nodes]
    return replace(graph, nodes=tuple(nodes))


def _on_cuda(kind: Any) -> Any:
    if isinstance(kind, tuple):
        return tuple(_on_cuda(k) for k in kind)
    return replace(kind, device="cuda") if hasattr(kind, "device") else kind


def captured(fn: Any, inputs: Sequence[torch.Tensor]) -> Graph:
    """The graph that capture makes of a function of CPU tensors."""
    from tests.lower.harness import Compiled

    compiled = Compiled(fn)
    compiled(*inputs)
    return compiled.graphs[0]
