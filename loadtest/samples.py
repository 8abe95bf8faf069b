"""What was seen: requests and starts of ranks, and the numbers made of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Request:
    """One answer: to whom, to what, when (seconds since the epoch), after how long; the fault."""

    tenant: str
    name: str
    at: float
    seconds: float
    error: str


@dataclass(frozen=True, slots=True)
class RankTimes:
    """One start of one rank, from its first request to its last blob; the fault, if it failed."""

    tenant: str
    begun: float
    ready: float
    error: str

    @property
    def seconds(self) -> float:
        return self.ready - self.begun


@dataclass(frozen=True, slots=True)
class Samples:
    """Everything that was seen in one part of a scenario."""

    requests: tuple[Request, ...] = ()
    ranks: tuple[RankTimes, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Samples:
        """What `loadtest.ranks` wrote."""
        body = json.loads(path.read_text())
        return cls(
            tuple(Request(*each) for each in body["requests"]),
            tuple(RankTimes(*each) for each in body["ranks"]),
        )

    def __add__(self, other: Samples) -> Samples:
        return Samples(self.requests + other.requests, self.ranks + other.ranks)

    def errors(self) -> list[str]:
        """The faults, one text for each."""
        texts = [each.error for each in self.requests] + [each.error for each in self.ranks]
        return [text for text in texts if text]

    def seconds(self, name: str) -> list[float]:
        """How long requests of a name took."""
        return [each.seconds for each in self.requests if each.name == name]


def percentile(values: Iterable[float], share: float) -> float:
    """The nearest-rank percentile; NaN of nothing. share: 0 to 1."""
    ordered: Sequence[float] = sorted(values)
    if not ordered:
        return math.nan
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]
