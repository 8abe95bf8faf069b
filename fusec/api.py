"""The backend that `torch.compile(model, backend="fusec")` finds: wiring only."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cache.client import CacheClient
from cache.errors import ConfigError
from cache.open_tracing import open_tracing
from cache.tracing import OFF, Tracing
from fusec.codegen.isa import target_of
from fusec.errors import OptionsError
from fusec.metrics import Exporter
from fusec.options import Options, unknown_variables
from fusec.remote.resolve import Resolver
from fusec.runtime.graph_pool import GraphPools
from fusec.runtime.loader import load
from fusec.session import Session
from fusec.trace import Recorder, Snapshot

if TYPE_CHECKING:
    import torch


log = logging.getLogger("fusec")


class _Process:
    """What torch.compile's string backends leave no room to pass: one of these a process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.recorder = Recorder()
        self.sessions: dict[Options, Session] = {}
        self.remotes: list[CacheClient] = []
        self.exporter: Exporter | None = None


_process = _Process()


def backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Callable[..., Any]:
    """Compile one graph of Dynamo's; what `torch.compile(model, backend="fusec", …)` calls.

    mode and options are torch.compile's own; options are fields of `fusec.Options` by name. Raises
    OptionsError for an option or variable that makes no sense; any other fault of fusec ends in a
    warning, a counter and the graph run eager.
    """
    overrides = dict(options or {})
    if mode is not None:
        if overrides.get("mode", mode) != mode:
            raise OptionsError("mode is given twice, as an argument and among the options")
        overrides["mode"] = mode
    return session(Options.from_env(overrides=overrides)).backend(gm, example_inputs)


def session(options: Options) -> Session:
    """The process's session for these options, made on first use."""
    with _process.lock:
        found = _process.sessions.get(options)
        if found is None:
            if not _process.sessions:
                _tell_unknown_variables()
            recorder = _process.recorder
            if options.tracing and recorder.tracing is OFF:
                recorder.tracing = _tracing(options)
            resolver = Resolver.open(options, recorder)
            if resolver.remote is not None:
                _process.remotes.append(resolver.remote)
            if _process.exporter is None and (options.metrics_dir or options.metrics_push):
                _process.exporter = _exporter(options)
            graphs = GraphPools() if options.mode == "reduce-overhead" else None
            found = Session(options, target_of, resolver, partial(load, graphs=graphs), recorder)
            _process.sessions[options] = found
        return found


def _tell_unknown_variables() -> None:
    for name, meant in unknown_variables().items():
        hint = f"; did you mean {meant}?" if meant else ""
        log.warning("nothing reads the variable %s%s", name, hint)


def _tracing(options: Options) -> Tracing:
    """The process's spans, below those of whoever started it and says so in TRACEPARENT."""
    parent = os.environ.get("TRACEPARENT", "")
    try:
        return open_tracing(options.tracing, "fusec-client", parent=parent, root="start")
    except ConfigError as error:
        raise OptionsError(error.message, where="FUSEC_TRACING", hint=error.hint) from error


def _exporter(options: Options) -> Exporter:
    """Exports the process's metrics from now on. Raises OptionsError."""
    rank = os.environ.get("LOCAL_RANK", "")  # torchrun's
    made = Exporter(
        options.metrics_dir,
        options.metrics_push,
        snapshot,
        lambda: tuple(_process.remotes),
        local_rank=int(rank) if rank.isdecimal() else 0,
    )
    made.start()
    return made


def snapshot() -> Snapshot:
    """Seconds by stage and counts by name of this process, since the start or the last `reset`."""
    return _process.recorder.snapshot()


def reset() -> None:
    """Forget all sessions and counters. For tests: what is compiled already goes on working."""
    with _process.lock:
        _process.sessions.clear()
        _process.remotes.clear()
        _process.recorder = Recorder()
