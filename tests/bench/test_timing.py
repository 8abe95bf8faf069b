"""How time is taken: order, medians and ratios, with a clock of our own."""

import pytest

from bench.timing import Times, against, geometric_mean, interleave, quartiles, speedup


class Clock:
    """Time that passes only when a call says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def takes(self, seconds: float, name: str, log: list[str]):
        def call() -> None:
            self.now += seconds
            log.append(name)

        return call


def test_calls_take_turns_in_an_order_that_rotates():
    clock, log = Clock(), []
    calls = {name: clock.takes(1.0, name, log) for name in "abc"}
    times = interleave(calls, seconds=0.0, warmup=1, min_rounds=3, clock=clock)
    assert "".join(log) == "abc" + "abc" + "bca" + "cab"
    assert {name: t.samples for name, t in times.items()} == dict.fromkeys("abc", (1.0,) * 3)


def test_rounds_go_on_until_the_time_is_spent():
    clock, log = Clock(), []
    times = interleave(
        {"a": clock.takes(0.5, "a", log)}, seconds=10.0, warmup=0, inner=2, clock=clock
    )
    assert len(times["a"].samples) == 10
    assert times["a"].median == 0.5


def test_a_ratio_is_taken_inside_each_round():
    """A machine that slows down by ten halfway changes both sides and not the ratio."""
    ours, peer = Times((1.0, 1.0, 10.0, 10.0)), Times((2.0, 2.0, 20.0, 20.0))
    assert speedup(ours, peer).median == 2.0
    assert against("ours", {"ours": ours, "peer": peer}) == {
        "peer": {"median": 2.0, "low": 2.0, "high": 2.0}
    }
    assert against("ours", {"peer": peer}) == {}


def test_spread_and_quartiles():
    times = Times((1.0, 2.0, 3.0, 4.0, 5.0))
    assert quartiles(times.samples) == (2.0, 4.0)
    assert times.spread == pytest.approx(2.0 / 3.0)
    assert Times((3.0,)).spread == 0.0
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
