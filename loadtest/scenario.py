"""What a scenario is given, how much to do, and what it gives: what must hold, and does it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from loadtest.samples import Samples


@dataclass(frozen=True, slots=True)
class Scale:
    """How much: `ranks` of the herd, and `seconds` for what goes on for a while."""

    ranks: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Objective:
    """`value` must be at most `most`. A NaN, nothing having been measured, is not kept."""

    what: str
    value: float
    most: float
    unit: str = ""

    @property
    def seen(self) -> str:
        """The value for people."""
        if math.isnan(self.value):
            return "not measured"
        return f"{self.value:.3g} {self.unit}".strip()

    @property
    def kept(self) -> bool:
        return not math.isnan(self.value) and self.value <= self.most


@dataclass(frozen=True, slots=True)
class Outcome:
    """A scenario that ran: what it was, what must hold, and figures for people.

    parts: what was seen, by the name of the part. away: when the remote was, from and to (seconds
    since the epoch).
    """

    name: str
    about: str
    objectives: tuple[Objective, ...]
    figures: dict[str, str]
    parts: dict[str, Samples] = field(default_factory=dict)
    away: tuple[tuple[float, float], ...] = ()

    @property
    def kept(self) -> bool:
        return all(objective.kept for objective in self.objectives)


def no_errors(*samples: Samples) -> Objective:
    """The one that every scenario has. The first faults are part of the text."""
    errors = [error for each in samples for error in each.errors()]
    text = "errors" + (f" ({'; '.join(sorted(set(errors))[:3])[:300]})" if errors else "")
    return Objective(text, len(errors), 0)
