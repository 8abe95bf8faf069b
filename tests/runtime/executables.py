"""Graphs given as text, compiled for this machine and loaded."""

from __future__ import annotations

import functools

from cache.artifacts import Found
from cache.memory import MemoryStore
from fusec.codegen.isa import host_target
from fusec.ir.text import parse_graph
from fusec.options import Options
from fusec.pipeline import compile_local
from fusec.runtime.loader import load
from fusec.runtime.program import ProgramRunner
from fusec.trace import Recorder

_STORE = MemoryStore(64 << 20)


@functools.cache
def artifact(text: str) -> Found:
    """The artifact of a graph."""
    options = Options(progress=False)
    return compile_local(parse_graph(text), host_target(), options, _STORE, recorder=Recorder())


def executable(text: str) -> ProgramRunner:
    """A callable of a graph, loaded anew."""
    return load(artifact(text), recorder=Recorder())
