"""Metrics of the service for Prometheus, in a registry that the caller owns.

Every series of the service is declared here, with the values that its labels can have, and listed
in `docs/metrics.md` (`make docs` writes it).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest

from cache.counters import Counters
from cache.errors import BadSignature, Revoked, UnknownSigner, Unsigned, Untrusted
from cache.gc import Plan
from cache.key import DOOMED, KINDS, REVOKED
from cache.lru import ByteLRU
from cache.series import Catalogue

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    120.0,
)  # fmt: skip
"""To the longest poll that is passed on to the farm."""
_COLLECTION_SECONDS: Final = (0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 14400.0)
_ENTRIES: Final = (*sorted(KINDS), REVOKED, DOOMED)
_READ: Final = (*_ENTRIES, "blob")
_STATUSES: Final = tuple(
    "200 201 204 206 304 307 400 401 403 404 405 409 412 413 416 422 423 429"
    " 500 501 503 507".split()
)
STORE_EVENTS: Final = (
    "corrupt", "store_full", "io_errors", "near_errors", "far_errors", "near_hits", "near_misses"
)  # fmt: skip
UNTRUSTED: Final[dict[type[Untrusted], str]] = {
    Unsigned: "unsigned",
    UnknownSigner: "unknown_signer",
    BadSignature: "bad_signature",
    Revoked: "revoked",
}
"""Why an entry is refused that somebody writes; the label of the metric."""


class ServiceMetrics:
    """What a service counts. `tier` is memory or store; `kind` is a key's kind or blob.

    routes: the names of the service's routes.
    """

    def __init__(self, registry: CollectorRegistry, routes: Iterable[str]) -> None:
        self.registry = registry
        self.catalogue = make = Catalogue(registry)
        routes = (*routes, "none")
        self.hits = make.counter(
            "fusec_cache_hits",
            "Reads answered, from the memory of the service or its store.",
            {"tier": ("memory", "store"), "kind": _READ},
        )
        self.misses = make.counter(
            "fusec_cache_misses",
            "Reads not answered: nothing is there, or it is revoked. A miss is no error.",
            {"kind": _READ, "reason": ("absent", "revoked")},
        )
        self.errors = make.counter(
            "fusec_cache_errors",
            "Errors, by where they arose: a route, the farm behind it, or the service's own work.",
            {"where": (*routes, "farm", "touch", "revoked")},
        )
        self.untrusted = make.counter(
            "fusec_cache_untrusted_writes",
            "Entries that were to be written and whose signature was not accepted.",
            {"reason": UNTRUSTED.values()},
        )
        self.bytes = make.counter(
            "fusec_cache_bytes", "Bytes of bodies, in and out.", {"direction": ("in", "out")}
        )
        self.merges = make.counter(
            "fusec_cache_inflight_merges",
            "Reads that waited for another's read of the same thing.",
        )
        self.conflicts = make.counter(
            "fusec_cache_conflicts",
            "Entries refused because another value stands.",
            {"kind": sorted(KINDS)},
        )
        self.gateways_down = make.gauge(
            "fusec_cache_gateways_down",
            "Gateways of the farm that did not answer a moment ago and are asked last.",
        )
        self.fenced = make.counter(
            "fusec_cache_fenced",
            "Entries refused because their writer's lease is over and the work another gateway's.",
        )
        self.seconds = make.histogram(
            "fusec_cache_request_seconds",
            "Time to answer, by route; compile_join and compile_poll are long polls, which wait on"
            " purpose.",
            {"route": routes},
            buckets=_SECONDS,
        )
        self.store_seconds = make.histogram(
            "fusec_cache_store_read_seconds",
            "Time of a read of the store, whether it found anything or not.",
            {"kind": _READ},
            buckets=_SECONDS,
        )
        self.memory_bytes = make.gauge("fusec_cache_memory_bytes", "Bytes kept in memory.")
        self.requests = make.counter(
            "fusec_cache_requests", "Requests, by status.", {"route": routes, "status": _STATUSES}
        )
        self.collections = make.counter(
            "fusec_cache_collections",
            "Runs of the collector: done, or failed (the store away, another collector at work).",
            {"outcome": ("done", "failed")},
        )
        self.collected = make.counter(
            "fusec_cache_collected",
            "What collections removed.",
            {"what": ("entry", "blob", "record")},
        )
        self.collected_bytes = make.counter(
            "fusec_cache_collected_bytes", "Bytes that collections freed."
        )
        self.collection_seconds = make.histogram(
            "fusec_cache_collection_seconds",
            "Time of a collection, with the announcement that it waits out in S3.",
            buckets=_COLLECTION_SECONDS,
        )
        started = make.gauge("fusec_cache_started_timestamp_seconds", "When the service began.")
        started.set(time.time())

    def watch_store(self, counters: Counters) -> None:
        """Also show a store's own counts, as fusec_cache_store_events_total{event}."""
        self.catalogue.counted(
            "fusec_cache_store_events",
            "What happened in the store: damaged bytes, no room, errors of disk or S3; of the"
            " copies on this disk (near) their hits, misses and errors, and the reads in which they"
            " stood in for S3 (far_errors).",
            counters.snapshot,
            {"event": STORE_EVENTS},
        )

    def watch_memory(self, memory: ByteLRU[str]) -> None:
        """Also show what was pushed out of memory for want of room."""
        self.catalogue.counted(
            "fusec_cache_evictions",
            "Entries and blobs pushed out for want of room.",
            lambda: {"memory": float(memory.evictions)},
            {"tier": ("memory",)},
        )

    def watch_disk(self, folder: Path) -> None:
        """Also show how full the disk is that copies, or the store itself, are on."""
        self.catalogue.watched(
            "fusec_cache_disk_free_bytes",
            "Free bytes of the disk that the store, or its copies, are on.",
            lambda: float(shutil.disk_usage(folder).free),
        )
        self.catalogue.watched(
            "fusec_cache_disk_size_bytes",
            "Bytes of that disk.",
            lambda: float(shutil.disk_usage(folder).total),
        )

    def count_collection(self, plan: Plan | None, seconds: float) -> None:
        """A collection has ended; `plan` is what it removed, None when it failed."""
        self.collections.labels("failed" if plan is None else "done").inc()
        self.collection_seconds.observe(seconds)
        if plan is not None:
            self.collected.labels("entry").inc(len(plan.entries))
            self.collected.labels("blob").inc(len(plan.blobs))
            self.collected.labels("record").inc(len(plan.records))
            self.collected_bytes.inc(plan.bytes)

    def render(self) -> bytes:
        """All metrics as text."""
        return generate_latest(self.registry)
