"""A function's graphs as fusec captures them; run by eager operators, nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusec.capture import seams
from fusec.capture.aot import Executable, Part, trace
from fusec.capture.eager import EagerProgram
from fusec.errors import CaptureUnsupported
from fusec.ir.graph import Graph
from fusec.trace import Recorder


@dataclass(frozen=True)
class _Eager:
    """A graph that its own operators run."""

    program: EagerProgram

    def result(self) -> Executable:
        return self.program


def capture(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    grad: bool = True,
    dynamic: bool | None = None,
) -> list[tuple[str, Part]]:
    """Call a function or module once and give its graphs, each forward before its backward.

    grad: whether gradients are recorded; dynamic: as torch.compile takes it. The names are
    ``forward``, ``backward`` or ``inference``, with the number of the graph where there are
    several. Raises CaptureUnsupported for what has no graph of ours.
    """
    found: list[tuple[Part, ...]] = []
    faults: list[CaptureUnsupported] = []

    def start(graph: Graph, role: str) -> _Eager:
        return _Eager(EagerProgram(graph))

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        try:
            traced = trace(gm, inputs, start, recorder=Recorder())
        except CaptureUnsupported as error:  # Dynamo would wrap it: raised below, as it is
            faults.append(error)
            return seams.disable(gm.forward)
        traced.fill()
        found.append(traced.parts)
        return seams.disable(traced.fn)

    with torch.set_grad_enabled(grad):
        torch.compile(function, backend=backend, dynamic=dynamic)(*args, **(kwargs or {}))
    if faults:
        raise faults[0]
    many = len(found) > 1
    return [
        (f"{part.role} {number}" if many else part.role, part)
        for number, parts in enumerate(found)
        for part in parts
    ]
