"""A copy that is not final: what stands in its place at the service is used the next time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cache.artifacts import Found, lookup, publish, replace
from cache.config import ServiceConfig
from cache.embedded import RunningService, serve_in_thread
from cache.manifest import Manifest
from cache.memory import MemoryStore
from fusec.remote.tiers import Source
from tests.farm.clients import Client, NewClient
from tests.farm.tiny_stages import TinyStages, graph_job

JOB = graph_job("t.a")


def _artifact(text: bytes, tier: int) -> tuple[Manifest, dict[str, bytes]]:
    blobs = {"program": text}
    return Manifest.of("graph", blobs, text, tier=tier), blobs


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore()
    publish(made, JOB.key, *_artifact(b"quick", 0))
    return made


@pytest.fixture
def service(store: MemoryStore) -> Iterator[RunningService]:
    with serve_in_thread(ServiceConfig(port=0, entry_ttl_s=0.0), store=store) as running:
        yield running


def _start(here: Client) -> tuple[bytes, Source | None]:
    """A start of a process: what it uses, and from where."""
    ticket = here.resolver.submit(JOB)
    found = ticket.result()
    here.resolver.close()
    return found.blobs["program"], ticket.source


def test_a_better_artifact_is_used_and_kept_the_next_time(
    client: NewClient, store: MemoryStore, service: RunningService, stages: TinyStages
) -> None:
    first = client(service.url, stages.compile_local)
    assert _start(first) == (b"quick", Source.REMOTE_STORE)
    again = client(service.url, stages.compile_local, local=first.local)
    assert _start(again) == (b"quick", Source.LOCAL_STORE), "nothing better stands there"

    quick = lookup(store, JOB.key)
    assert isinstance(quick, Found)
    assert replace(store, JOB.key, *_artifact(b"tuned", 9), quick.version)
    later = client(service.url, stages.compile_local, local=first.local)
    assert _start(later) == (b"tuned", Source.REMOTE_STORE)
    assert later.counters() == {"graph_hits": 1}
    kept = lookup(first.local, JOB.key)
    assert kept is not None
    assert kept.blobs == {"program": b"tuned"}

    last = client(service.url, stages.compile_local, local=first.local)
    assert _start(last) == (b"tuned", Source.LOCAL_STORE)
    assert last.remote is not None
    assert last.remote.metrics.snapshot().get("requests", 0) <= 1, "what is final is not asked for"


def test_without_an_answer_the_copy_is_used(
    client: NewClient, service: RunningService, stages: TinyStages
) -> None:
    first = client(service.url, stages.compile_local)
    _start(first)
    offline = client("http://127.0.0.1:1", stages.compile_local, local=first.local)
    assert _start(offline) == (b"quick", Source.LOCAL_STORE)
    assert offline.counters()["graph_hits"] == 1
    assert stages.count("local") == 0
