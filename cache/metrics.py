"""Metrics of the service for Prometheus, in a registry that the caller owns."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily

from cache.counters import Counters

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ServiceMetrics:
    """What a service counts. `tier` is memory or store; `kind` is a key's kind or blob."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.hits = Counter(
            "fusec_cache_hits", "Reads answered.", ("tier", "kind"), registry=registry
        )
        self.misses = Counter(
            "fusec_cache_misses", "Reads not answered.", ("kind", "reason"), registry=registry
        )
        self.errors = Counter(
            "fusec_cache_errors", "Errors, by where they arose.", ("where",), registry=registry
        )
        self.bytes = Counter(
            "fusec_cache_bytes", "Bytes of bodies, in and out.", ("direction",), registry=registry
        )
        self.merges = Counter(
            "fusec_cache_inflight_merges",
            "Reads that waited for another's read of the same thing.",
            registry=registry,
        )
        self.conflicts = Counter(
            "fusec_cache_conflicts",
            "Entries refused because another value stands.",
            ("kind",),
            registry=registry,
        )
        self.seconds = Histogram(
            "fusec_cache_request_seconds",
            "Time to answer, by route.",
            ("route",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.memory_bytes = Gauge(
            "fusec_cache_memory_bytes", "Bytes kept in memory.", registry=registry
        )
        self.requests = Counter(
            "fusec_cache_requests", "Requests, by status.", ("route", "status"), registry=registry
        )

    def watch_store(self, counters: Counters) -> None:
        """Also show a store's own counts, as fusec_cache_store_events_total{event}."""
        self.registry.register(_StoreEvents(counters))

    def render(self) -> bytes:
        """All metrics as text."""
        return generate_latest(self.registry)


class _StoreEvents:
    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(
            "fusec_cache_store_events",
            "What happened in the store: corrupt, store_full, io_errors, fill_failed.",
            labels=("event",),
        )
        for name, count in self._counters.snapshot().items():
            family.add_metric((name,), count)
        yield family
