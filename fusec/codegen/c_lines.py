"""Lines of C: blocks and loops around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """A C loop: ``for (long name = start; name < stop; name += step)``."""

    name: str
    start: str
    stop: str
    step: str = "1"


def indent(lines: Sequence[str]) -> list[str]:
    return ["  " + line for line in lines]


def while_loop(name: str, step: int, stop: str, body: Sequence[str]) -> list[str]:
    """Whole steps of a variable declared before, up to ``stop``."""
    return [f"for (; {name} + {step}L <= {stop}; {name} += {step}L) {{", *indent(body), "}"]


def wrap(ranges: Sequence[Range], body: Sequence[str]) -> list[str]:
    """Lines inside loops, the first outermost."""
    lines = ["{", *indent(body), "}"]
    for r in reversed(ranges):
        lines = [
            f"for (long {r.name} = {r.start}; {r.name} < {r.stop}; {r.name} += {r.step})",
            *indent(lines),
        ]
    return lines
