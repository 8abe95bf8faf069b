"""Regions: parts of a program whose computations can only ever be fused among themselves.

External calls cut a program into levels. Each computation is put at the latest level at which all
its readers still find its result, beside the readers it can be fused with; the connected parts of
one level are the regions. Every dependency leads to the same region or to a later level, so regions
can be partitioned one by one, and equal regions (the layers of a model) alike.
"""

from __future__ import annotations

from fusec.ir import expr as ex
from fusec.ir.loop import Compute, LoopProgram
from fusec.schedule.dependencies import Dependencies


def find_regions(program: LoopProgram, dependencies: Dependencies) -> list[list[int]]:
    """Step numbers of each region, in program order. External calls are in none."""
    level = _latest(program, dependencies, _earliest(program, dependencies))
    parent = list(range(len(program.steps)))

    def root(n: int) -> int:
        while parent[n] != n:
            parent[n] = parent[parent[n]]
            n = parent[n]
        return n

    first_reader: dict[tuple[int, int], int] = {}
    for number, step in enumerate(program.steps):
        if not isinstance(step, Compute):
            continue
        for buffer in dependencies.reads[number]:
            writer = dependencies.writer.get(buffer)
            if writer is None or not isinstance(program.steps[writer], Compute):
                pass
            elif level[writer] == level[number]:
                parent[root(number)] = root(writer)
            if all(size is ex.ONE for size in program.buffers[buffer].shape):
                continue  # reading one number together saves nothing
            other = first_reader.setdefault((buffer, level[number]), number)
            parent[root(number)] = root(other)
        for before in dependencies.before[number]:
            if isinstance(program.steps[before], Compute) and level[before] == level[number]:
                parent[root(number)] = root(before)
    regions: dict[int, list[int]] = {}
    for number, step in enumerate(program.steps):
        if isinstance(step, Compute):
            regions.setdefault(root(number), []).append(number)
    return list(regions.values())


def _earliest(program: LoopProgram, dependencies: Dependencies) -> list[int]:
    """The level of each step: how many external calls lie on the longest way to it."""
    level: list[int] = []
    for number in range(len(program.steps)):
        own = 0
        for before in dependencies.before[number]:
            external = not isinstance(program.steps[before], Compute)
            own = max(own, level[before] + external)
        level.append(own)
    return level


def _latest(program: LoopProgram, dependencies: Dependencies, earliest: list[int]) -> list[int]:
    """Computations moved to the level of their first reader; calls stay where they are."""
    level = list(earliest)
    limit: dict[int, int] = {}
    for number in range(len(program.steps) - 1, -1, -1):
        if isinstance(program.steps[number], Compute) and number in limit:
            level[number] = max(level[number], limit[number])
        for before in dependencies.before[number]:
            limit[before] = min(limit.get(before, level[number]), level[number])
    return level
