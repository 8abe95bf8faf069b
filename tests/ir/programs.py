"""Small graphs as text, and their plans and programs, for tests of what comes after capture."""

from __future__ import annotations

import functools

from fusec.ir.graph import Graph
from fusec.ir.program import Program
from fusec.ir.program_wire import program_from_bytes
from fusec.ir.text import parse_graph
from fusec.options import Options, Target
from fusec.pipeline import Plan, plan
from fusec.trace import Recorder

TARGET = Target("cpu", "x86-64-v3")

# Every kind of slot and step: dynamic sizes, constants, a library call, overwriting of an input.
SAMPLE = """\
symbol s0 in [2, 1024]
%0 = input "x": f32[s0, 8]
%1 = input "w": f32[8, 8]
%2 = input "n": int(s0)
%3 = input "state": f32[8, 8]
%4 = const "c"(hex "0000803f00000040"): f32[2]
%5 = call aten.exp.default(%0): f32[s0, 8]
%6 = call aten.mm.default(%1, %3): f32[8, 8]
%7 = call aten.mm.default(%5, %6): f32[s0, 8]
%8 = call aten.sum.dim_IntList(%7, [1], true): f32[s0, 1]
%9 = call aten.div.Tensor(%7, %8): f32[s0, 8]
%10 = call aten.add.Tensor(%6, %1): f32[8, 8]
%11 = call aten.mm.default(%10, %10): f32[8, 8]
%12 = call aten.copy_.default(%3, %11): f32[8, 8]
%13 = call aten.logcumsumexp.default(%0, 0): f32[s0, 8]
return %9, %4, %13, <s0 + 1>, none
"""


def planned(text: str | Graph, target: Target = TARGET, **options: bool) -> Plan:
    """The plan of a graph, given as text."""
    graph = parse_graph(text) if isinstance(text, str) else text
    return plan(graph, target, Options(progress=False, **options), recorder=Recorder())


@functools.cache
def sample_plan() -> Plan:
    """The plan of `SAMPLE`."""
    return planned(SAMPLE)


def sample_program() -> Program:
    """The program of `SAMPLE`."""
    return program_from_bytes(sample_plan().program)
