"""AOTAutograd over one Dynamo graph: forward and backward graphs, compiled at the same time.

`trace` hands each graph out as soon as it exists; the executables are waited for only when
AOTAutograd is done, so that whoever compiles has both under way at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from fusec.capture import decompositions, seams_aot
from fusec.capture.export import Exported, export
from fusec.capture.partition import partition
from fusec.capture.rewrite import rewrite
from fusec.faults import contained
from fusec.ir.graph import Graph
from fusec.trace import Recorder

Executable = Callable[[list[Any]], list[Any]]
"""Takes the inputs of a graph as a list, which it clears; returns the list of outputs."""


class Pending(Protocol):
    """An executable that may still be under way."""

    def result(self) -> Executable:
        """Wait for it. Raises FusecError when it could not be made."""
        ...


CompileGraph = Callable[[Graph, str], Pending]
"""Starts to compile a graph in its role, forward, backward or inference; returns at once."""


@dataclass(frozen=True)
class Part:
    """One graph that AOTAutograd made. constants: how many inputs the client appends; traces:
    where its nodes come from, see `Exported`."""

    role: str
    graph: Graph
    constants: int
    traces: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class Traced:
    """fn: the callable, taking the Dynamo graph's inputs; parts: its graphs, the forward first.

    forward: what a recipe is made of, or why there can be none. fill: waits for the executables;
    fn may be called from then on.
    """

    fn: Callable[..., Any]
    parts: tuple[Part, ...]
    forward: seams_aot.SimpleForward | str
    fill: Callable[[], None]


class _Slot:
    """The boxed callable that AOTAutograd keeps; its executable is put in when it is ready."""

    _boxed_call = True

    def __init__(self, pending: Pending, constants: tuple[torch.Tensor, ...]) -> None:
        self.pending = pending
        self.constants = constants
        self.run: Executable | None = None
        self.first = True

    def fill(self) -> None:
        self.run = self.pending.result()

    def __call__(self, inputs: list[Any]) -> list[Any]:
        assert self.run is not None, "a graph is called before its executable is there"
        if self.constants:
            inputs.extend(self.constants)
        if self.first:
            self.first = False
            with seams_aot.without_output_check():
                return self.run(inputs)
        return self.run(inputs)


def trace(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    compile_graph: CompileGraph,
    *,
    recorder: Recorder,
) -> Traced:
    """Run AOTAutograd and start to compile what it makes; `Traced.fill` waits for it.

    Raises CaptureUnsupported for a graph that has no form of ours, or what `compile_graph`
    raises; `fill` raises what its pending executables raise.
    """
    parts: dict[str, Part] = {}
    slots: list[_Slot] = []
    forward: list[seams_aot.SimpleForward | str] = []

    def compiler(role: str) -> Callable[[torch.fx.GraphModule, Sequence[Any]], _Slot]:
        def compile_one(graph_module: torch.fx.GraphModule, _: Sequence[Any]) -> _Slot:
            with contained(f"{role} graph"):
                exported: Exported = export(graph_module)
            if role == "backward":
                seams_aot.no_donated_buffers()
            else:
                count = len(exported.graph.outputs)
                forward.append(seams_aot.simple_forward(count, training=role == "forward"))
            parts[role] = Part(role, exported.graph, len(exported.constants), exported.traces)
            slot = _Slot(compile_graph(exported.graph, role), exported.constants)
            slots.append(slot)
            return slot

        return compile_one

    with recorder.span("trace"):
        fn = seams_aot.aot_module(
            rewrite(gm),
            example_inputs,
            forward=compiler("forward"),
            backward=compiler("backward"),
            inference=compiler("inference"),
            partition=partition,
            decompositions=decompositions.table(),
        )

    def fill() -> None:
        for slot in slots:
            slot.fill()

    ordered = tuple(parts[r] for r in ("forward", "inference", "backward") if r in parts)
    simple = forward[-1] if forward else "AOTAutograd made no forward graph"
    return Traced(fn, ordered, simple, fill)
