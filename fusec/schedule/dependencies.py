"""Which step must come after which: data, and overwriting of inputs after their last read."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.ir import loop as lp
from fusec.ir.loop import Compute, LoopProgram, external_reads


@dataclass(frozen=True, slots=True)
class Dependencies:
    """``before[i]``: steps that must be finished before step i; ``writer``: buffer → step;
    ``reads[i]``: buffers that step i reads; ``readers``: buffer → steps that read it."""

    before: tuple[frozenset[int], ...]
    writer: dict[int, int]
    reads: tuple[frozenset[int], ...]
    readers: dict[int, list[int]]


def find_dependencies(program: LoopProgram) -> Dependencies:
    """See `Dependencies`. Linear in the size of the program."""
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    overwriter: dict[int, int] = {}  # memory of an input → the last step that overwrote it
    reads: list[frozenset[int]] = []
    before: list[frozenset[int]] = []
    last_effect: int | None = None
    for number, step in enumerate(program.steps):
        if isinstance(step, Compute):
            read = frozenset(load.buffer for load in lp.loads(step.value))
            outputs: tuple[int | None, ...] = (step.output,)
        else:
            read = frozenset(view.buffer for view in external_reads(step))
            outputs = step.outputs
        first = {writer[b] for b in read if b in writer}
        first.update(overwriter[m] for b in read if (m := _memory(program, b)) in overwriter)
        for output in outputs:
            if output is None:
                continue
            writer[output] = number
            buffer = program.buffers[output]
            if buffer.kind == "alias":
                # Everyone who reads the old value, or wrote the memory before, comes first.
                first.update(readers.get(buffer.base, ()))
        if not isinstance(step, Compute) and step.reason != "library":
            # Calls without a rule may draw random numbers: they keep their order.
            if last_effect is not None:
                first.add(last_effect)
            last_effect = number
        for b in read:
            readers.setdefault(_memory(program, b), []).append(number)
        for output in outputs:
            if output is not None and program.buffers[output].kind == "alias":
                readers.setdefault(program.buffers[output].base, []).append(number)
                overwriter[program.buffers[output].base] = number
        first.discard(number)
        before.append(frozenset(first))
        reads.append(read)
    by_buffer: dict[int, list[int]] = {}
    for number, read in enumerate(reads):
        for b in read:
            by_buffer.setdefault(b, []).append(number)
    return Dependencies(tuple(before), writer, tuple(reads), by_buffer)


def _memory(program: LoopProgram, buffer: int) -> int:
    found = program.buffers[buffer]
    return found.base if found.kind == "alias" else buffer
