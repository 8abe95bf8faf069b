"""Variants one step away from another one: the moves of a coordinate descent, and its steps.

A step changes the warps or the stages alone. Other numbers of a variant, as its blocks, are written
into its text, so a step along them would be another text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from fusec.codegen.gpu_source import Variant
from fusec.tune.problem import Problem

STEPS: Final = 4
"""Most steps of a descent."""
_MOST_WARPS: Final = 32
_MOST_STAGES: Final = 5


def neighbours(variant: Variant, tried: Collection[Variant]) -> tuple[Variant, ...]:
    """The variants with twice or half the warps, or a stage more or less, that were not tried."""
    steps = (
        *(replace(variant, warps=w) for w in (variant.warps * 2, variant.warps // 2)),
        *(replace(variant, stages=s) for s in (variant.stages + 1, variant.stages - 1)),
    )
    return tuple(
        step
        for step in steps
        if 1 <= step.warps <= _MOST_WARPS and 1 <= step.stages <= _MOST_STAGES and step not in tried
    )


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
