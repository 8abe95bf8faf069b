"""The session of one set of options: the way from Dynamo's graphs to callables.

    Dynamo's graph ── front key ── hit ──► recipe ─────────────► callable
                          │ miss                                    ▲
                          └► AOTAutograd ── graph keys ── compile ──┘

Nothing here raises for a fault of ours: such a graph runs eager, with one warning a cause.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch

from cache.artifacts import Found
from fusec.artifact.fingerprint import Fingerprint, graph_fingerprint, toolchain
from fusec.capture import seams
from fusec.capture.aot import Executable, Traced, trace
from fusec.capture.front import Ineligible, front_key
from fusec.capture.recipe import Recipe, make_recipe
from fusec.capture.restore import restore
from fusec.errors import (
    ArtifactError,
    CaptureUnsupported,
    CompilerError,
    FusecError,
    PolicyError,
)
from fusec.faults import contained
from fusec.ir.graph import Graph
from fusec.ir.verify_device import device_of
from fusec.ir.wire import graph_to_bytes
from fusec.options import Options, Target
from fusec.remote.jobs import FrontRecord, GraphJob, parts_of
from fusec.remote.tiers import FrontFound
from fusec.swap import Function, Swap
from fusec.trace import Recorder
from fusec.upgrades import Part, Upgrades

log = logging.getLogger("fusec")


TargetOf = Callable[[int | None], Target]
"""The target of graphs on a GPU, by its ordinal, or on the CPU for None."""


class Ticket(Protocol):
    """A graph in flight (`fusec.remote.ticket.Ticket`)."""

    def done(self) -> bool: ...

    def result(self) -> Found: ...

    def cancel(self) -> None: ...


class Resolver(Protocol):
    """Where artifacts come from (`fusec.remote.resolve.Resolver`)."""

    def submit(self, job: GraphJob) -> Ticket: ...

    def lookup_front(self, key: str) -> FrontFound | None: ...

    def publish_front(self, record: FrontRecord) -> None: ...

    def compile_again(self, job: GraphJob, error: FusecError) -> Found: ...

    def newer(self, versions: Mapping[str, str]) -> Mapping[str, Found]: ...


class Load(Protocol):
    """An artifact to a callable (`fusec.runtime.loader.load`). Raises LoadError."""

    def __call__(self, found: Found, *, recorder: Recorder) -> Executable: ...


class _Pending:
    """A graph in flight, loaded when it is asked for: ``part`` is there from then on."""

    def __init__(self, job: GraphJob, ticket: Ticket, session: Session) -> None:
        self.job = job
        self.part: Part | None = None
        self._ticket = ticket
        self._session = session

    def done(self) -> bool:
        return self._ticket.done()

    def result(self) -> Executable:
        self.part = self._session.part(self.job, self._ticket)
        return self.part.run

    def cancel(self) -> None:
        self._ticket.cancel()


class Session:
    """From Dynamo's graphs to callables, with one set of options, one resolver and one loader.

    A graph is compiled for the device that its tensors are on.
    """

    def __init__(
        self,
        options: Options,
        target_of: TargetOf,
        resolver: Resolver,
        load: Load,
        recorder: Recorder,
    ) -> None:
        self.options = options
        self.target_of = target_of
        self.recorder = recorder
        self._resolver = resolver
        self._load = load
        self._warned: set[str] = set()
        self._lock = threading.Lock()
        self._upgrades = Upgrades(
            resolver.newer, partial(load, recorder=recorder), recorder, self._warn
        )

    def backend(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """A callable for Dynamo's graph: compiled, or eager when that fails.

        Raises PolicyError under the policy `require`, and nothing else of ours.
        """
        try:
            with self.recorder.tracing.span("graph"):
                return seams.disable(self.compiled(gm, inputs))
        except PolicyError:
            raise  # the user chose to fail rather than to compile here
        except FusecError as error:
            self._warn(error)
            self.recorder.count("fallbacks_to_eager")
            return seams.disable(gm.forward)

    def compiled(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Function:
        """A callable for Dynamo's graph. Raises FusecError where `backend` runs it eager."""
        target = self.target_of(_ordinal(inputs))
        front = self._front(gm, inputs, target)
        if isinstance(front, Fingerprint):
            known = self._restored(front)
            if known is not None:
                return known
        promises = seams.shape_promises()
        traced, pending = self._traced(gm, inputs, target)
        recipe: Recipe | str = "it has no front key"
        record = None
        if isinstance(front, Fingerprint):
            recipe = make_recipe(traced, inputs)
            if seams.shape_promises() != promises:
                self._ineligible("AOTAutograd added guards on sizes")
            elif isinstance(recipe, Recipe):
                parts = parts_of({each.job.label: each.job.fingerprint.hex for each in pending})
                record = FrontRecord(front.entries, parts, recipe.to_bytes())
            else:
                self._ineligible(recipe)

        def finish() -> Function:
            """Wait for the graphs; only then can their front record be published."""
            done = False
            try:
                traced.fill()
                done = True
            finally:
                if not done:
                    for each in pending:
                        each.cancel()
            if record is not None:
                self._resolver.publish_front(record)
            return traced.fn

        if self.options.policy != "async":
            return finish()
        if all(each.done() for each in pending):
            swap = Swap(finish())
            self._follow(swap, recipe, pending)
            return swap
        return self._swapped(gm, finish, recipe, pending)

    def _swapped(
        self,
        gm: torch.fx.GraphModule,
        finish: Callable[[], Function],
        recipe: Recipe | str,
        pending: Sequence[_Pending],
    ) -> Function:
        """Eager now, compiled from the call after it is ready."""

        def failed(error: FusecError) -> None:
            self._warn(error)
            self.recorder.count("fallbacks_to_eager")

        def ready() -> None:
            self.recorder.count("swaps")
            self._follow(swap, recipe, pending)

        swap = Swap(gm.forward)
        swap.prepare(finish, ready=ready, failed=failed)
        return swap

    def _follow(self, swap: Swap, recipe: Recipe | str, pending: Sequence[_Pending]) -> None:
        """Have a graph's artifacts replaced by better ones while it runs. Without a recipe there is
        no second callable beside AOTAutograd's: it keeps what it has."""
        if isinstance(recipe, Recipe):
            parts = {each.job.label: each.part for each in pending if each.part is not None}
            self._upgrades.follow(swap, parts, partial(restore, recipe))

    def _front(
        self, gm: torch.fx.GraphModule, inputs: Sequence[Any], target: Target
    ) -> Fingerprint | None:
        """The front key; None when it is switched off or the graph has none."""
        if not self.options.front_key:
            return None
        try:
            with self.recorder.span("key"), contained("front key"):
                front = front_key(gm, inputs, target, self.options, toolchain())
        except CompilerError as error:
            self._warn(error, "a graph has no front key")
            front = Ineligible(error.message)
        if isinstance(front, Ineligible):
            self._ineligible(front.reason)
            return None
        return front

    def _ineligible(self, reason: str) -> None:
        log.debug("no front key: %s", reason)
        self.recorder.count("front_ineligible")

    def _restored(self, front: Fingerprint) -> Function | None:
        """The callable that a front key leads to; None on a miss or when it does not load."""
        found = self._resolver.lookup_front(front.key("front"))
        if found is None:
            return None
        try:
            with contained("front record"):
                recipe = Recipe.from_bytes(found.record.recipe)
                keys = found.record.part_keys()
                parts = {
                    role: Part.of(keys[role], part, self._load(part, recorder=self.recorder))
                    for role, part in found.parts.items()
                }
                restored = restore(recipe, {role: part.run for role, part in parts.items()})
        except (ArtifactError, CompilerError) as error:
            log.debug("a front record does not load: %s", error)
            self.recorder.count("corrupt")
            return None
        self.recorder.count("graphs", len(parts))
        if self.options.policy != "async":
            return restored
        swap = Swap(restored)
        self._upgrades.follow(swap, parts, partial(restore, recipe))
        return swap

    def _traced(
        self, gm: torch.fx.GraphModule, inputs: Sequence[Any], target: Target
    ) -> tuple[Traced, list[_Pending]]:
        """AOTAutograd's result, its graphs on their way."""
        started: list[_Pending] = []

        def start(graph: Graph, role: str) -> _Pending:
            started.append(self._start(graph, role, self._target_of_graph(graph, target)))
            return started[-1]

        done = False
        try:
            traced = trace(gm, inputs, start, recorder=self.recorder)
            done = True
        finally:
            if not done:  # a fault, or Dynamo wants to trace again: nobody will ask for these
                for pending in started:
                    pending.cancel()
        return traced, started

    def _target_of_graph(self, graph: Graph, target: Target) -> Target:
        """target: of the inputs of Dynamo's graph, one of whose graphs may be on the CPU alone."""
        device = device_of(graph)
        if device == target.device:
            return target
        if device != "cpu":
            raise CaptureUnsupported("no input tells which GPU a graph runs on")
        return self.target_of(None)

    def _start(self, graph: Graph, role: str, target: Target) -> _Pending:
        with self.recorder.span("key"):
            data = graph_to_bytes(graph)
            key = graph_fingerprint(data, target, self.options, toolchain())
        job = GraphJob(graph, data, key, target, role)
        return _Pending(job, self._resolver.submit(job), self)

    def part(self, job: GraphJob, ticket: Ticket) -> Part:
        """Wait for a graph's artifact and load it; one that will not load is compiled here.

        Raises FusecError, also for a fault of our own that is none of its kinds.
        """
        with contained(f"{job.label} graph {job.fingerprint.hex[:16]}"):
            found = ticket.result()
            try:
                loaded = self._load(found, recorder=self.recorder)
            except ArtifactError as error:
                found = self._resolver.compile_again(job, error)
                loaded = self._load(found, recorder=self.recorder)
        self.recorder.count("graphs")
        return Part.of(job.key, found, loaded)

    def _warn(self, error: FusecError, consequence: str = "a graph runs eager") -> None:
        """One warning a cause, however many graphs it stops."""
        cause = f"{type(error).__name__}: {error.message}"
        with self._lock:
            if cause in self._warned:
                return
            self._warned.add(cause)
        # Not `warnings.warn`: with warnings as errors it would end a training job.
        log.warning("%s: %s: %s", consequence, type(error).__name__, error)


def _ordinal(inputs: Sequence[Any]) -> int | None:
    """Which GPU the inputs are on; None for the CPU. Raises CaptureUnsupported for several."""
    found = {
        x.device.index or 0
        for x in inputs
        if isinstance(x, torch.Tensor) and x.device.type == "cuda"
    }
    if len(found) > 1:
        raise CaptureUnsupported("a graph has inputs on two GPUs")
    return found.pop() if found else None
