"""A model's graphs as fusec captures them, without compiling: what keys and plans are made of."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fusec.artifact.fingerprint import Fingerprint, toolchain
from fusec.capture.aot import trace
from fusec.capture.eager import EagerProgram
from fusec.capture.front import front_key
from fusec.codegen.isa import host_target
from fusec.demo.models import Example
from fusec.ir.graph import Graph
from fusec.options import Options
from fusec.trace import Recorder


@dataclass
class Captured:
    """Of all graphs in order of capture. graphs: by role, forward before its backward.

    front: a key, or the reason why there is none. front_s: seconds each key took. trace_s: of
    AOTAutograd, all graphs together.
    """

    graphs: list[tuple[str, Graph]] = field(default_factory=list)
    front: list[Fingerprint | str] = field(default_factory=list)
    front_s: list[float] = field(default_factory=list)
    trace_s: float = 0.0


@dataclass(frozen=True)
class _Twin:
    """A captured graph that runs eager."""

    program: EagerProgram

    def result(self) -> EagerProgram:
        return self.program


def capture(example: Example, *, front_repeats: int = 1) -> Captured:
    """Run one training step of the model, its graphs run operator by operator, and keep them.

    front_repeats: how often each front key is computed and timed.
    """
    found = Captured()
    options, target, recorder = Options(), host_target(), Recorder()

    def start(graph: Graph, role: str) -> Any:
        found.graphs.append((role, graph))
        return _Twin(EagerProgram(graph))

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        for number in range(front_repeats):
            begin = time.perf_counter()
            key = front_key(gm, inputs, target, options, toolchain())
            found.front_s.append(time.perf_counter() - begin)
            if number == 0:
                found.front.append(key if isinstance(key, Fingerprint) else key.reason)
        traced = trace(gm, inputs, start, recorder=recorder)
        traced.fill()
        return traced.fn

    torch._dynamo.reset()
    loss, _ = torch.compile(example.model, backend=backend)(*example.inputs)
    loss.backward()
    found.trace_s = recorder.stages["trace"]
    return found
