"""Numbers for a person."""

import pytest

from cache.quantities import duration, percent, size


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 << 30, "3.0 GiB"),
        (-2048, "-2.0 KiB"),
        (1 << 60, "1048576.0 TiB"),
    ],
)
def test_sizes(count, shown):
    assert size(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.04, "0.0 s"), (9.96, "10 s"), (120.0, "2 min"), (7200.0, "2.0 h")]
)
def test_durations(seconds, shown):
    assert duration(seconds) == shown


def test_shares():
    assert (percent(None), percent(0.125)) == ("–", "12%")
