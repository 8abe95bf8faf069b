"""A backend that computes keys and runs eager: what a process would look up for a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusec.artifact.fingerprint import Fingerprint, graph_fingerprint, toolchain
from fusec.capture.aot import trace
from fusec.capture.eager import EagerProgram
from fusec.capture.front import Ineligible, front_key
from fusec.ir.graph import Graph
from fusec.ir.wire import graph_to_bytes
from fusec.options import Options, Target
from fusec.trace import Recorder

TARGET = Target("cpu", "x86-64-v3")


class Done:
    """An executable that is there already."""

    def __init__(self, graph: Graph) -> None:
        self.program = EagerProgram(graph)

    def result(self) -> EagerProgram:
        return self.program


class Keys:
    """Records the front key of each Dynamo graph; the graph keys too where `aot` is set."""

    def __init__(
        self,
        *,
        aot: bool = False,
        target: Target = TARGET,
        options: Options | None = None,
        toolchain_digest: str | None = None,
    ) -> None:
        self.aot = aot
        self.target = target
        self.options = options or Options()
        self.toolchain = toolchain_digest or toolchain()
        self.fronts: list[Fingerprint | Ineligible] = []
        self.graphs: list[Fingerprint] = []
        self.traced: list[Graph] = []  # beside `graphs`

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.fronts.append(front_key(gm, inputs, self.target, self.options, self.toolchain))
        if not self.aot:
            return gm.forward

        def compile_graph(graph: Graph, role: str) -> Done:
            data = graph_to_bytes(graph)
            self.traced.append(graph)
            self.graphs.append(graph_fingerprint(data, self.target, self.options, self.toolchain))
            return Done(graph)

        traced = trace(gm, inputs, compile_graph, recorder=Recorder())
        traced.fill()
        return traced.fn

    def of(self, fn: Callable[..., Any], *args: Any, dynamic: bool | None = None) -> Fingerprint:
        """The front key of a function's one graph. Fails when there is none."""
        torch._dynamo.reset()
        self.fronts.clear()
        torch.compile(fn, backend=self, dynamic=dynamic)(*args)
        (front,) = self.fronts
        assert isinstance(front, Fingerprint), front
        return front

    def reason(self, fn: Callable[..., Any], *args: Any) -> str:
        """Why a function's one graph has no front key. Fails when it has one."""
        torch._dynamo.reset()
        self.fronts.clear()
        torch.compile(fn, backend=self)(*args)
        (front,) = self.fronts
        assert isinstance(front, Ineligible), front
        return front.reason
