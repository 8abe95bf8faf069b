"""Graphs as a GPU's groups, and the process of its own that Triton's interpreter needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fusec.codegen.triton_tile import FOLDED, Dim, Tile, extent
from fusec.codegen.triton_variants import tiles
from fusec.ir.kernel import KernelLoop
from fusec.ir.text import parse_graph
from fusec.lower.lowering import lower
from fusec.schedule.cost import GPU
from fusec.schedule.dissolve import dissolve
from fusec.schedule.groups import Schedule
from fusec.schedule.search import schedule
from fusec.schedule.single import drop_single_folds
from fusec.schedule.split_folds import split_folds


@dataclass(frozen=True)
class Case:
    """A graph, the values of its sizes, and the numbers of the variants to try.

    block: rows are walked in blocks of this size (0: as the variants say); times: launches that
    are made one; host: the program runs as the host's plan says, batches and memory; asserts: some
    kernel asserts that an index is in range, and it is not; equal: float32 results are eager's bit
    by bit; near: the variants are those a step away from the first one; narrow: what leads to more
    than this is computed in 64 bits, and something is; random: instead of a graph, arguments of
    `tests.codegen.triton_philox.program`.
    """

    name: str
    text: str
    picks: tuple[int, ...] = (0,)
    block: int = 0
    times: int = 1
    host: bool = False
    asserts: bool = False
    equal: bool = False
    near: bool = False
    narrow: int = 0
    random: tuple[int, ...] = ()
    sizes: dict[str, int] = field(default_factory=dict)


def grouped(text: str) -> Schedule:
    """A graph, given as text, scheduled for a GPU."""
    loops = dissolve(drop_single_folds(lower(parse_graph(text))))
    return schedule(split_folds(loops, GPU), machine=GPU)


def walked(block: int, loop: KernelLoop) -> list[Tile]:
    """Tiles that walk along rows in blocks, or from row to row, where there are rows."""
    if not loop.folded or loop.carried is not None:
        return tiles(loop)
    row = Dim(FOLDED, loop.inner, block, looped=True)
    several = Tile((Dim("x", loop.kept, 4), row)) if loop.kept else Tile((row,), warps=8)
    count = extent(loop.inner)
    if count is None or not loop.kept:
        return [Tile((row,), loop.kept), several]
    whole = Dim(FOLDED, loop.inner, 1 << (count - 1).bit_length())
    return [Tile((row,), loop.kept), several, Tile((whole,), loop.kept, stages=3, walkers=1)]


def run_cases(cases: Iterable[Case], folder: Path) -> dict[str, list[str]]:
    """What is wrong with the kernels of each case, by its name."""
    lines = [json.dumps(asdict(case)) for case in cases]
    done = subprocess.run(
        [sys.executable, "-m", "tests.codegen.triton_interpreter", str(folder)],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[2],
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(lines), done.stderr[-4000:]
    found: dict[str, list[str]] = {}
    for answer in answers:
        found.setdefault(answer["name"], []).extend(answer["wrong"])
    return found
