"""The panels of the dashboards: what each asks Prometheus, and when its answer may be empty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

INTERVAL: Final = "$__rate_interval"
"""Grafana's own: four times the interval of scraping, at least the panel's step."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph over time. ``queries``: expression and legend of each. ``unit``: Grafana's name.

    ``empty``: why it may well have nothing to show; a reason is for panels that need a part which
    not every installation has.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
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


def _rate(series: str, by: str) -> str:
    return f"sum by ({by}) (rate({series}[{INTERVAL}]))"


def _mean(histogram: str, by: str) -> str:
    return f"{_rate(f'{histogram}_sum', by)} / ({_rate(f'{histogram}_count', by)} > 0)"


def _quantile(share: float, series: str, by: str) -> str:
    return f"histogram_quantile({share}, {_rate(series, f'{by}, le')})"


def _by(series: str, label: str) -> tuple[tuple[str, str], ...]:
    """A rate with a line for each value of a label."""
    return ((_rate(series, label), f"{{{{{label}}}}}"),)


def _share(part: str, *others: str) -> str:
    """The part of a rate that one series has of several."""
    rates = [f"sum(rate({series}[{INTERVAL}]))" for series in (part, *others)]
    return f"{rates[0]} / (({' + '.join(rates)}) > 0)"


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
                    (
                        (
                            _share(
                                f"fusec_cache_hits_total{{{_LOOKED_UP}}}",
                                f"fusec_cache_misses_total{{{_LOOKED_UP}}}",
                            ),
                            "all replicas",
                        ),
                    ),
                    "Of look-ups by front and graph keys. It dips with new models and releases.",
                ),
                Panel("Hits by tier", "reqps", _by("fusec_cache_hits_total", "tier")),
                Panel("Misses by kind", "reqps", _by("fusec_cache_misses_total", "kind")),
                Panel(
                    "Hit ratio of copies on disk",
                    "percentunit",
                    (
                        (
                            _share(
                                'fusec_cache_store_events_total{event="near_hits"}',
                                'fusec_cache_store_events_total{event="near_misses"}',
                            ),
                            "near",
                        ),
                    ),
                    empty=_COPIES,
                ),
            ),
        ),
        (
            "Requests",
            (
                Panel("Requests by route", "reqps", _by("fusec_cache_requests_total", "route")),
                Panel(
                    "Time to answer",
                    "s",
                    tuple(
                        (
                            _quantile(
                                share,
                                "fusec_cache_request_seconds_bucket"
                                '{route!~"compile_join|compile_poll"}',
                                "route",
                            ),
                            f"p{share * 100:g} {{{{route}}}}",
                        )
                        for share in (0.5, 0.99)
                    ),
                    "Without the long polls for the farm, which wait on purpose.",
                ),
                Panel("Bytes", "Bps", _by("fusec_cache_bytes_total", "direction")),
                Panel(
                    "Reads merged in flight",
                    "reqps",
                    (
                        (
                            f"sum(rate(fusec_cache_inflight_merges_total[{INTERVAL}]))",
                            "merged",
                        ),
                    ),
                    "Many ranks that ask for one thing cost the store one read.",
                ),
            ),
        ),
        (
            "Faults",
            (
                Panel("Errors by place", "reqps", _by("fusec_cache_errors_total", "where")),
                Panel(
                    "Events of the store",
                    "reqps",
                    _by('fusec_cache_store_events_total{event!~"near_hits|near_misses"}', "event"),
                ),
                Panel(
                    "Refused signatures",
                    "reqps",
                    _by("fusec_cache_untrusted_writes_total", "reason"),
                ),
                Panel("Conflicts by kind", "reqps", _by("fusec_cache_conflicts_total", "kind")),
            ),
        ),
        (
            "Store",
            (
                Panel(
                    "Time of reads",
                    "s",
                    tuple(
                        (
                            _quantile(share, "fusec_cache_store_read_seconds_bucket", "kind"),
                            f"p{share * 100:g} {{{{kind}}}}",
                        )
                        for share in (0.5, 0.99)
                    ),
                ),
                Panel(
                    "Memory",
                    "bytes",
                    (("sum(fusec_cache_memory_bytes)", "used"),),
                ),
                Panel("Pushed out of memory", "ops", _by("fusec_cache_evictions_total", "tier")),
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
                Panel("Collected", "ops", _by("fusec_cache_collected_total", "what")),
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

_GPUS: Final = "only where the farm has workers with GPUs"
_QUALITY: Final = (
    Panel(
        "Artifacts compared with eager",
        "ops",
        _by("fusec_farm_verifications_total", "outcome"),
        "One that fails is not published.",
    ),
    Panel("Published, by tier", "ops", _by("fusec_farm_published_total", "tier")),
    Panel("Tuned artifacts", "ops", _by("fusec_farm_tuned_total", "outcome"), empty=_GPUS),
    Panel(
        "Kernels of graphs being tuned",
        "ops",
        _by("fusec_farm_tuned_kernels_total", "source"),
        empty=_GPUS,
    ),
    Panel(
        "GPUs leased for timing",
        "short",
        (
            (_rate("fusec_farm_gpu_busy_seconds_total", "gpu"), "busy, {{gpu}}"),
            ("sum(fusec_farm_tuning_waiting)", "graphs that wait"),
        ),
        "Seconds of GPUs a second, and the graphs that wait for one.",
        empty=_GPUS,
    ),
)
_GATEWAYS: Final = (
    Panel(
        "Leases",
        "short",
        (
            ("sum by (instance) (fusec_farm_leases)", "held by {{instance}}"),
            ("sum by (instance) (fusec_farm_following)", "waited for by {{instance}}"),
        ),
        "Of jobs: each is one gateway's, whichever of them its clients ask.",
    ),
    Panel(
        "Jobs that changed hands",
        "ops",
        (
            (f"sum(rate(fusec_farm_takeovers_total[{INTERVAL}]))", "taken over"),
            (f"sum(rate(fusec_farm_fenced_total[{INTERVAL}]))", "given up"),
        ),
    ),
    Panel(
        "Cut off or draining",
        "short",
        (
            ("sum(fusec_farm_store_breaker_open)", "cut off from the cache service"),
            ("sum(fusec_farm_draining)", "draining"),
        ),
        "Gateways.",
    ),
)

FARM: Final = Board(
    "fusec-farm",
    "fusec: compile farm",
    "What waits, what is compiled, and how long it takes.",
    (
        (
            "Load",
            (
                Panel(
                    "Jobs",
                    "short",
                    (
                        ("sum by (priority) (fusec_farm_queue_length)", "waiting, {{priority}}"),
                        ("sum(fusec_farm_running_jobs)", "in work"),
                    ),
                ),
                Panel(
                    "Age of the oldest job that waits",
                    "s",
                    (("max by (priority) (fusec_farm_queue_oldest_seconds)", "{{priority}}"),),
                    "The alert is over waiting, which are jobs that a client waits for.",
                ),
                Panel(
                    "Workers",
                    "short",
                    (
                        ("sum by (worker) (fusec_farm_workers)", "{{worker}}"),
                        ("sum by (worker) (fusec_farm_tasks_running)", "busy, {{worker}}"),
                    ),
                ),
                Panel(
                    "Tasks that wait for a worker",
                    "short",
                    (
                        ("sum by (worker) (fusec_farm_tasks_waiting)", "{{worker}}"),
                        ("max by (worker) (fusec_farm_tasks_oldest_seconds)", "s, {{worker}}"),
                    ),
                    "Their number, and the age of the oldest in seconds.",
                ),
                Panel("Submits by outcome", "reqps", _by("fusec_farm_submits_total", "outcome")),
                Panel(
                    "Submits merged in flight",
                    "reqps",
                    ((f"sum(rate(fusec_farm_inflight_merges_total[{INTERVAL}]))", "merged"),),
                    "A thousand ranks that submit one graph are one compile.",
                ),
                Panel("Met a limit", "reqps", _by("fusec_farm_refused_total", "limit")),
            ),
        ),
        (
            "Compiles",
            (
                Panel(
                    "From submit to artifact",
                    "s",
                    tuple(
                        (
                            _quantile(
                                share,
                                'fusec_farm_stage_seconds_bucket{stage="total"}',
                                "target",
                            ),
                            f"p{share * 100:g} {{{{target}}}}",
                        )
                        for share in (0.5, 0.99)
                    ),
                    "The budget of the alert is 5 minutes.",
                ),
                Panel(
                    "Mean time of a stage",
                    "s",
                    (
                        (
                            _mean("fusec_farm_stage_seconds", "stage"),
                            "{{stage}}",
                        ),
                    ),
                ),
                Panel(
                    "Time of a kernel",
                    "s",
                    tuple(
                        (
                            _quantile(share, "fusec_farm_kernel_seconds_bucket", "target"),
                            f"p{share * 100:g} {{{{target}}}}",
                        )
                        for share in (0.5, 0.99)
                    ),
                    "With the wait for a worker.",
                ),
                Panel("Kernels by source", "ops", _by("fusec_farm_kernels_total", "source")),
            ),
        ),
        (
            "Outcome",
            (
                Panel("Jobs that ended", "ops", _by("fusec_farm_jobs_total", "state")),
                Panel("Failures by kind", "ops", _by("fusec_farm_errors_total", "kind")),
                Panel("Tried again, by kind", "ops", _by("fusec_farm_retries_total", "kind")),
                Panel(
                    "Compile seconds saved in a second",
                    "short",
                    ((f"sum(rate(fusec_farm_seconds_saved_total[{INTERVAL}]))", "saved"),),
                    "An estimate: as many processors are not compiling what is there already.",
                ),
            ),
        ),
        ("Verification and tuning", _QUALITY),
        ("Gateways", _GATEWAYS),
    ),
)

CLIENTS: Final = Board(
    "fusec-clients",
    "fusec: training jobs",
    "What the jobs that report metrics say: FUSEC_METRICS_DIR or FUSEC_METRICS_PUSH.",
    (
        (
            "Graphs",
            (
                Panel("Graphs by source", "ops", _by("fusec_client_graphs_total", "source")),
                Panel(
                    "Part that fell back",
                    "percentunit",
                    (
                        (
                            _share(
                                'fusec_client_graphs_total{source=~"local|eager"}',
                                'fusec_client_graphs_total{source=~"stored|farm"}',
                            ),
                            "compiled in the job, or eager",
                        ),
                    ),
                ),
                Panel("Look-ups", "ops", _by("fusec_client_lookups_total", "outcome")),
                Panel(
                    "Seconds of starts, by stage",
                    "short",
                    _by("fusec_client_stage_seconds_total", "stage"),
                    "Of all processes together, in a second.",
                ),
            ),
        ),
        (
            "Remote",
            (
                Panel(
                    "Open breakers",
                    "short",
                    (("sum(fusec_client_breaker_open)", "processes"),),
                ),
                Panel(
                    "Least delay that is left",
                    "s",
                    (("min(fusec_client_budget_seconds)", "of the budget"),),
                ),
                Panel("Requests", "reqps", _by("fusec_client_exchanges_total", "event")),
                Panel("Bytes", "Bps", _by("fusec_client_bytes_total", "direction")),
                Panel("Rejected artifacts", "ops", _by("fusec_client_rejected_total", "reason")),
                Panel(
                    "Faults and compiles",
                    "ops",
                    _by(
                        "fusec_client_events_total"
                        '{event=~"remote_errors|kernel_compiles|fallback_calls|store_full|swaps"}',
                        "event",
                    ),
                ),
            ),
        ),
    ),
)

BOARDS: Final = (SERVICE, FARM, CLIENTS)
