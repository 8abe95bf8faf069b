"""Partitions that cost about as much as the cheapest: other kernels, the same results."""

from __future__ import annotations

import torch

from cache.artifacts import Found
from fusec.capture.eager import EagerProgram
from fusec.codegen.isa import host_target
from fusec.ir.text import parse_graph
from fusec.lower.lowering import lower
from fusec.options import Options
from fusec.pipeline import Plan, assemble, build_kernel, plan
from fusec.runtime.loader import load
from fusec.schedule.cost import GPU
from fusec.schedule.dissolve import dissolve
from fusec.schedule.groups import Schedule
from fusec.schedule.search import MOST_NEAR, schedule
from fusec.schedule.verify import verify_schedule
from fusec.trace import Recorder
from tests.codegen.kernels import KERNELS

TEXT = KERNELS["rows_of_two_axes_and_columns"]


def grouped(*picks: int) -> Schedule:
    return schedule(dissolve(lower(parse_graph(TEXT))), machine=GPU, picks=picks)


def test_each_pick_is_another_partition() -> None:
    (count,) = grouped().near
    assert 1 < count <= MOST_NEAR
    made = [grouped(number) for number in range(count)]
    for found in made:
        verify_schedule(found)
        assert found.near == (count,)
    kinds = {(frozenset(g.members for g in s.groups), len(s.program.steps)) for s in made}
    assert len(kinds) == count
    assert grouped(0) == grouped()
    assert grouped(99) == made[-1]  # of another graph, or another version: it is still a program


def test_every_pick_computes_the_same() -> None:
    graph, target = parse_graph(TEXT), host_target()
    inputs = [torch.empty_strided((8, 16, 5, 7), (560, 35, 1, 5)).normal_()]
    wanted = EagerProgram(graph)([x.clone() for x in inputs])
    digests = set()
    first = plan(graph, target, Options(), recorder=Recorder())
    assert Plan.from_bytes(first.to_bytes()) == first
    for number in range(first.near[0]):
        made = plan(graph, target, Options(), recorder=Recorder(), picks=(number,))
        digests.add(frozenset(k.digest for k in made.kernels))
        binaries = {k.digest: build_kernel(k, target) for k in made.kernels}
        run = load(Found(*assemble(made, binaries)), recorder=Recorder())
        for mine, theirs in zip(run([x.clone() for x in inputs]), wanted, strict=True):
            torch.testing.assert_close(mine, theirs)
    assert len(digests) > 1
