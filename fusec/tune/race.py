"""Who is still in the race: decisions over samples, in rounds in which each candidate runs once.

Rounds are interleaved, so that what disturbs the machine for a while disturbs all candidates. Of
each the median counts; a candidate leaves as soon as even its best sample is clearly slower than
the leader's median, by less and less as the rounds go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

Samples = Mapping[int, Sequence[float]]
"""Times by candidate, in any unit."""

ROUNDS: Final = 9
_SLACK: Final = (1.2, 0.15, 0.06, 0.03)  # after so many rounds; the last for all that follow
_TIE: Final = 0.01


def still_racing(samples: Samples) -> list[int]:
    """The candidates to run once more, the leader among them; none when the race is decided.

    A candidate with fewer samples than another one has left the race before.
    """
    rounds = max(len(times) for times in samples.values())
    racing = [number for number, times in samples.items() if len(times) == rounds]
    if rounds == 0:
        return racing
    best = min(median(samples[number]) for number in racing)
    limit = best * (1.0 + _SLACK[min(rounds, len(_SLACK)) - 1])
    left = [number for number in racing if min(samples[number]) <= limit]
    return [] if rounds >= ROUNDS or len(left) == 1 else left


def winner(samples: Samples) -> int:
    """The candidate of the least median; of those within a hundredth of it the first by number,
    which is the cost model's preference."""
    medians = {number: median(times) for number, times in samples.items() if times}
    best = min(medians.values())
    return min(number for number, time in medians.items() if time <= best * (1.0 + _TIE))


def margin(samples: Samples, chosen: int) -> float:
    """By what part of the winner's time the next one is slower; 0.0 where there is no other."""
    medians = {number: median(times) for number, times in samples.items() if times}
    others = [time for number, time in medians.items() if number != chosen]
    return min(others) / medians[chosen] - 1.0 if others else 0.0
