"""A farm over Ray, with the real compiler: what a user's cluster does."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache.artifacts import lookup
from farm.embedded import embedded_farm
from fusec.artifact.fingerprint import graph_fingerprint, toolchain
from fusec.ir.expr import integer
from fusec.ir.graph import Graph, Node, Ref, TensorType
from fusec.ir.wire import graph_to_bytes
from fusec.options import Options, Target
from fusec.pipeline import compile_local
from fusec.remote.jobs import GraphJob
from fusec.remote.tiers import Source
from tests.farm.clients import NewClient
from tests.farm.tiny_stages import TinyStages, graph_job, operators

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]

TARGET = Target("cpu", "x86-64-v3")


def _real_job(rows: int) -> GraphJob:
    """x * tanh(x) over a (rows, 64) matrix: one kernel, and the runner."""
    kind = TensorType("f32", (integer(rows), integer(64)), (integer(64), integer(1)))
    graph = Graph(
        (
            Node("input", "x", type=kind),
            Node("call", "aten.tanh.default", (Ref(0),), type=kind),
            Node("call", "aten.mul.Tensor", (Ref(1), Ref(0)), type=kind),
        ),
        (Ref(2),),
    )
    data = graph_to_bytes(graph)
    return GraphJob(graph, data, graph_fingerprint(data, TARGET, Options(), toolchain()), TARGET)


def test_the_real_compiler_on_ray(ray_cluster: None, client: NewClient) -> None:
    with embedded_farm(pool="ray") as farm:
        here = client(farm.url, compile_local)
        tickets = [here.resolver.submit(_real_job(rows)) for rows in (8, 16)]
        found = [ticket.result() for ticket in tickets]
        assert [ticket.source for ticket in tickets] == [Source.FARM] * 2
        alone = client(None, compile_local)
        for ticket, there in zip(tickets, found, strict=True):
            here_made = alone.resolver.submit(ticket.job).result()
            assert there.manifest == here_made.manifest, "farm and client make the same bytes"
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
