"""A gateway's store in simulated time: memory, and the seconds that the service and S3 take."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cache.errors import NotReachable
from cache.memory import MemoryStore
from cache.protocol import Value
from cache.store import Blobs, SwapStore
from loadtest.costs.model import StoreTimes
from loadtest.simulate.host import Host
from loadtest.simulate.virtual import Gone, VirtualLoop

MB = 1e6
MORE_KEYS_S = 0.0002  # each further key of one look-up


@dataclass(slots=True)
class Weather:
    """How the store is: ``slow`` times its measured latency, a part ``failing`` of its requests
    without an answer. A scenario changes it as time goes on."""

    slow: float = 1.0
    failing: float = 0.0


class Stores:
    """What is kept, by namespace: each has a store of its own."""

    def __init__(self) -> None:
        self._kept: dict[str, MemoryStore] = {}

    def of(self, namespace: str) -> MemoryStore:
        return self._kept.setdefault(namespace, MemoryStore())


class SimulatedStore:
    """What one gateway sees of the store that all share."""

    def __init__(
        self,
        loop: VirtualLoop,
        kept: MemoryStore,
        host: Host,
        times: StoreTimes,
        weather: Weather,
        rng: random.Random,
    ) -> None:
        self._loop = loop
        self._kept = kept
        self._host = host
        self._times = times
        self._weather = weather
        self._rng = rng

    def get_blob(self, digest: str) -> bytes | None:
        """See `Store`."""
        self._read()
        return self._kept.get_blob(digest)

    def get_blobs(self, digests: Sequence[str]) -> Blobs:
        """See `BatchStore`."""
        self._request(self._times.get_s + MORE_KEYS_S * len(digests))
        return self._kept.get_blobs(digests)

    def has_blobs(self, digests: Iterable[str]) -> set[str]:
        """See `Store`."""
        self._request(self._times.get_s)
        return self._kept.has_blobs(digests)

    def put_blob(self, digest: str, data: bytes) -> None:
        """See `Store`."""
        self._request(self._times.put_s)
        self._kept.put_blob(digest, data)

    def get_entry(self, key: str) -> bytes | None:
        """See `Store`."""
        self._read()
        return self._kept.get_entry(key)

    def put_entry(self, key: str, manifest_bytes: bytes) -> bool:
        """See `Store`."""
        self._request(self._times.put_s)
        return self._kept.put_entry(key, manifest_bytes)

    def replace_entry(self, key: str, manifest_bytes: bytes) -> None:
        """See `Store`."""
        self._request(self._times.put_s)
        self._kept.replace_entry(key, manifest_bytes)

    def swap_entry(self, key: str, expected: str, manifest_bytes: bytes) -> bool:
        """See `SwapStore`."""
        self._request(self._times.put_s)
        return self._kept.swap_entry(key, expected, manifest_bytes)

    def get_record(self, name: str) -> bytes | None:
        """See `SwapStore`."""
        self._request(self._times.get_s)
        return self._kept.get_record(name)

    def swap_record(self, name: str, expected: str | None, data: bytes) -> bool:
        """See `SwapStore`."""
        self._request(self._times.put_s)
        return self._kept.swap_record(name, expected, data)

    def delete_entry(self, key: str) -> None:
        """See `Store`."""
        self._request(self._times.put_s)
        self._kept.delete_entry(key)

    def describe(self) -> dict[str, Value]:
        """See `Store`."""
        return self._kept.describe()

    def _read(self) -> None:
        """One key. Several in one piece of work are one request, as `CacheClient` makes it."""
        if self._loop.charged > 0:
            self._loop.charge(MORE_KEYS_S * self._weather.slow)
        else:
            self._request(self._times.get_s)

    def _request(self, seconds: float) -> None:
        if not self._host.lives():
            raise Gone
        paid_s = self._host.core.reserve(self._times.client_cpu_s)
        self._loop.charge(paid_s + seconds * self._weather.slow * self._rng.uniform(0.7, 1.6))
        if self._weather.failing and self._rng.random() < self._weather.failing:
            raise NotReachable("the simulated store does not answer")


_CONTRACT: type[SwapStore] = SimulatedStore
