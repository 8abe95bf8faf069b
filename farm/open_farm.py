"""From a configuration to a farm: the pool, and the application over it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from ssl import SSLContext
from typing import Final

import httpx
from prometheus_client import CollectorRegistry

from cache.asgi import App
from cache.client import CacheClient
from cache.errors import ConfigError
from cache.seal import Signer
from cache.signing import SigningKey, read_trusted
from cache.store import SwapStore
from cache.trust import OWN_STORE, signed_by
from farm.attempts import Attempts
from farm.config import FarmConfig
from farm.coordinator import Coordinator
from farm.devices import detected
from farm.drain import Drain
from farm.fair_pool import FairPool
from farm.gateway import create_app
from farm.isolation import Isolated
from farm.kernels import KernelBuilds
from farm.leases import Leases
from farm.memory_pool import MemoryPool
from farm.metrics import FarmMetrics
from farm.ownership import Ownership
from farm.peers import Peers, new_member
from farm.pool import Pool, Runner
from farm.quality_tasks import warm_gpu_task
from farm.shelf import Shelf
from farm.spaces import Space, Spaces
from farm.tracing import FarmTracing
from farm.tuning import Tuning
from farm.verifier import Verifier
from farm.workers import FusecStages, Stages, warm_task
from fusec import __version__
from fusec.artifact.fingerprint import toolchain, torch_version

WARMED: Final = 64
CLAIM_S: Final = 30.0
"""Of a claim where there is one gateway: until the next one may, if it dies with it."""


def open_pool(config: FarmConfig, runner: Runner | None = None) -> Pool:
    """The pool that a configuration names. Raises ConfigError when Ray is not installed.

    runner: what does the tasks; by default the real compiler, in isolated child processes.
    """
    if runner is None:
        runner = Isolated(config.work_mb << 20, wall_s=config.work_s, cpu_s=config.work_s)
    if config.pool == "memory":
        pool: Pool = MemoryPool(runner, config.worker_count(), gpus=detected())
        if pool.gpu_classes():
            _warm(pool)
        return pool
    try:
        # Ray comes with an extra and takes seconds to import: only those who use it pay.
        from farm.ray_pool import RayPool
    except ModuleNotFoundError as error:
        raise ConfigError("the ray pool needs Ray", hint="pip install 'fusec[farm]'") from error
    pool = RayPool(runner, address=config.ray_address, workers=config.worker_count())
    _warm(pool)
    return pool


def _warm(pool: Pool) -> None:
    """Nobody waits: whoever comes first finds workers that are ready."""
    for needs in pool.gpu_classes():
        for _ in range(min(pool.workers_of(needs), WARMED)):
            pool.submit(warm_gpu_task(needs))
    for _ in range(min(pool.workers, WARMED)):
        pool.submit(warm_task(gpu=bool(pool.gpu_classes())))


def open_app(
    config: FarmConfig,
    pool: Pool,
    store: SwapStore,
    *,
    stages: Stages | None = None,
    registry: CollectorRegistry | None = None,
    key: SigningKey | None = None,
    open_namespace: Callable[[str], SwapStore] | None = None,
    clock: Callable[[], float] = time.monotonic,
    to_peers: httpx.AsyncBaseTransport | None = None,
) -> App:
    """The gateway's application over a pool and the store that artifacts are published to.

    stages: what assembles artifacts and computes fingerprints here; the pool's runner has its own.
    key: what signs, by default that of `config.signing_key`; artifacts are unsigned without.
    open_namespace: the store of a namespace other than the default; there are none without.
    clock: seconds; another one lets a simulation run in a time of its own. to_peers: the way to
    other gateways, by default the network.
    Raises ConfigError for key files that are none.
    """
    metrics = FarmMetrics(registry or CollectorRegistry())
    if isinstance(store, CacheClient):
        metrics.store_breaker.set_function(lambda: float(store.budget.is_open))
    if key is None and config.signing_key:
        key = SigningKey.read(Path(config.signing_key))
    others = read_trusted(Path(config.trusted_keys)) if config.trusted_keys else ()

    limits = config.limits()
    fair = FairPool(pool, weight=lambda tenant: limits.of(tenant).weight, clock=clock)
    tracing = FarmTracing(config.tracing)
    attempts = Attempts(fair, metrics, config.task_s, tracing)

    member = new_member(config.address(), config.token, config.lease_s or CLAIM_S)

    def open_space(namespace: str) -> Space:
        kept = open_namespace(namespace) if namespace and open_namespace is not None else store
        signer = None if key is None else Signer(key, compiler_name(), namespace)
        trust = OWN_STORE if key is None else signed_by((key.public, *others), namespace)
        shelf = Shelf(kept, attempts, signer=signer, trust=trust, clock=clock)
        claims = Leases(kept, member, attempts, metrics, clock=clock)
        ownership = claims if config.lease_s else Ownership()
        builds = KernelBuilds(attempts, shelf.keep_kernel, metrics, clock=clock)
        return Space(shelf, builds, claims, ownership)

    def open_coordinator() -> Coordinator:
        made = stages or FusecStages()
        verifier = Verifier(attempts, metrics, config.verify_s)
        spaces = Spaces(open_space, named=open_namespace is not None)
        return Coordinator(
            fair,
            spaces,
            attempts,
            made,
            metrics,
            verifier=verifier,
            drain=Drain(store, attempts),
            tuning=Tuning(spaces, attempts, made, verifier, metrics) if config.tune else None,
            limits=limits,
            peers=Peers(
                member, config.token, _verify(config), name=config.peer_name, transport=to_peers
            ),
            tracing=tracing,
            clock=clock,
        )

    return create_app(config, open_coordinator)


def _verify(config: FarmConfig) -> SSLContext | bool:
    """Whom to believe among other gateways. Loading certificates takes time: only for TLS."""
    return config.peer_tls().context() if config.address().startswith("https:") else False


def compiler_name() -> str:
    """What made an artifact, as its seal says it and as it can be revoked, whole or by a part."""
    return f"fusec-{__version__}/torch-{torch_version()}/toolchain-{toolchain()[:16]}"
