"""Metrics of the farm for Prometheus, in a registry that the caller owns.

Every series of the farm is declared here, with the values that its labels can have, and listed in
`docs/metrics.md` (`make docs` writes it).
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, generate_latest

from cache.series import Catalogue
from farm.quota import Full
from farm.retry import ErrorKind
from fusec.artifact.quality import Outcome, Tier
from fusec.codegen.triton_toolchain import ISAS
from fusec.remote.protocol import Priority

_SECONDS: Final = (
    0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0
)  # fmt: skip
"""From a kernel of a few lines to the longest task: `FarmConfig.task_s` is half an hour."""
STAGES: Final = (
    "queue", "plan", "lower", "schedule", "codegen", "lookup", "build", "assemble", "verify",
    "publish", "total", "verify_child", "verify_eager", "verify_artifact", "verify_compare",
)  # fmt: skip
TARGETS: Final = ("cpu", "cuda")
"""Kinds of devices; `fusec.options.Target.device`."""
SUBMITS: Final = ("queued", "merged", "known", "stored", "full", "refused", "front")
PRIORITIES: Final = tuple(priority.label for priority in Priority)
WORKERS: Final = (
    "cpu", "gpu:sm_80", "gpu:sm_86", "gpu:sm_89", "gpu:sm_90", "gpu:sm_100", "gpu:sm_103",
    "gpu:sm_120", "gpu:gfx90a", "gpu:gfx942", "gpu:gfx950",
)  # fmt: skip
"""Classes of workers without the GPU's model, which is any text of a driver's."""


def worker_label(needs: str) -> str:
    """The label of a class of workers (`farm.devices`): `gpu:sm_90` of one of H200s."""
    return ":".join(needs.split(":")[:2])


class FarmMetrics:
    """What a farm counts. Labels are of small fixed sets; none holds a fingerprint."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.catalogue = make = Catalogue(registry)
        self.stage_seconds = make.histogram(
            "fusec_farm_stage_seconds",
            "Time a job spent in a stage; lower, schedule and codegen are parts of plan, verify_…"
            " are those of verify, and total is from its submit to its artifact.",
            {"stage": STAGES, "target": TARGETS},
            buckets=_SECONDS,
        )
        self.kernel_seconds = make.histogram(
            "fusec_farm_kernel_seconds",
            "Time from a kernel's submission to its binary, with the wait for a worker.",
            {"target": TARGETS},
            buckets=_SECONDS,
        )
        self.submits = make.counter(
            "fusec_farm_submits",
            "Submits: queued, merged, known, stored (the artifact exists), full, refused, front.",
            {"outcome": SUBMITS},
        )
        self.received = make.counter(
            "fusec_farm_graphs_received",
            "Graphs that clients sent; the others' submits named a graph that was here.",
        )
        self.refused = make.counter(
            "fusec_farm_refused",
            "Submits that met a limit, by whose it is.",
            {"limit": Full},
        )
        self.jobs = make.counter(
            "fusec_farm_jobs", "Jobs that ended.", {"state": ("done", "failed")}
        )
        self.kernels = make.counter(
            "fusec_farm_kernels",
            "Kernels that jobs needed: stored (hit), built (miss), shared (another job's build).",
            {"source": ("stored", "built", "shared")},
        )
        self.merges = make.counter(
            "fusec_farm_inflight_merges", "Submits that joined a job in flight."
        )
        self.errors = make.counter(
            "fusec_farm_errors", "Failures of tasks and jobs.", {"kind": ErrorKind}
        )
        self.retries = make.counter("fusec_farm_retries", "Tasks tried again.", {"kind": ErrorKind})
        self.seconds_saved = make.counter(
            "fusec_farm_seconds_saved",
            "Estimate of compile seconds that merges and stored kernels made unnecessary.",
        )
        self.takeovers = make.counter(
            "fusec_farm_takeovers", "Jobs taken over from a gateway that has fallen silent."
        )
        self.fenced = make.counter(
            "fusec_farm_fenced",
            "Jobs given up because another gateway had taken them over: nothing of them was"
            " published from here.",
        )
        self.verifications = make.counter(
            "fusec_farm_verifications",
            "Artifacts compared with eager before they were published.",
            {"outcome": Outcome},
        )
        self.published = make.counter(
            "fusec_farm_published",
            "Artifacts published first, by who chose their kernels' variants.",
            {"tier": Tier},
        )
        self.tuned = make.counter(
            "fusec_farm_tuned",
            "Artifacts after tuning: replaced, kept (another stood already, or none was better),"
            " wrong (the tuned one failed its verification), failed.",
            {"outcome": ("replaced", "kept", "wrong", "failed")},
        )
        self.tuned_kernels = make.counter(
            "fusec_farm_tuned_kernels",
            "Kernels of graphs being tuned: known (a record stood), shared (raced for another"
            " graph), timed, failed.",
            {"source": ("known", "shared", "timed", "failed")},
        )
        self.variants = make.counter(
            "fusec_farm_variants",
            "Variants of kernels compiled to be timed, and those that do not compile.",
            {"outcome": ("compiled", "left_out")},
        )
        self.tuning_waiting = make.gauge(
            "fusec_farm_tuning_waiting", "Published graphs that wait for a GPU to time them."
        )
        self.gpu_seconds = make.counter(
            "fusec_farm_gpu_busy_seconds",
            "Seconds that GPUs were leased for timing, by their capability.",
            {"gpu": ISAS},
        )
        self.gpu_leases = make.counter(
            "fusec_farm_gpu_leases", "Leases of a GPU for timing.", {"gpu": ISAS}
        )
        self.leases = make.gauge("fusec_farm_leases", "Leases of jobs held.")
        self.following = make.gauge(
            "fusec_farm_following", "Jobs that wait here and are another gateway's."
        )
        self.queued = make.gauge(
            "fusec_farm_queue_length", "Jobs that wait.", {"priority": PRIORITIES}
        )
        self.queue_age = make.gauge(
            "fusec_farm_queue_oldest_seconds",
            "For how long the oldest job that waits has waited, 0 for none.",
            {"priority": PRIORITIES},
        )
        self.running = make.gauge("fusec_farm_running_jobs", "Jobs in work.")
        self.tasks = make.gauge(
            "fusec_farm_tasks_waiting",
            "Tasks that wait for their turn at a worker: what to scale workers of a class by.",
            {"worker": WORKERS, "priority": PRIORITIES},
        )
        self.tasks_age = make.gauge(
            "fusec_farm_tasks_oldest_seconds",
            "For how long the oldest task that waits for its turn has waited, 0 for none.",
            {"worker": WORKERS, "priority": PRIORITIES},
        )
        self.busy = make.gauge(
            "fusec_farm_tasks_running",
            "Tasks that workers have or get next.",
            {"worker": WORKERS},
        )
        self.workers = make.gauge(
            "fusec_farm_workers", "Tasks that can run at once.", {"worker": WORKERS}
        )
        self.store_breaker = make.gauge(
            "fusec_farm_store_breaker_open",
            "1 while the gateway takes the cache service, which it publishes to, for dead.",
        )
        self.draining = make.gauge("fusec_farm_draining", "1 while nothing new is begun.")

    def value(self, sample: str, labels: dict[str, str] | None = None) -> float:
        """A sample's value, 0 while there is none."""
        return self.registry.get_sample_value(sample, labels or {}) or 0.0

    def counts(self, sample: str, label: str) -> dict[str, int]:
        """A counter with one label, by the declared values of that."""
        (series,) = (series for series in self.catalogue.series if series.name == sample)
        return {
            value: int(self.value(sample, {label: value})) for value in dict(series.labels)[label]
        }

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
