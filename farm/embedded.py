"""A whole farm in this process, on loopback: the cache service, the gateway and a pool.

For tests, the demo and development. Nothing of it outlives the block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cache.config import ServiceConfig
from cache.counters import Counters
from cache.embedded import serve_app_in_thread, serve_in_thread
from cache.open_store import open_store
from cache.signing import PublicKey, SigningKey
from cache.store import SwapStore
from farm.config import FarmConfig
from farm.open_farm import open_app, open_pool
from farm.workers import Stages, run


@dataclass(frozen=True, slots=True)
class EmbeddedFarm:
    """``url`` is the cache service's address, what `FUSEC_REMOTE` takes; ``store`` what it keeps
    artifacts in, as the object that the service and the gateway share; ``public_key`` verifies
    what it signs."""

    url: str
    gateway_url: str
    store: SwapStore
    public_key: PublicKey


@contextmanager
def embedded_farm(
    *,
    store: str | SwapStore = "memory:",
    pool: str = "memory",
    workers: int = 0,
    host: str = "127.0.0.1",
    port: int = 0,
    s3_endpoint: str = "",
    signing_key: str = "",
    tracing: str = "",
    farm: FarmConfig | None = None,
    stages: Stages | None = None,
) -> Iterator[EmbeddedFarm]:
    """Run a farm until the block ends.

    store: an address as of `ServiceConfig.store`, or an object. pool: ``memory`` or ``ray``.
    workers: tasks at once, 0 is one a core. port: the cache service's, 0 takes a free one.
    signing_key: file of the key that signs, made if it is absent; by default a key of this run.
    tracing: how spans are exported, for service and gateway (`cache.tracing`).
    farm: further settings of the gateway. stages: another compiler, for tests.
    Raises ConfigError for settings that make no sense.
    """
    address = store if isinstance(store, str) else "memory:"
    service = ServiceConfig(
        host=host, port=port, store=address, s3_endpoint=s3_endpoint, tracing=tracing
    )
    kept = open_store(service, Counters()) if isinstance(store, str) else store
    config = replace(
        farm or FarmConfig(),
        host="127.0.0.1",
        port=0,
        pool=pool,
        workers=workers,
        tracing=tracing,
        lease_s=0.0,  # nobody else has a gateway over this store
    )
    runner = None if stages is None else partial(run, stages=stages)
    key = SigningKey.generate("embedded")
    if signing_key:
        key = SigningKey.read_or_generate(Path(signing_key), "embedded")
    running_pool = open_pool(config, runner)
    try:
        app = open_app(config, running_pool, kept, stages=stages, key=key)
        with (
            serve_app_in_thread(app) as gateway,
            serve_in_thread(replace(service, farm_url=gateway.url), store=kept) as running,
        ):
            yield EmbeddedFarm(running.url, gateway.url, kept, key.public)
    finally:
        running_pool.close()
