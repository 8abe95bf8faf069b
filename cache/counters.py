"""Named counts, safe for threads: what stores and clients report without a metrics library."""

from __future__ import annotations

import threading
from collections import Counter


class Counters:
    """Counts by name. What stores use is in `cache.metrics.STORE_EVENTS`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, n: int = 1) -> None:
        """Add `n` to the count `name`."""
        with self._lock:
            self._counts[name] += n

    def get(self, name: str) -> int:
        """The count `name`, 0 if nothing was added yet."""
        with self._lock:
            return self._counts[name]

    def snapshot(self) -> dict[str, int]:
        """All counts so far, by name."""
        with self._lock:
            return {name: self._counts[name] for name in sorted(self._counts)}


class ClientMetrics(Counters):
    """Counts of a `CacheClient`.

    `requests`, `retries`, `errors` (no usable answer), `short_circuits` (refused by the open
    breaker), `probes`, `recoveries`, `corrupt`, `bytes_in`, `bytes_out`, `resumed` (bodies that
    were cut and of which only the rest was asked for again), `redirects` (blobs fetched from S3 by
    an address that the service gave) and `redirects_failed`.
    """
