"""The dashboard of the compile farm."""

from __future__ import annotations

from typing import Final

from deploy.observability.panels import (
    Board,
    Panel,
    mean_by,
    quantiles_by,
    rate_by,
    rate_of,
    rates_by,
)

_GPUS: Final = "only where the farm has workers with GPUs"
_QUALITY: Final = (
    Panel(
        "Artifacts compared with eager",
        "ops",
        rates_by("fusec_farm_verifications_total", "outcome"),
        "One that fails is not published.",
    ),
    Panel("Published, by tier", "ops", rates_by("fusec_farm_published_total", "tier")),
    Panel("Tuned artifacts", "ops", rates_by("fusec_farm_tuned_total", "outcome"), empty=_GPUS),
    Panel(
        "Kernels of graphs being tuned",
        "ops",
        rates_by("fusec_farm_tuned_kernels_total", "source"),
        empty=_GPUS,
    ),
    Panel(
        "GPUs leased for timing",
        "short",
        (
            (rate_by("fusec_farm_gpu_busy_seconds_total", "gpu"), "busy, {{gpu}}"),
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
            *rate_of("fusec_farm_takeovers_total", "taken over"),
            *rate_of("fusec_farm_fenced_total", "given up"),
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
                Panel(
                    "Submits by outcome", "reqps", rates_by("fusec_farm_submits_total", "outcome")
                ),
                Panel(
                    "Submits merged in flight",
                    "reqps",
                    rate_of("fusec_farm_inflight_merges_total", "merged"),
                    "A thousand ranks that submit one graph are one compile.",
                ),
                Panel("Met a limit", "reqps", rates_by("fusec_farm_refused_total", "limit")),
            ),
        ),
        (
            "Compiles",
            (
                Panel(
                    "From submit to artifact",
                    "s",
                    quantiles_by('fusec_farm_stage_seconds_bucket{stage="total"}', "target"),
                    "The budget of the alert is 5 minutes.",
                ),
                Panel(
                    "Mean time of a stage",
                    "s",
                    mean_by("fusec_farm_stage_seconds", "stage"),
                ),
                Panel(
                    "Time of a kernel",
                    "s",
                    quantiles_by("fusec_farm_kernel_seconds_bucket", "target"),
                    "With the wait for a worker.",
                ),
                Panel("Kernels by source", "ops", rates_by("fusec_farm_kernels_total", "source")),
            ),
        ),
        (
            "Outcome",
            (
                Panel("Jobs that ended", "ops", rates_by("fusec_farm_jobs_total", "state")),
                Panel("Failures by kind", "ops", rates_by("fusec_farm_errors_total", "kind")),
                Panel("Tried again, by kind", "ops", rates_by("fusec_farm_retries_total", "kind")),
                Panel(
                    "Compile seconds saved in a second",
                    "short",
                    rate_of("fusec_farm_seconds_saved_total", "saved"),
                    "An estimate: as many processors are not compiling what is there already.",
                ),
            ),
        ),
        ("Verification and tuning", _QUALITY),
        ("Gateways", _GATEWAYS),
    ),
)
