"""Metrics of a training process, for Prometheus: a text file or a push, off unless asked for.

A training job is scraped by nobody. Where `metrics_dir` is set it writes `fusec-<local rank>.prom`
there, for node_exporter's textfile collector; where `metrics_push` is set it pushes. Both happen in
a thread now and then and at the end of the process, and a fault of either is told once.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fusec.errors import OptionsError
from fusec.trace import COUNTERS, STAGES, Snapshot

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from cache.client import CacheClient
    from cache.series import Catalogue

log = logging.getLogger("fusec")

EVERY_S: Final = 15.0
PUSH_S: Final = 2.0
JOB: Final = "fusec_client"
RANK_LABEL: Final = "local_rank"
MAX_LOCAL_RANK: Final = 255

# Where a graph's code came from -> the recorder's counter.
GRAPHS: Final[Mapping[str, str]] = {
    "stored": "graph_hits",
    "farm": "farm_compiles",
    "local": "local_compiles",
    "eager": "fallbacks_to_eager",
}
# A key's level and the outcome of its look-up -> the counter.
LOOKUPS: Final[Mapping[str, str]] = {
    "front_hit": "front_hits",
    "front_miss": "front_misses",
    "front_ineligible": "front_ineligible",
    "graph_hit": "graph_hits",
    "graph_miss": "graph_misses",
}
REJECTED: Final = (
    "unsigned", "unknown_signer", "bad_signature", "revoked", "newer_version", "corrupt"
)  # fmt: skip
# The rest of what a recorder counts.
EVENTS: Final = tuple(
    name for name in COUNTERS if name not in {*GRAPHS.values(), *LOOKUPS.values(), *REJECTED}
)
EXCHANGES: Final = (
    "requests", "retries", "errors", "short_circuits", "probes", "recoveries", "redirects",
    "redirects_failed",
)  # fmt: skip


def declare(
    make: Catalogue,
    snapshot: Callable[[], Snapshot],
    remotes: Callable[[], Sequence[CacheClient]],
) -> None:
    """Declare what a client emits, read from a recorder and the clients of the service."""

    def named(counters: Mapping[str, str]) -> Callable[[], Mapping[str, float]]:
        return lambda: {
            label: snapshot().counters.get(counter, 0) for label, counter in counters.items()
        }

    def exchanged(names: Mapping[str, str]) -> Callable[[], Mapping[str, float]]:
        return lambda: {
            label: sum(remote.metrics.get(count) for remote in remotes())
            for label, count in names.items()
        }

    make.counted(
        "fusec_client_stage_seconds",
        "Where the time of starts went; docs/architecture.md names the stages.",
        lambda: snapshot().stages,
        {"stage": STAGES},
    )
    make.counted(
        "fusec_client_graphs",
        "Graphs by where their code came from: stored (a hit), the farm, a compile in this process,"
        " or eager since that failed. The last two are the fallbacks where a remote is set.",
        named(GRAPHS),
        {"source": GRAPHS},
    )
    make.counted(
        "fusec_client_lookups",
        "Look-ups by the level of their key and their outcome.",
        named(LOOKUPS),
        {"outcome": LOOKUPS},
    )
    make.counted(
        "fusec_client_rejected",
        "Artifacts passed over: their signature is not accepted, or their bytes are damaged.",
        named({name: name for name in REJECTED}),
        {"reason": REJECTED},
    )
    make.counted(
        "fusec_client_events",
        "What else the client counts; `fusec.trace.COUNTERS` says what each is.",
        named({name: name for name in EVENTS}),
        {"event": EVENTS},
    )
    make.counted(
        "fusec_client_exchanges",
        "Requests to the cache service and what became of them; short_circuits were refused by the"
        " open breaker.",
        exchanged({name: name for name in EXCHANGES}),
        {"event": EXCHANGES},
    )
    make.counted(
        "fusec_client_bytes",
        "Bytes of bodies from and to the cache service.",
        exchanged({"in": "bytes_in", "out": "bytes_out"}),
        {"direction": ("in", "out")},
    )
    make.watched(
        "fusec_client_breaker_open",
        "1 while the cache service is taken for dead.",
        lambda: float(any(remote.budget.is_open for remote in remotes())),
    )
    make.watched(
        "fusec_client_budget_seconds",
        "Delay that the remote may still cost this process; the least of its clients.",
        lambda: min((remote.budget.left_s for remote in remotes()), default=0.0),
    )


class Exporter:
    """Writes and pushes a process's metrics until it ends. Never raises once it is made.

    folder: for text files; push: address of a Pushgateway; either may be None.
    Raises OptionsError where prometheus-client is not installed.
    """

    def __init__(
        self,
        folder: Path | None,
        push: str | None,
        snapshot: Callable[[], Snapshot],
        remotes: Callable[[], Sequence[CacheClient]],
        *,
        local_rank: int = 0,
        every_s: float = EVERY_S,
    ) -> None:
        try:
            # With the extra only, and loaded by those alone who ask for metrics.
            from prometheus_client import CollectorRegistry

            from cache.series import Catalogue
        except ModuleNotFoundError as error:
            raise OptionsError(
                "FUSEC_METRICS_DIR and FUSEC_METRICS_PUSH need prometheus-client",
                hint="pip install 'fusec[metrics]'",
            ) from error
        self._registry = CollectorRegistry()
        declare(Catalogue(self._registry), snapshot, remotes)
        self._folder = folder
        self._push = push
        self._rank = str(min(max(local_rank, 0), MAX_LOCAL_RANK))
        self._every_s = every_s
        self._process = os.getpid()
        self._told: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fusec-metrics", daemon=True)

    def start(self) -> None:
        """Begin; the last word is said when the interpreter ends."""
        self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Export once more, and no more."""
        atexit.unregister(self.close)
        if self._stop.is_set() or os.getpid() != self._process:  # a fork is not this process
            return
        self._stop.set()
        self._thread.join(2 * PUSH_S)
        self.export()

    def export(self) -> None:
        """Write and push now."""
        for place, act in ((self._folder, self._write), (self._push, self._send)):
            if place is None:
                continue
            try:
                act()
            except (OSError, ValueError, HTTPException) as error:  # the last two: no address
                self._fault(str(place), error)

    def _run(self) -> None:
        self.export()  # zeros: a rate is of what has changed since
        while not self._stop.wait(self._every_s):
            self.export()

    def _write(self) -> None:
        from prometheus_client import write_to_textfile

        assert self._folder is not None
        # Written beside it and renamed, by the library: a reader never sees half a file.
        path = self._folder / f"fusec-{self._rank}.prom"
        write_to_textfile(str(path), _Ranked(self._registry, self._rank))

    def _send(self) -> None:
        from prometheus_client import push_to_gateway

        assert self._push is not None
        group = {"instance": socket.gethostname(), RANK_LABEL: self._rank}
        push_to_gateway(self._push, JOB, self._registry, grouping_key=group, timeout=PUSH_S)

    def _fault(self, place: str, error: Exception) -> None:
        if place not in self._told:
            self._told.add(place)
            log.warning("metrics cannot be exported to %s: %s; training goes on", place, error)


class _Ranked:
    """A registry whose samples say which process of the machine they are of."""

    def __init__(self, registry: CollectorRegistry, rank: str) -> None:
        self._registry = registry
        self._rank = rank

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [
                sample._replace(labels={**sample.labels, RANK_LABEL: self._rank})
                for sample in family.samples
            ]
            yield family
