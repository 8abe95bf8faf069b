"""Metrics of the farm for Prometheus, in a registry that the caller owns."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class FarmMetrics:
    """What a farm counts. Labels are of small fixed sets; none holds a fingerprint."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.stage_seconds = Histogram(
            "fusec_farm_stage_seconds",
            "Time a job spent in a stage: queue, plan, lookup, build, assemble, publish, total.",
            ("stage",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.kernel_seconds = Histogram(
            "fusec_farm_kernel_seconds",
            "Time from a kernel's submission to its binary, with the wait for a worker.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.submits = Counter(
            "fusec_farm_submits",
            "Submits: queued, merged, known, stored (the artifact exists), full, refused, front.",
            ("outcome",),
            registry=registry,
        )
        self.jobs = Counter("fusec_farm_jobs", "Jobs that ended.", ("state",), registry=registry)
        self.kernels = Counter(
            "fusec_farm_kernels",
            "Kernels that jobs needed: stored (hit), built (miss), shared (another job's build).",
            ("source",),
            registry=registry,
        )
        self.merges = Counter(
            "fusec_farm_inflight_merges",
            "Submits that joined a job in flight.",
            registry=registry,
        )
        self.errors = Counter(
            "fusec_farm_errors", "Failures of tasks and jobs.", ("kind",), registry=registry
        )
        self.retries = Counter(
            "fusec_farm_retries", "Tasks tried again.", ("kind",), registry=registry
        )
        self.seconds_saved = Counter(
            "fusec_farm_seconds_saved",
            "Estimate of compile seconds that merges and stored kernels made unnecessary.",
            registry=registry,
        )
        self.queued = Gauge("fusec_farm_queue_length", "Jobs that wait.", registry=registry)
        self.running = Gauge("fusec_farm_running_jobs", "Jobs in work.", registry=registry)
        self.workers = Gauge("fusec_farm_workers", "Tasks that can run at once.", registry=registry)

    def render(self) -> bytes:
        """All metrics as text."""
        return generate_latest(self.registry)


class Mean:
    """A running mean in constant memory; `value` is 0 before the first sample."""

    def __init__(self) -> None:
        self.count = 0
        self.value = 0.0

    def add(self, sample: float) -> None:
        self.count += 1
        self.value += (sample - self.value) / self.count
