"""The dashboard of training jobs that report metrics."""

from __future__ import annotations

from typing import Final

from deploy.observability.panels import Board, Panel, rates_by, share_of

CLIENTS: Final = Board(
    "fusec-clients",
    "fusec: training jobs",
    "What the jobs that report metrics say: FUSEC_METRICS_DIR or FUSEC_METRICS_PUSH.",
    (
        (
            "Graphs",
            (
                Panel("Graphs by source", "ops", rates_by("fusec_client_graphs_total", "source")),
                Panel(
                    "Part that fell back",
                    "percentunit",
                    share_of(
                        'fusec_client_graphs_total{source=~"local|eager"}',
                        'fusec_client_graphs_total{source=~"stored|farm"}',
                        legend="compiled in the job, or eager",
                    ),
                ),
                Panel("Look-ups", "ops", rates_by("fusec_client_lookups_total", "outcome")),
                Panel(
                    "Seconds of starts, by stage",
                    "short",
                    rates_by("fusec_client_stage_seconds_total", "stage"),
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
                Panel("Requests", "reqps", rates_by("fusec_client_exchanges_total", "event")),
                Panel("Bytes", "Bps", rates_by("fusec_client_bytes_total", "direction")),
                Panel(
                    "Rejected artifacts", "ops", rates_by("fusec_client_rejected_total", "reason")
                ),
                Panel(
                    "Faults and compiles",
                    "ops",
                    rates_by(
                        "fusec_client_events_total"
                        '{event=~"remote_errors|kernel_compiles|fallback_calls|store_full|swaps"}',
                        "event",
                    ),
                ),
            ),
        ),
    ),
)
