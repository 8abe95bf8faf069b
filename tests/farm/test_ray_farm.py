"""A farm over Ray, with the real compiler: what a user's cluster does."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache.artifacts import lookup
from farm.embedded import embedded_farm
from fusec.pipeline import compile_local
from fusec.remote.tiers import Source
from tests.farm.clients import NewClient
from tests.farm.real_jobs import real_job
from tests.farm.tiny_stages import TinyStages, graph_job, operators

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
