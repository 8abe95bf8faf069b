"""Where the time went and what happened: stages in seconds, counters in whole numbers.

A `Recorder` is an argument, never a global: whoever starts a piece of work makes one, hands it
down and reads it at the end. Threads may share one.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from cache.tracing import OFF, Tracing

# Stage -> what its seconds were spent on.
STAGES: Mapping[str, str] = {
    "key": "computing keys",
    "trace": "AOTAutograd: decomposing, differentiating, partitioning",
    "lookup": "asking the local store and the service for keys",
    "fetch": "moving blobs",
    "submit": "waiting for the farm",
    "lower": "operations to loops",
    "schedule": "loops to groups",
    "codegen": "groups to source",
    "build": "the compilers of kernels",
    "tune": "compiling and timing variants of GPU kernels",
    "load": "artifact to callable",
    "verify_child": "a verification's child process: its start, torch, a GPU's context",
    "verify_eager": "eager's run for a verification, with its inputs",
    "verify_artifact": "the artifact's run for a verification, with its inputs",
    "verify_compare": "comparing the two, with the float64 run and noisy ones",
}

# Counter -> what one count means.
COUNTERS: Mapping[str, str] = {
    "graphs": "graphs turned into a callable (a forward and its backward are two)",
    "groups": "groups of computations that share a kernel",
    "kernels": "kernel launches in one run of the programs",
    "distinct_kernels": "kernels that differ, by digest",
    "external_calls": "calls of library operations: matmul, convolution, attention",
    "fallback_calls": "calls of ATen operations that have no lowering",
    "lowerings": "graphs lowered in this process",
    "kernel_compiles": "kernels compiled in this process",
    "kernels_tuned": "GPU kernels whose variant was chosen by measurement",
    "kernels_untuned": "GPU kernels that could not be timed: the cost model's choice stands",
    "variants_timed": "variants of GPU kernels that were timed",
    "tuning_hits": "GPU kernels whose choice of variant was known",
    "front_hits": "front key found: AOTAutograd skipped",
    "front_misses": "front key not found",
    "front_ineligible": "no sound front key for this graph: AOTAutograd ran",
    "graph_hits": "graph key found: the compiler skipped",
    "graph_misses": "graph key not found",
    "fallbacks_to_eager": "graphs that run eager because they could not be compiled",
    "swaps": "Dynamo graphs that ran eager until their artifacts came (policy async)",
    "upgrade_polls": "questions whether better artifacts stand by now (policy async)",
    "upgrades": "times that a running Dynamo graph was given better artifacts (policy async)",
    "local_compiles": "graphs compiled in this process",
    "farm_compiles": "graphs compiled by the farm while this process waited",
    "remote_errors": "the remote was unreachable, slow or answered with an error",
    "corrupt": "bytes that did not match their digest or did not decode",
    "unsigned": "entries that nobody has signed, passed over",
    "unknown_signer": "entries signed by none of the trusted keys, passed over",
    "bad_signature": "entries whose signature does not hold, passed over",
    "revoked": "entries that are revoked, passed over",
    "newer_version": "entries written by a newer fusec, passed over",
    "graph_records": "programs recorded as a CUDA graph, once for each signature of its calls",
    "graph_skips": "calls under reduce-overhead that were no replay: first calls, outputs in use",
    "graphs_refused": "programs that cannot be recorded as a CUDA graph",
    "store_full": "the local store had no room; the artifact was used and not kept",
}


@dataclass(frozen=True)
class Snapshot:
    """A copy of a Recorder's state: seconds by stage, counts by name."""

    stages: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)

    def minus(self, earlier: "Snapshot") -> "Snapshot":
        """What was added since `earlier`; names with no change are left out."""
        stages = {k: v - earlier.stages.get(k, 0.0) for k, v in self.stages.items()}
        counters = {k: v - earlier.counters.get(k, 0) for k, v in self.counters.items()}
        return Snapshot(
            {k: v for k, v in stages.items() if v > 0.0},
            {k: v for k, v in counters.items() if v != 0},
        )


@dataclass(frozen=True, slots=True)
class Lap:
    """A span that has ended; times are nanoseconds of the epoch."""

    stage: str
    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


class Recorder:
    """Adds up stages and counters; safe to share between threads.

    Spans nest. A stage's seconds are its own: the time of a span inside it belongs to the inner
    stage alone, so the stages of one thread add up to the wall time spent in its outermost spans.
    Spans of several threads overlap and add up to more; work that is spread over threads is
    wrapped in one span by the thread that waits for it.

    Stages are spans of `tracing` too, where that is on; `laps` gets every span that has ended.
    """

    def __init__(self, *, tracing: Tracing = OFF, laps: list[Lap] | None = None) -> None:
        self.tracing = tracing
        self._laps = laps
        self._lock = threading.Lock()
        self._stages: dict[str, float] = {}
        self._counters: dict[str, int] = {}
        self._open = threading.local()

    @contextmanager
    def span(self, stage: str) -> Iterator[None]:
        """Add the seconds until the block ends, less those of spans inside it, to `stage`."""
        stack: list[float] = self._open.__dict__.setdefault("inner", [])
        stack.append(0.0)
        began = time.time_ns() if self._laps is not None else 0
        start = time.perf_counter()
        try:
            with self.tracing.span(stage):
                yield
        finally:
            total = time.perf_counter() - start
            if self._laps is not None:
                self._laps.append(Lap(stage, began, began + round(total * 1e9)))
            inner = stack.pop()
            if stack:
                stack[-1] += total
            with self._lock:
                self._stages[stage] = self._stages.get(stage, 0.0) + total - inner

    def count(self, name: str, n: int = 1) -> None:
        """Add `n` to a counter; adding 0 makes the counter show up in a snapshot."""
        with self._lock:
            self._counters[name] = self._counters.get(name, 0) + n

    def add(self, other: Snapshot) -> None:
        """Add another recorder's totals to this one's."""
        with self._lock:
            for stage, seconds in other.stages.items():
                self._stages[stage] = self._stages.get(stage, 0.0) + seconds
            for name, n in other.counters.items():
                self._counters[name] = self._counters.get(name, 0) + n

    @property
    def stages(self) -> dict[str, float]:
        """Seconds by stage, a copy."""
        with self._lock:
            return dict(self._stages)

    @property
    def counters(self) -> dict[str, int]:
        """Counts by name, a copy."""
        with self._lock:
            return dict(self._counters)

    def snapshot(self) -> Snapshot:
        """Stages and counters at one moment, a copy."""
        with self._lock:
            return Snapshot(dict(self._stages), dict(self._counters))
