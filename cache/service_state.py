"""What the routes of one service share."""

from __future__ import annotations

import time

import httpx

from cache.config import ServiceConfig
from cache.metrics import ServiceMetrics
from cache.protocol import Value
from cache.reader import Reader
from cache.store import Store

DESCRIBE_SECONDS = 10.0
"""For how long a description of the store is kept: making one may walk a directory."""


class ServiceState:
    """One service's configuration, store, reader, metrics and connections to the farm."""

    def __init__(
        self, config: ServiceConfig, store: Store, reader: Reader, metrics: ServiceMetrics
    ) -> None:
        self.config = config
        self.store = store
        self.reader = reader
        self.metrics = metrics
        self.started = time.time()
        self._farm: httpx.AsyncClient | None = None
        self._described: dict[str, Value] = {}
        self._described_at = float("-inf")

    def farm(self) -> httpx.AsyncClient:
        """Connections to the farm's gateway."""
        if self._farm is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            # Loading certificates holds everybody up for 0.1 s: only where there is TLS.
            verify = self.config.farm_url.startswith("https:")
            self._farm = httpx.AsyncClient(trust_env=False, limits=limits, verify=verify)
        return self._farm

    async def describe(self) -> dict[str, Value]:
        """What the store says of itself, at most DESCRIBE_SECONDS old."""
        if time.monotonic() - self._described_at > DESCRIBE_SECONDS:
            self._described = await self.reader.call(self.store.describe)
            self._described_at = time.monotonic()
        return self._described

    async def close(self) -> None:
        """Close the connections to the farm."""
        if self._farm is not None:
            await self._farm.aclose()
