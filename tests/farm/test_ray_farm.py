"""A farm over Ray, with the real compiler: what a user's cluster does."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from cache.artifacts import lookup
from cache.client import CacheClient
from cache.open_tracing import open_tracing
from farm.embedded import embedded_farm
from fusec.pipeline import compile_local
from fusec.remote.farm import FarmClient
from fusec.remote.tiers import Source
from tests.farm.clients import NewClient
from tests.farm.real_jobs import real_job
from tests.farm.tiny_stages import TinyStages, farm_job, graph_job, operators
from tests.observability.collector import collector

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]


def test_the_real_compiler_on_ray(ray_cluster: None, client: NewClient) -> None:
    with embedded_farm(pool="ray") as farm:
        here = client(farm.url, compile_local)
        tickets = [here.resolver.submit(real_job(rows)) for rows in (8, 16)]
        found = [ticket.result() for ticket in tickets]
        assert [ticket.source for ticket in tickets] == [Source.FARM] * 2
        alone = client(None, compile_local)
        for ticket, there in zip(tickets, found, strict=True):
            here_made = alone.resolver.submit(ticket.job).result()
            # The farm's manifest says beside them how it was verified.
            assert there.manifest.blobs == here_made.manifest.blobs, "the same bytes"
        warm = client(farm.url, compile_local)
        assert lookup(farm.store, tickets[0].job.key) is not None
        ticket = warm.resolver.submit(tickets[0].job)
        ticket.result()
        assert ticket.source is Source.REMOTE_STORE
        assert warm.counters() == {"graph_hits": 1}


def test_a_worker_that_dies_costs_one_attempt(
    ray_cluster: None, client: NewClient, tmp_path: Path
) -> None:
    stages = TinyStages(str(tmp_path))
    with embedded_farm(pool="ray", stages=stages) as farm:
        here = client(farm.url, stages.compile_local)
        ticket = here.resolver.submit(graph_job("t.a", "t.flaky"))
        assert operators(ticket.result()) == ["t.a", "t.flaky"]
        assert ticket.source is Source.FARM
        assert stages.count("build t.flaky") == 2
        assert here.counters() == {"graph_misses": 1, "farm_compiles": 1}


def test_a_start_is_followed_into_rays_workers(ray_cluster: None, tmp_path: Path) -> None:
    stages = TinyStages(str(tmp_path))
    with (
        collector() as spans,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", spans.url)
        with embedded_farm(pool="ray", stages=stages, tracing="otlp") as farm:
            tracing = open_tracing("otlp", "client", root="start")
            with CacheClient(farm.url, tracing=tracing) as remote:
                FarmClient(remote).wait(farm_job("t.a", "t.flaky"), timeout_s=120.0)
            tracing.close()
    found = {each.span_id: each for each in spans.spans()}
    (start,) = (each for each in found.values() if each.name == "start")
    assert {each.trace_id for each in found.values()} == {start.trace_id}
    worked = [each for each in found.values() if each.name in ("task plan", "task build")]
    assert {each.name for each in worked} == {"task plan", "task build"}
    for each in worked:
        attempt = found[each.parent_id]
        assert (attempt.name, attempt.failed) == ("attempt", "")
        host, process = each.attributes["worker"].rsplit(":", 1)
        assert host == socket.gethostname()
        assert int(process) != os.getpid(), "it was a worker of Ray's"
    # The worker that died has sent nothing back: its attempt says so.
    failures = [each.failed for each in found.values() if each.name == "attempt" and each.failed]
    assert failures == ["worker_lost"]
