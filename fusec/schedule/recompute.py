"""Compute a value again where it is used, instead of storing it.

    b1[i] = sin(b0[i]);  kernel A stores b1, kernel B reads b1   →   kernel B computes sin(b0[i])

The producer's value is written out in the reader; a producer that nobody reads any more is dropped
from the program and the steps are numbered afresh.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fusec.ir import loop as lp
from fusec.ir.loop import BufferView, Compute, Load, LoopProgram, Scalar, external_reads
from fusec.ir.written_out import written_out
from fusec.schedule.groups import Group


def with_value(reader: Compute, producer: Compute) -> Compute:
    """The reader with the producer's value in place of loads of its buffer."""

    def leaf(node: Scalar) -> Scalar | None:
        if not isinstance(node, Load) or node.buffer != producer.output:
            return None
        return written_out(node, producer.axes, producer.value)

    return replace(
        reader,
        value=lp.rewrite(reader.value, leaf, {}),
        origin=tuple(dict.fromkeys((*producer.origin, *reader.origin))),
    )


def recompute(
    program: LoopProgram, groups: list[Group], pairs: Iterable[tuple[int, int]]
) -> tuple[LoopProgram, list[Group], dict[int, int]]:
    """Apply (producer, reader) pairs of step numbers, in program order of the readers; a producer
    that another one brings in comes after it.

    Returns the program, its groups, and the new number of each step that is still there.
    """
    steps = list(program.steps)
    for producer, reader in sorted(pairs, key=lambda pair: (pair[1], -pair[0])):
        made, used = steps[producer], steps[reader]
        assert isinstance(made, Compute)
        assert isinstance(used, Compute)
        steps[reader] = with_value(used, made)
    live = _live(program, steps)
    kept = [n for n, step in enumerate(steps) if not isinstance(step, Compute) or n in live]
    numbers = {old: new for new, old in enumerate(kept)}
    moved = [
        Group(
            tuple(numbers[m] for m in g.members if m in numbers),
            frozenset(numbers[m] for m in g.outer if m in numbers),
            g.space,
        )
        for g in groups
    ]
    return replace(program, steps=tuple(steps[n] for n in kept)), moved, numbers


def _live(program: LoopProgram, steps: list[lp.Step]) -> set[int]:
    """Computations whose result something reads."""
    wanted: set[int] = {o.buffer for o in program.outputs if isinstance(o, BufferView)}
    live: set[int] = set()
    for number in range(len(steps) - 1, -1, -1):
        step = steps[number]
        if isinstance(step, Compute):
            effect = lp.overwrites_input(program.buffers, step.output)
            if step.output in wanted or effect:
                live.add(number)
                wanted.update(load.buffer for load in lp.loads(step.value))
        else:
            wanted.update(view.buffer for view in external_reads(step))
    return live
