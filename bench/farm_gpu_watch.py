"""What a farm did and when, seen from beside it: for `bench.farm_gpu`, also where a side is cut."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

import httpx

from cache.artifacts import lookup
from cache.errors import CacheError
from cache.protocol import unpack
from farm.embedded import EmbeddedFarm
from fusec.artifact.quality import Quality, quality_of
from fusec.errors import WireError
from fusec.remote.farm_status import STATUS_PATH, FarmStatus

POLL_S: Final = 0.2
_CALL_S: Final = 5.0
_MOST_STATUS: Final = 16 << 20
_METRICS: Final = (
    "fusec_farm_published_total", "fusec_farm_tuned_total", "fusec_farm_tuned_kernels_total",
    "fusec_farm_variants_total", "fusec_farm_verifications_total",
    "fusec_farm_gpu_busy_seconds_total", "fusec_farm_gpu_leases_total",
    "fusec_farm_tuning_waiting", "fusec_farm_kernels_total", "fusec_farm_errors_total",
    "fusec_farm_retries_total", "fusec_farm_jobs_total", "fusec_farm_stage_seconds_sum",
    "fusec_farm_stage_seconds_count", "fusec_farm_kernel_seconds_sum",
    "fusec_farm_kernel_seconds_count",
)  # fmt: skip


class Watch:
    """Notes, until the block ends, each stage that each job enters, what becomes of its artifact,
    and what the farm warns of. Times are seconds since the block began."""

    def __init__(self, farm: EmbeddedFarm) -> None:
        self._farm = farm
        self._began = time.monotonic()
        self._events: list[tuple[float, str]] = []
        self._seen: dict[str, str] = {}  # what was noted last, by the graph or the pool's class
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="bench-watch", daemon=True)
        self._handler = _Notes(self._note)

    def __enter__(self) -> Watch:
        logging.getLogger("fusec.farm").addHandler(self._handler)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join(_CALL_S)
        logging.getLogger("fusec.farm").removeHandler(self._handler)

    def seconds(self) -> float:
        """Since the block began."""
        return time.monotonic() - self._began

    def numbers(self) -> dict[str, float]:
        """The farm's metrics on quality and work that are not 0."""
        text = httpx.get(self._farm.gateway_url + "/metrics", timeout=30).text
        rows = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith(_METRICS))
        return {name: float(value) for name, value in rows if float(value)}

    def settled(self) -> bool:
        """Whether every untuned artifact has been dealt with."""
        numbers = self.numbers()
        untuned = numbers.get('fusec_farm_published_total{tier="untuned"}', 0.0)
        over = sum(n for name, n in numbers.items() if name.startswith("fusec_farm_tuned_total"))
        return over >= untuned

    def report(self) -> dict[str, Any]:
        """All of it as plain values, the farm's state at this moment included."""
        status = self._status()
        state = {} if status is None else status.to_wire()
        kept = ("queued", "in_work", "workers", "tasks", "running", "poisoned")
        return {
            "events": [[round(at, 2), text] for at, text in list(self._events)],
            "state": {name: state[name] for name in kept if name in state},
            "numbers": self.numbers(),
        }

    def _note(self, text: str) -> None:
        self._events.append((self.seconds(), text))

    def _changed(self, what: str, now: str) -> None:
        if self._seen.get(what) != now:
            self._seen[what] = now
            self._note(f"{what}: {now}")

    def _watch(self) -> None:
        graphs: set[str] = set()
        while not self._done.wait(POLL_S):
            status = self._status()
            if status is None:
                continue
            for job in status.running:
                graphs.add(job.fingerprint)
                kernels = f", {job.kernels_total} kernels" if job.kernels_total else ""
                self._changed(f"graph {job.fingerprint[:8]}", job.stage + kernels)
            for ended in status.recent:
                graphs.add(ended.fingerprint)
                what = ended.error or f"done in {ended.seconds:.2f} s of work"
                self._changed(f"graph {ended.fingerprint[:8]}", what)
            for graph in graphs:
                self._artifact(graph)
            for row in status.workers:
                if row.needs != "cpu":
                    self._changed(row.needs, f"{row.busy} tasks")

    def _artifact(self, graph: str) -> None:
        try:
            found = lookup(self._farm.store, f"graph/{graph}")
        except CacheError:
            return  # it is looked at again
        if found is not None:
            said = _said(quality_of(found.manifest.meta))
            self._changed(f"artifact {graph[:8]}", f"{said}, {found.manifest.size()} bytes")

    def _status(self) -> FarmStatus | None:
        try:
            reply = httpx.get(
                self._farm.gateway_url + STATUS_PATH,
                headers={"Accept": "application/msgpack"},
                timeout=_CALL_S,
            )
            return FarmStatus.from_wire(unpack(reply.content, max_bytes=_MOST_STATUS))
        except (httpx.HTTPError, CacheError, WireError):
            return None


def _said(quality: Quality) -> str:
    checked = quality.verification
    return f"{quality.tier}, {quality.tuned} kernels tuned, {checked.text() if checked else ''}"


class _Notes(logging.Handler):
    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = note

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(f"{record.levelname.lower()}: {record.getMessage()[:400]}")
