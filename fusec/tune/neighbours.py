"""Variants one step away from another one: the moves of a coordinate descent, and its steps.

A step changes one number of a variant that its text leaves open: its warps, the size of a block, or
the stages of its loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final

from fusec.codegen.gpu_source import Variant
from fusec.codegen.triton_tile import STAGES
from fusec.tune.problem import Problem

STEPS: Final = 4
"""Most steps of a descent."""
_MOST_WARPS: Final = 32


def neighbours(variant: Variant, tried: Collection[Variant]) -> tuple[Variant, ...]:
    """The variants with twice or half the warps or a block, or a stage more or less, that were not
    tried. What a variant says that its text is right for is kept to."""
    return tuple(step for step in _steps(variant) if step not in tried)


def _steps(variant: Variant) -> Iterator[Variant]:
    for warps in (variant.warps * 2, variant.warps // 2):
        if 1 <= warps <= _MOST_WARPS:
            yield replace(variant, warps=warps)
    pairs = zip(variant.constants, variant.ranges, strict=False)
    for place, ((name, value), (least, greatest)) in enumerate(pairs):
        steps = (value + 1, value - 1) if name == STAGES else (value * 2, value // 2)
        for number in steps:
            if least <= number <= greatest:
                constants = list(variant.constants)
                constants[place] = (name, number)
                yield replace(variant, constants=tuple(constants))


def next_step(history: Sequence[Problem], best: Variant) -> Problem | None:
    """The next race of a descent: the best variant so far, which is its first one, against those of
    its neighbours that were not tried; None where all were.

    history: the problems of the races so far, the first of which is the kernel itself.
    """
    tried = {variant for problem in history for variant in problem.source.variants}
    near = neighbours(best, tried)
    if not near:
        return None
    return replace(history[0], source=replace(history[0].source, variants=(best, *near)))
