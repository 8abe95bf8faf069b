"""Groups that are final early: what they are in the schedule, and kernels handed on for good."""

from __future__ import annotations

import pytest

from fusec.ir.text import parse_graph
from fusec.lower.lowering import lower
from fusec.options import Options, Target
from fusec.parts import finish
from fusec.pipeline import Source, plan_in_parts
from fusec.schedule.cost import GPU
from fusec.schedule.dissolve import dissolve
from fusec.schedule.groups import Schedule
from fusec.schedule.kernel_loop import read_outside
from fusec.schedule.search import schedule_in_parts
from fusec.schedule.settled import Settled
from fusec.trace import Recorder
from tests.codegen.kernels import KERNELS
from tests.codegen.optimizers import adamw
from tests.ir.programs import SAMPLE, TARGET

# The second product waits for the first: what is before it and what is after it never start as one.
CHAIN = """\
%0 = input "x": f32[64, 64]
%1 = input "w": f32[64, 64]
%2 = call aten.exp.default(%0): f32[64, 64]
%3 = call aten.mm.default(%2, %1): f32[64, 64]
%4 = call aten.tanh.default(%3): f32[64, 64]
%5 = call aten.mm.default(%4, %1): f32[64, 64]
return %5
"""
# The same loops beside each other, and others that nothing is like.
ALIKE = """\
%0 = input "x": f32[64, 64]
%1 = input "y": f32[64, 64]
%2 = input "z": f32[64, 8]
%3 = call aten.exp.default(%0): f32[64, 64]
%4 = call aten.tanh.default(%1): f32[64, 64]
%5 = call aten.sin.default(%2): f32[64, 8]
return %3, %4, %5
"""
UNKNOWN = ALIKE.replace("64, 8]", "s0, 8]").replace("64, 64]", "8, s0]")


def _scheduled(text: str) -> tuple[list[Settled], Schedule]:
    early: list[Settled] = []
    program = dissolve(lower(parse_graph(text)))
    return early, finish(schedule_in_parts(program, machine=GPU), early.append)


@pytest.mark.parametrize(
    ("text", "count"),
    [(CHAIN, 2), (ALIKE, 1), ("symbol s0 in [2, 1024]\n" + UNKNOWN, 0), (adamw(["64, 64"] * 3), 0)],
    ids=["chain", "alike", "unknown", "batch"],
)
def test_groups_that_could_start_with_others_wait(text: str, count: int) -> None:
    early, found = _scheduled(text)
    assert len(early) == count
    stored = dict(zip(found.groups, read_outside(found).values(), strict=True))
    for one in early:
        assert one.program.steps == found.program.steps
        assert stored[one.group] == one.needed


@pytest.mark.parametrize("target", [TARGET, Target("cuda", "sm_90")], ids=["cpu", "cuda"])
def test_a_plan_hands_on_its_kernels_and_no_others(target: Target) -> None:
    for text in [SAMPLE, CHAIN, ALIKE, adamw(["64, 64"] * 5, clipped=True), *KERNELS.values()]:
        handed_on: list[Source] = []
        work = plan_in_parts(parse_graph(text), target, Options(), recorder=Recorder())
        made = finish(work, handed_on.append)
        assert sorted(k.digest for k in handed_on) == sorted(k.digest for k in made.kernels)
