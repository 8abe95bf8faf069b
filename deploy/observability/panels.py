"""What a dashboard is made of: panels, and the forms of what they ask Prometheus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

INTERVAL: Final = "$__rate_interval"
"""Grafana's own: four times the interval of scraping, at least the panel's step."""


Queries: TypeAlias = tuple[tuple[str, str], ...]
"""Expressions of Prometheus, each with the legend of its lines."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph over time. ``unit``: Grafana's name.

    ``empty``: why it may well have nothing to show; a reason is for panels that need a part which
    not every installation has.
    """

    title: str
    unit: str
    queries: Queries
    about: str = ""
    empty: str = ""


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard: rows of panels by title."""

    name: str
    title: str
    about: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]

    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for _, panels in self.rows for panel in panels)


def rate_of(series: str, legend: str) -> Queries:
    """A rate, all in one line."""
    return ((f"sum(rate({series}[{INTERVAL}]))", legend),)


def rates_by(series: str, label: str) -> Queries:
    """A rate with a line for each value of a label."""
    return ((rate_by(series, label), f"{{{{{label}}}}}"),)


def mean_by(histogram: str, label: str) -> Queries:
    """The mean of what a histogram has seen, with a line for each value of a label."""
    seconds, count = (rate_by(f"{histogram}_{part}", label) for part in ("sum", "count"))
    return ((f"{seconds} / ({count} > 0)", f"{{{{{label}}}}}"),)


def quantiles_by(buckets: str, label: str) -> Queries:
    """Median and 99th percentile of a histogram, each with a line for each value of a label."""
    return tuple(
        (
            f"histogram_quantile({share}, {rate_by(buckets, f'{label}, le')})",
            f"p{share * 100:g} {{{{{label}}}}}",
        )
        for share in (0.5, 0.99)
    )


def share_of(part: str, *others: str, legend: str) -> Queries:
    """The part of a rate that one series has of several."""
    rates = [f"sum(rate({series}[{INTERVAL}]))" for series in (part, *others)]
    return ((f"{rates[0]} / (({' + '.join(rates)}) > 0)", legend),)


def rate_by(series: str, labels: str) -> str:
    """The expression of a rate, added up by labels."""
    return f"sum by ({labels}) (rate({series}[{INTERVAL}]))"
