"""Graphs as text, lowered and scheduled, for tests of scheduling."""

from __future__ import annotations

from fusec.ir.loop import Compute, External, LoopProgram
from fusec.ir.text import parse_graph
from fusec.lower.lowering import lower
from fusec.schedule.dissolve import dissolve
from fusec.schedule.groups import Schedule
from fusec.schedule.search import schedule
from fusec.schedule.single import drop_single_folds
from fusec.schedule.verify import verify_schedule


def lowered(text: str) -> LoopProgram:
    """The loops of a graph given as text."""
    return lower(parse_graph(text))


def dissolved(text: str) -> LoopProgram:
    """After the passes before scheduling."""
    return dissolve(drop_single_folds(lowered(text)))


def scheduled(text: str, *, fusion: bool = True) -> Schedule:
    """The verified schedule of a graph given as text."""
    found = schedule(dissolved(text), fusion=fusion)
    verify_schedule(found)
    return found


def kernels(found: Schedule) -> list[list[int]]:
    """The buffers that each kernel computes."""
    program = found.program
    steps = [[program.steps[m] for m in g.members] for g in found.groups]
    return [
        [s.output for s in g if isinstance(s, Compute)] for g in steps if isinstance(g[0], Compute)
    ]


def calls(found: Schedule) -> list[str]:
    """The external calls in order."""
    steps = [found.program.steps[g.members[0]] for g in found.groups]
    return [s.target for s in steps if isinstance(s, External)]
