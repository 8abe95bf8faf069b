"""How time is taken: calls in turn in one process, medians, spread, and ratios round by round.

Machines are shared and their clocks drift, so a time alone says little. Every round times each call
once, in an order that rotates; a ratio is taken inside a round and the median over the rounds is
quoted, so that a slow second hurts both sides alike.
"""

import gc
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Call = Callable[[], object]


def processor_seconds() -> float:
    """Of this process and of the children that it has waited for, compilers above all."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


# Name -> seconds so far, by the wall or by the processor's account.
CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": processor_seconds}


@dataclass(frozen=True)
class Times:
    """Seconds of one call, a sample a round, in the order of the rounds."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Distance between the quartiles over the median: 0.1 means the middle half within 10 %."""
        low, high = quartiles(self.samples)
        return (high - low) / self.median

    def to_json(self) -> dict[str, object]:
        """Median, fastest and quartiles in seconds, the spread and the number of samples."""
        low, high = quartiles(self.samples)
        return {
            "median_s": self.median,
            "min_s": min(self.samples),
            "quartiles_s": [low, high],
            "spread": self.spread,
            "samples": len(self.samples),
        }


@dataclass(frozen=True)
class Ratio:
    """How many times as fast as a peer: above 1 is faster. low, high: quartiles over the rounds."""

    median: float
    low: float
    high: float


def quartiles(samples: Sequence[float]) -> tuple[float, float]:
    """First and third quartile; of one sample, itself twice."""
    if len(samples) < 2:
        return samples[0], samples[0]
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, high


def interleave(
    calls: Mapping[str, Call],
    *,
    seconds: float,
    warmup: int = 2,
    min_rounds: int = 5,
    max_rounds: int = 1000,
    inner: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    settle: Callable[[], object] | None = None,
) -> dict[str, Times]:
    """Time the calls in turn.

    seconds: to spend in all, warm-up apart. At least `min_rounds` rounds are run, whatever they
    take. inner: calls a sample, for calls too short to time alone; the sample is one call's mean.
    The result of a call is dropped before the next starts, so that no side finds the memory of
    another still in use. settle: called before each sample, untimed. The collector of garbage is
    off meanwhile.
    """
    for call in calls.values():
        for _ in range(warmup):
            call()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        end = clock() + seconds
        rounds = 0
        while rounds < min_rounds or (rounds < max_rounds and clock() < end):
            for name in order:
                call = calls[name]
                if settle is not None:
                    settle()
                start = clock()
                for _ in range(inner):
                    call()
                samples[name].append((clock() - start) / inner)
            order.append(order.pop(0))
            rounds += 1
    finally:
        if collecting:
            gc.enable()
    return {name: Times(tuple(values)) for name, values in samples.items()}


def speedup(ours: Times, peer: Times) -> Ratio:
    """peer / ours, round by round. Both must come from one `interleave`."""
    ratios = [b / a for a, b in zip(ours.samples, peer.samples, strict=True)]
    return Ratio(statistics.median(ratios), *quartiles(ratios))


def against(ours: str, times: Mapping[str, Times]) -> dict[str, dict[str, float]]:
    """For the JSON: the speedup of one side over each other; empty when it was not timed."""
    if ours not in times:
        return {}
    return {
        side: dict(vars(speedup(times[ours], other)))
        for side, other in times.items()
        if side != ours
    }


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers; raises StatisticsError for none."""
    return statistics.geometric_mean(values)
