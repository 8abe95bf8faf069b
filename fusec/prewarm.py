"""Compiles a model's graphs for a target that need not be here, and publishes them.

The model is built and called with fake tensors: no memory, nothing computed. Its graphs and their
keys are those that the real model has on the target, so what is compiled and published now is
found there: a GPU machine then compiles nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cache.artifacts import Found
from cache.manifest import Manifest
from fusec.capture import seams
from fusec.capture.weightless import weightless
from fusec.capture.without_gpu import pretended_gpu
from fusec.errors import FusecError, OptionsError, PolicyError
from fusec.options import Options, Target
from fusec.remote.jobs import FrontRecord, GraphJob
from fusec.remote.resolve import Resolver
from fusec.remote.resolve import Ticket as RealTicket
from fusec.remote.tiers import FrontFound
from fusec.runtime.report import report_of
from fusec.session import Session, Ticket
from fusec.trace import Recorder

Example = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""What to call, its arguments and its keyword arguments."""


@dataclass
class Part:
    """One compiled graph. source: where its artifact came from, None where nothing was compiled;
    numbers: what the artifact says about itself, by name."""

    role: str
    key: str
    source: str | None = None
    numbers: dict[str, int] = field(default_factory=dict)


@dataclass
class Warmed:
    """One graph of Dynamo's. front: its front key, if it has one; known: it was there already;
    eager: why it is not compiled at all."""

    front: str | None = None
    known: bool = False
    eager: str | None = None
    parts: list[Part] = field(default_factory=list)


def prewarm(
    make: Callable[[], Example],
    target: Target,
    options: Options,
    resolver: Resolver | None,
    *,
    recorder: Recorder,
    grad: bool = True,
    dynamic: bool | None = None,
    real: bool = False,
    each: Callable[[Warmed], None] = lambda _: None,
) -> list[Warmed]:
    """Compile and publish the graphs of one call.

    make: builds the model and its inputs; called while tensors have no memory and are on the
    target's device unless it says otherwise. resolver: where artifacts go; None computes keys
    alone. grad: whether gradients are recorded, so that forward and backward are compiled; real:
    with memory, on a device that is here; each: called for each graph when it is done. Raises
    OptionsError for tensors made elsewhere, PolicyError, and CaptureUnsupported where there is no
    capturing for the target here.
    """
    watched = _Watched(resolver)
    session = Session(options, lambda _: target, watched, _never_called, recorder)
    done: list[Warmed] = []

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        graph = watched.graph = Warmed()
        try:
            session.compiled(gm, inputs)
        except PolicyError:
            raise
        except FusecError as error:
            graph.eager = str(error)
        done.append(graph)
        each(graph)
        return seams.disable(gm.forward)  # on fake tensors: the shapes of what comes after

    with nullcontext() if real else _without_memory(target, options.cache_dir):
        with torch.device(target.device):
            function, args, kwargs = make()
        if not real:
            _check_fake(function, [*args, *kwargs.values()])
        with torch.set_grad_enabled(grad):
            torch.compile(function, backend=backend, dynamic=dynamic)(*args, **kwargs)
    return done


@contextmanager
def _without_memory(target: Target, cache_dir: Path) -> Iterator[None]:
    """With fake tensors, on the target's device whether it is there or not."""
    here = target.device == "cpu" or torch.cuda.is_available()
    with nullcontext() if here else pretended_gpu(cache_dir), weightless():
        yield


def _check_fake(function: Callable[..., Any], inputs: Sequence[Any]) -> None:
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    if isinstance(function, torch.nn.Module):
        tensors += [*function.parameters(), *function.buffers()]
    if not all(seams.is_fake(x) for x in tensors):
        raise OptionsError(
            "the model or its inputs hold tensors that were made before",
            hint="make all of them inside the function: there they take no memory",
        )


def _never_called(found: Found, *, recorder: Recorder) -> Callable[[list[Any]], list[Any]]:
    """In the place of a loader: nothing is run on fake tensors."""

    def run(inputs: list[Any]) -> list[Any]:
        raise AssertionError("a graph is run where graphs are only compiled")

    return run


class _Watched:
    """The resolver of a session, which notes what it is asked for; without one, keys alone."""

    def __init__(self, inner: Resolver | None) -> None:
        self.graph = Warmed()
        self._inner = inner

    def submit(self, job: GraphJob) -> Ticket:
        part = Part(job.label, job.key)
        self.graph.parts.append(part)
        return _Noted(part, None if self._inner is None else self._inner.submit(job))

    def lookup_front(self, key: str) -> FrontFound | None:
        self.graph.front = key
        found = None if self._inner is None else self._inner.lookup_front(key)
        if found is not None:
            self.graph.known = True
            for role, part in found.record.parts:
                numbers = report_of(found.parts[role].manifest.meta)
                self.graph.parts.append(Part(role, f"graph/{part}", "front record", numbers))
        return found

    def publish_front(self, record: FrontRecord) -> None:
        if self._inner is not None:
            self._inner.publish_front(record)

    def compile_again(self, job: GraphJob, error: FusecError) -> Found:
        raise error  # nothing is loaded, so nothing fails to load

    def newer(self, versions: Mapping[str, str]) -> Mapping[str, Found]:
        return {}  # and nothing runs that could become better


class _Noted:
    def __init__(self, part: Part, ticket: RealTicket | None) -> None:
        self._part = part
        self._ticket = ticket

    def done(self) -> bool:
        return True  # a prewarm waits for every graph, whatever the policy

    def result(self) -> Found:
        if self._ticket is None:
            return Found(Manifest.of("graph", {}, b""), {})
        found = self._ticket.result()
        self._part.source = str(self._ticket.source)
        self._part.numbers = report_of(found.manifest.meta)
        return found

    def cancel(self) -> None:
        if self._ticket is not None:
            self._ticket.cancel()
