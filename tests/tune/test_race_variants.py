"""A race in which something stands already, and a descent's next race: decided without a GPU, from
times that the test gives."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

from farm.quality import FusecQuality
from fusec.codegen.gpu_binary import GpuBinary
from fusec.tune.problem import Problem, problem_from_bytes, problem_to_bytes
from fusec.tune.race_variants import STANDS, Raced, race_variants
from fusec.tune.record import Record
from fusec.tune.timing import Outcome, Timer
from tests.tune.kernels import N0, problem, variant
from tests.tune.test_prune import H200, PLAIN


@dataclass
class Given:
    """A timer whose times, by a binary's image, are given. ``seen``: who raced, in order."""

    times: Mapping[bytes, float]
    seen: tuple[int, ...] = ()

    def race(self, problem: Problem, binaries: Mapping[int, GpuBinary], deadline: float) -> Outcome:
        self.seen = tuple(binaries)
        return Outcome({n: [self.times[b.image]] for n, b in binaries.items()}, {}, True)


def binary(image: bytes) -> GpuBinary:
    return replace(PLAIN, image=image, grid=(N0,))


def raced(standing_ms: float) -> tuple[Raced | str, Given]:
    timer = Given({b"old": standing_ms, b"a": 1.5, b"b": 1.0})
    outcome = race_variants(
        problem(1 << 20, variant(), variant(warps=8)),
        {0: binary(b"a"), 1: binary(b"b")},
        {},
        cast(Timer, timer),
        H200,
        time.monotonic() + 60.0,
        binary(b"old"),
    )
    return outcome, timer


def test_what_stands_stays_where_it_is_as_fast() -> None:
    for standing_ms in (0.9, 1.0, 1.009):
        outcome, timer = raced(standing_ms)
        assert outcome == STANDS
        assert len(timer.seen) == 3, "all in one race"


def test_what_is_beaten_goes_and_is_no_variant_of_the_record() -> None:
    outcome, _ = raced(1.02)
    assert isinstance(outcome, Raced)
    assert outcome.binary.image == b"b"
    assert outcome.record.variant == 1
    assert set(outcome.record.samples) == {0, 1}
    assert round(outcome.record.margin, 3) == 0.02, "over what stood"


def test_a_descent_goes_on_from_the_winner_with_what_was_not_tried() -> None:
    first = problem(1 << 20, variant(warps=4), variant(warps=8))
    steps = FusecQuality()
    history = [problem_to_bytes(first)]

    def step(winner: int) -> list[tuple[int, int]]:
        record = Record(winner, 0, (), {winner: (1.0,)}, 0.0, {})
        made, count = steps.step(history, record.to_bytes())
        if not made:
            return []
        history.append(made)
        variants = problem_from_bytes(made).source.variants
        assert len(variants) == count
        return [(v.warps, dict(v.constants)["BLOCK"]) for v in variants]

    assert step(1) == [(8, 1024), (16, 1024), (8, 2048), (8, 512)], "four warps were tried"
    assert step(1) == [(16, 1024), (32, 1024), (16, 2048), (16, 512)]
    assert step(1) == [(32, 1024), (32, 2048), (32, 512)]
    assert step(0) == [], "nothing near it is left"
