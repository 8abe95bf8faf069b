"""A session whose compiler is the eager interpreter: real resolver and store, no code generated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cache.artifacts import Found, publish
from cache.manifest import FINAL_TIER, Manifest
from cache.memory import MemoryStore
from cache.store import Store
from fusec.artifact.fingerprint import graph_fingerprint, toolchain
from fusec.capture.aot import Executable
from fusec.capture.eager import EagerProgram
from fusec.ir.graph import Graph
from fusec.ir.wire import graph_from_bytes, graph_to_bytes
from fusec.options import Options, Target
from fusec.remote.jobs import FrontRecord
from fusec.remote.resolve import Resolver
from fusec.session import Session
from fusec.trace import Recorder

TARGET = Target("cpu", "x86-64-v3")


def eager_compile(
    graph: Graph,
    target: Target,
    options: Options,
    store: Store,
    *,
    recorder: Recorder,
    tier: int = FINAL_TIER,
) -> Found:
    """An "artifact" that is the graph itself. tier: of its manifest."""
    data = graph_to_bytes(graph)
    blobs = {"graph": data}
    key = graph_fingerprint(data, target, options, toolchain()).key("graph")
    manifest = publish(store, key, Manifest.of("graph", blobs, tier=tier), blobs)
    recorder.count("lowerings")
    return Found(manifest, blobs)


def eager_load(found: Found, *, recorder: Recorder) -> Executable:
    return EagerProgram(graph_from_bytes(found.blobs["graph"]))


class Twin:
    """One session over one store, and what it saw. Give two twins one store: the second is warm."""

    def __init__(self, store: Store | None = None, **options: Any) -> None:
        self.store = store if store is not None else MemoryStore()
        self.recorder = Recorder()
        self.options = Options(progress=False, **options)
        resolver = Resolver(
            self.store, None, self.options, self.recorder, compile_local=eager_compile
        )
        self.records: list[FrontRecord] = []
        publish_front = resolver.publish_front

        def recorded(record: FrontRecord) -> None:
            self.records.append(record)
            publish_front(record)

        resolver.publish_front = recorded  # type: ignore[method-assign]
        self.session = Session(self.options, lambda _: TARGET, resolver, eager_load, self.recorder)
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs.append(gm)
        return self.session.backend(gm, inputs)

    def count(self, name: str) -> int:
        return self.recorder.counters.get(name, 0)
