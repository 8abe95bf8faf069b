"""Declaring series for Prometheus: what each means, and the closed set of values of each label.

A process makes its metrics through a `Catalogue`, so that one list of them exists, from which
`docs/metrics.md` is written, and no label can grow without bound: a value that was not declared is
counted under `other`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar, overload

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

OTHER: Final = "other"
"""What a label's value that nobody declared is counted as."""
MADE_AHEAD: Final = 64
"""Up to so many combinations of values, a counter or histogram shows all of them from the start, at
0: a rate over a series that begins at 1 would miss the first event."""

Labels = Mapping[str, Iterable[str]]
"""The name of each label and the values that it can have."""


@dataclass(frozen=True, slots=True)
class Series:
    """A declared family of series. ``name`` is as it is scraped: a counter's ends in _total.

    ``kind`` is counter, gauge or histogram. ``buckets`` are a histogram's upper bounds.
    """

    name: str
    kind: str
    help: str
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def unit(self) -> str:
        """seconds, bytes, or empty for a plain number; by convention it is part of the name."""
        parts = self.name.split("_")
        return next((unit for unit in ("seconds", "bytes") if unit in parts), "")

    def sample_names(self) -> tuple[str, ...]:
        """The names under which its samples are scraped."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


M = TypeVar("M", bound=MetricWrapperBase)


class Bounded(Generic[M]):
    """A metric with labels whose values come from closed sets."""

    def __init__(self, parent: M, labels: tuple[tuple[str, tuple[str, ...]], ...]) -> None:
        self._parent = parent
        self._allowed = tuple(frozenset(values) for _, values in labels)

    def labels(self, *values: str) -> M:
        """The child for these values, in the order of the labels' declaration."""
        kept = (
            value if value in allowed else OTHER
            for value, allowed in zip(values, self._allowed, strict=True)
        )
        return self._parent.labels(*kept)


def _made_ahead(parent: M, series: Series) -> Bounded[M]:
    """The metric with all its children, where they are few."""
    choices = [values for _, values in series.labels]
    if math.prod(map(len, choices)) <= MADE_AHEAD:
        for values in itertools.product(*choices):
            parent.labels(*values)
    return Bounded(parent, series.labels)


class Catalogue:
    """Makes the metrics of a process in `registry`, and remembers what it made."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.series: list[Series] = []

    @overload
    def counter(self, name: str, help: str) -> Counter: ...
    @overload
    def counter(self, name: str, help: str, labels: Labels) -> Bounded[Counter]: ...
    def counter(
        self, name: str, help: str, labels: Labels | None = None
    ) -> Counter | Bounded[Counter]:
        """A counter; `name` is without the _total that it is scraped with."""
        series = self.declare(f"{name}_total", "counter", help, labels)
        made = Counter(name, help, [label for label, _ in series.labels], registry=self.registry)
        if labels is None:
            return made
        return _made_ahead(made, series)

    @overload
    def gauge(self, name: str, help: str) -> Gauge: ...
    @overload
    def gauge(self, name: str, help: str, labels: Labels) -> Bounded[Gauge]: ...
    def gauge(self, name: str, help: str, labels: Labels | None = None) -> Gauge | Bounded[Gauge]:
        """A gauge."""
        series = self.declare(name, "gauge", help, labels)
        made = Gauge(name, help, [label for label, _ in series.labels], registry=self.registry)
        return made if labels is None else Bounded(made, series.labels)

    @overload
    def histogram(self, name: str, help: str, *, buckets: tuple[float, ...]) -> Histogram: ...
    @overload
    def histogram(
        self, name: str, help: str, labels: Labels, *, buckets: tuple[float, ...]
    ) -> Bounded[Histogram]: ...
    def histogram(
        self, name: str, help: str, labels: Labels | None = None, *, buckets: tuple[float, ...]
    ) -> Histogram | Bounded[Histogram]:
        """A histogram. `buckets`: upper bounds in the unit of the name, the last one below
        infinity."""
        series = self.declare(name, "histogram", help, labels, buckets)
        made = Histogram(
            name,
            help,
            [label for label, _ in series.labels],
            buckets=buckets,
            registry=self.registry,
        )
        return made if labels is None else _made_ahead(made, series)

    def watched(self, name: str, help: str, value: Callable[[], float]) -> None:
        """A gauge whose value is asked for at each scrape."""
        self.gauge(name, help).set_function(value)

    def counted(
        self, name: str, help: str, read: Callable[[], Mapping[str, float]], labels: Labels
    ) -> None:
        """A counter with one label that something else counts: `read` gives it by value."""
        series = self.declare(f"{name}_total", "counter", help, labels)
        self.registry.register(_Counted(name, series, read))

    def declare(
        self,
        name: str,
        kind: str,
        help: str,
        labels: Labels | None = None,
        buckets: tuple[float, ...] = (),
    ) -> Series:
        """List a family that a collector of its own gives out."""
        closed = tuple((label, tuple(values)) for label, values in (labels or {}).items())
        series = Series(name, kind, help, closed, buckets)
        self.series.append(series)
        return series


class _Counted(Collector):
    def __init__(self, name: str, series: Series, read: Callable[[], Mapping[str, float]]) -> None:
        self._name = name
        self._series = series
        self._read = read

    def collect(self) -> Iterator[CounterMetricFamily]:
        ((label, values),) = self._series.labels
        family = CounterMetricFamily(self._name, self._series.help, labels=(label,))
        counts = dict.fromkeys(values, 0.0)
        for value, count in self._read().items():
            kept = value if value in values else OTHER
            counts[kept] = counts.get(kept, 0.0) + count
        for value, count in counts.items():
            family.add_metric((value,), count)
        yield family
