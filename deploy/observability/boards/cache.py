"""The dashboard of the cache service."""

from __future__ import annotations

from typing import Final

from deploy.observability.panels import Board, Panel, quantiles_by, rate_of, rates_by, share_of

_LOOKED_UP: Final = 'kind=~"graph|front"'
_COPIES: Final = "only with copies of S3 on a disk (FUSEC_CACHE_DISK)"

SERVICE: Final = Board(
    "fusec-cache",
    "fusec: cache service",
    "Hits, what they cost, and the store behind them.",
    (
        (
            "Hits",
            (
                Panel(
                    "Hit ratio of graphs",
                    "percentunit",
                    share_of(
                        f"fusec_cache_hits_total{{{_LOOKED_UP}}}",
                        f"fusec_cache_misses_total{{{_LOOKED_UP}}}",
                        legend="all replicas",
                    ),
                    "Of look-ups by front and graph keys. It dips with new models and releases.",
                ),
                Panel("Hits by tier", "reqps", rates_by("fusec_cache_hits_total", "tier")),
                Panel("Misses by kind", "reqps", rates_by("fusec_cache_misses_total", "kind")),
                Panel(
                    "Hit ratio of copies on disk",
                    "percentunit",
                    share_of(
                        'fusec_cache_store_events_total{event="near_hits"}',
                        'fusec_cache_store_events_total{event="near_misses"}',
                        legend="near",
                    ),
                    empty=_COPIES,
                ),
            ),
        ),
        (
            "Requests",
            (
                Panel(
                    "Requests by route", "reqps", rates_by("fusec_cache_requests_total", "route")
                ),
                Panel(
                    "Time to answer",
                    "s",
                    quantiles_by(
                        'fusec_cache_request_seconds_bucket{route!~"compile_join|compile_poll"}',
                        "route",
                    ),
                    "Without the long polls for the farm, which wait on purpose.",
                ),
                Panel("Bytes", "Bps", rates_by("fusec_cache_bytes_total", "direction")),
                Panel(
                    "Reads merged in flight",
                    "reqps",
                    rate_of("fusec_cache_inflight_merges_total", "merged"),
                    "Many ranks that ask for one thing cost the store one read.",
                ),
            ),
        ),
        (
            "Faults",
            (
                Panel("Errors by place", "reqps", rates_by("fusec_cache_errors_total", "where")),
                Panel(
                    "Events of the store",
                    "reqps",
                    rates_by(
                        'fusec_cache_store_events_total{event!~"near_hits|near_misses"}', "event"
                    ),
                ),
                Panel(
                    "Refused signatures",
                    "reqps",
                    rates_by("fusec_cache_untrusted_writes_total", "reason"),
                ),
                Panel(
                    "Conflicts by kind", "reqps", rates_by("fusec_cache_conflicts_total", "kind")
                ),
            ),
        ),
        (
            "Store",
            (
                Panel(
                    "Time of reads",
                    "s",
                    quantiles_by("fusec_cache_store_read_seconds_bucket", "kind"),
                ),
                Panel(
                    "Memory",
                    "bytes",
                    (("sum(fusec_cache_memory_bytes)", "used"),),
                ),
                Panel(
                    "Pushed out of memory", "ops", rates_by("fusec_cache_evictions_total", "tier")
                ),
                Panel(
                    "Free part of the disk",
                    "percentunit",
                    (
                        (
                            "fusec_cache_disk_free_bytes / fusec_cache_disk_size_bytes",
                            "{{instance}}",
                        ),
                    ),
                    empty="only where the store, or copies of it, are on a disk",
                ),
                Panel("Collected", "ops", rates_by("fusec_cache_collected_total", "what")),
                Panel(
                    "Collections in an hour",
                    "short",
                    (
                        (
                            "sum by (outcome) (increase(fusec_cache_collections_total[1h]))",
                            "{{outcome}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
