"""The partition whose kernels take less time is taken, region by region."""

from __future__ import annotations

from collections import Counter

from fusec.tune.partitions import Timed, fastest

MS = {"a": 1.0, "b": 2.0, "ab": 2.5, "c": 1.0, "c1": 0.5, "c2": 0.495, "d": 4.0, "d1": 3.0}


def made(*kernels: str, unknown: str = "") -> Timed[str]:
    times = {k: MS[k] for k in kernels if k != unknown}
    return Timed(" ".join(kernels), Counter(kernels), times)


def program(picks: tuple[int, ...]) -> Timed[str]:
    """Three regions: two kernels or one, once; one kernel in three forms, twice; two forms."""
    first = (("a", "b"), ("ab",))[picks[0]]
    second = (("c", "c"), ("c1", "c1"), ("c2", "c2"))[picks[1]]
    third = (("d",), ("d1",))[picks[2]]
    return made(*first, *second, *third)


def test_each_region_takes_its_fastest_partition() -> None:
    asked: list[tuple[int, ...]] = []

    def make(picks: tuple[int, ...]) -> Timed[str]:
        asked.append(picks)
        return program(picks)

    best = fastest(program((0, 0, 0)), (2, 3, 2), make)
    assert best.made == "ab c1 c1 d1"  # c2 is faster by chance at most
    assert asked == [(1, 0, 0), (1, 1, 0), (1, 2, 0), (1, 1, 1)]


def test_the_first_partition_stays_where_it_is_as_fast() -> None:
    assert made("a", "b").faster_than(made("ab")) is False
    assert made("ab").faster_than(made("a", "b"))
    assert not made("a").faster_than(made("a"))


def test_what_was_not_timed_decides_nothing() -> None:
    assert not made("ab", unknown="ab").faster_than(made("a", "b"))
    assert not made("ab").faster_than(made("a", "b", unknown="a"))
    assert made("ab", "d", unknown="d").faster_than(made("a", "b", "d", unknown="d"))


def test_the_best_so_far_counts_when_the_time_is_up() -> None:
    def make(picks: tuple[int, ...]) -> Timed[str] | None:
        return program(picks) if picks[1] == 0 else None

    assert fastest(program((0, 0, 0)), (2, 3, 2), make).made == "ab c c d"
