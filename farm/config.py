"""Settings of the farm: one frozen value, from FUSEC_FARM_* and flags, checked once."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cache import settings
from cache.auth import ROLES, Grant, hash_token
from cache.config import is_loopback
from cache.errors import ConfigError
from cache.lease import MAX_TERM_S
from cache.tls import ClientTls, ServerTls
from cache.tracing import SETTING_HELP
from farm.quota import Limits, Quota, parse_tenants

ENV_PREFIX = "FUSEC_FARM_"
POOLS = ("ray", "memory")
LEAST_WORK_MB = 256


@dataclass(frozen=True, slots=True)
class FarmConfig:
    """How a farm's gateway runs. Raises ConfigError on values that make no sense.

    Each field is the environment variable FUSEC_FARM_<FIELD> and, but for secrets, --<field>.
    """

    host: str = field(default="127.0.0.1", metadata={"help": "interface to listen on"})
    port: int = field(default=8701, metadata={"help": "port to listen on; 0 takes a free one"})
    pool: str = field(default="ray", metadata={"help": "what runs the tasks: ray or memory"})
    ray_address: str = field(
        default="", metadata={"help": "the Ray cluster to join; empty starts one on this machine"}
    )
    workers: int = field(
        default=0, metadata={"help": "tasks at once on this machine; 0 is one a CPU core"}
    )
    cache_url: str = field(
        default="", metadata={"help": "the cache service that artifacts are published to"}
    )
    cache_token: str = field(
        default="",
        repr=False,
        metadata={"help": "bearer token for it, with the role write", "secret": True},
    )
    cache_ca: str = field(
        default="", metadata={"help": "authority of its certificate, if not the system's (PEM)"}
    )
    cache_cert: str = field(
        default="", metadata={"help": "certificate to show to it, where it asks for one (PEM)"}
    )
    cache_key: str = field(default="", metadata={"help": "the key of that certificate (PEM)"})
    signing_key: str = field(
        default="",
        metadata={"help": "file of the key that signs artifacts (see `fusec keys generate`)"},
    )
    trusted_keys: str = field(
        default="",
        metadata={
            "help": "file of further public keys whose stored artifacts are used as they are"
        },
    )
    front_role: str = field(
        default="write",
        metadata={
            "help": "least role of a caller whose front records are signed: nobody can check them"
        },
    )
    tls_cert: str = field(default="", metadata={"help": "certificate to serve with, PEM"})
    tls_key: str = field(default="", metadata={"help": "its key, PEM"})
    tls_client_ca: str = field(
        default="", metadata={"help": "authority whose certificate callers must show, PEM"}
    )
    tracing: str = field(default="", metadata={"help": SETTING_HELP})
    token: str = field(
        default="",
        repr=False,
        metadata={
            "help": "bearer token that callers (the cache service) must show",
            "secret": True,
        },
    )
    insecure: bool = field(default=False, metadata={"help": "serve other machines without a token"})
    queue_limit: int = field(
        default=4096, metadata={"help": "jobs of all tenants that may wait; then 429"}
    )
    queue_bytes: int = field(
        default=2 << 30,
        metadata={
            "help": "bytes of graphs held for jobs that are not over; a tenant may have half"
        },
    )
    running_limit: int = field(
        default=16,
        metadata={"help": "jobs in work at the same time; a tenant with none gets one more"},
    )
    tenant_queued: int = field(
        default=0,
        metadata={"help": "jobs of one tenant that may wait; 0 is a quarter of queue_limit"},
    )
    tenant_running: int = field(
        default=0, metadata={"help": "jobs of one tenant in work; 0 is running_limit"}
    )
    tenants: str = field(
        default="",
        metadata={
            "help": "quotas of tenants that differ: namespace=queued/running/weight, as in"
            " research=500/8/2,ci=50/2"
        },
    )
    keep_s: float = field(
        default=60.0, metadata={"help": "seconds for which a finished job is remembered"}
    )
    abandon_s: float = field(
        default=120.0, metadata={"help": "seconds without a poll after which a waiting job goes"}
    )
    task_s: float = field(
        default=1800.0, metadata={"help": "longest time of a task with its wait for a worker"}
    )
    lease_s: float = field(
        default=7.0,
        metadata={
            "help": "seconds after which another gateway takes over the jobs of one that is silent;"
            " 0 where there is one gateway only"
        },
    )
    advertise: str = field(
        default="",
        metadata={
            "help": "address under which other gateways reach this one; empty is host and port"
        },
    )
    peer_ca: str = field(
        default="",
        metadata={"help": "authority of other gateways' certificates, if not the system's (PEM)"},
    )
    peer_name: str = field(
        default="",
        metadata={
            "help": "name in other gateways' certificates, where it is not their address: many may"
            " have one certificate"
        },
    )
    work_s: float = field(
        default=300.0,
        metadata={"help": "longest work on a graph or a kernel, in seconds and seconds of a CPU"},
    )
    verify_s: float = field(
        default=60.0,
        metadata={"help": "longest verification of an artifact against eager, in seconds; 0: none"},
    )
    tune: bool = field(
        default=True, metadata={"help": "time kernels on the cluster's GPUs behind the clients"}
    )
    work_mb: int = field(
        default=8192,
        metadata={"help": "most memory of a compiler's process, in MiB"},
    )

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port {self.port} is not between 0 and 65535")
        if self.pool not in POOLS:
            raise ConfigError(f"pool {self.pool!r:.40} is not one of {', '.join(POOLS)}")
        if min(self.queue_limit, self.queue_bytes, self.running_limit) < 1:
            raise ConfigError("queue_limit, queue_bytes and running_limit must be 1 or more")
        if min(self.workers, self.tenant_queued, self.tenant_running) < 0:
            raise ConfigError("workers, tenant_queued and tenant_running cannot be negative")
        self.limits()
        if min(self.keep_s, self.abandon_s, self.task_s, self.work_s) <= 0:
            raise ConfigError("keep_s, abandon_s, task_s and work_s must be above 0")
        if not 0 <= self.lease_s <= MAX_TERM_S:
            raise ConfigError(f"lease_s is not within 0 and {MAX_TERM_S:g}")
        if self.advertise and not self.advertise.startswith(("http://", "https://")):
            raise ConfigError(f"advertise {self.advertise!r:.60} is not an http address")
        if self.verify_s < 0:
            raise ConfigError("verify_s cannot be negative; 0 verifies nothing")
        if self.work_mb < LEAST_WORK_MB:
            raise ConfigError(f"work_mb must be {LEAST_WORK_MB} at least: compilers need as much")
        if self.front_role not in ROLES:
            raise ConfigError(f"front_role {self.front_role!r:.40} is not one of {ROLES}")
        if self.trusted_keys and not self.signing_key:
            raise ConfigError("trusted_keys needs a signing_key: who checks also signs")
        self.tls()
        if not self.token and not self.insecure and not is_loopback(self.host):
            raise ConfigError(
                f"will not listen on {self.host} without a token: anybody who reaches it could use "
                "the farm",
                hint="set FUSEC_FARM_TOKEN here and FUSEC_CACHE_FARM_TOKEN at the cache service, "
                "or --insecure",
            )

    @classmethod
    def load(cls, environ: Mapping[str, str], flags: Mapping[str, str] | None = None) -> FarmConfig:
        """Read FUSEC_FARM_* of `environ`, then `flags` (field name to text), which win.

        Raises ConfigError for an unknown name and for a value that does not parse.
        """
        return settings.load(cls, ENV_PREFIX, environ, flags)

    def grants(self) -> tuple[Grant, ...]:
        """Who may call: the holder of `token`."""
        return (Grant("submit", hash_token(self.token)),) if self.token else ()

    def tls(self) -> ServerTls:
        """How the gateway serves. Raises ConfigError."""
        return ServerTls(self.tls_cert, self.tls_key, self.tls_client_ca)

    def address(self) -> str:
        """Where other gateways reach this one."""
        if self.advertise:
            return self.advertise.rstrip("/")
        host = socket.gethostname() if self.host in ("0.0.0.0", "::") else self.host
        shown = f"[{host}]" if ":" in host else host
        return f"{self.tls().scheme}://{shown}:{self.port}"

    def peer_tls(self) -> ClientTls:
        """How other gateways are reached: with this one's certificate, where they ask for one."""
        shown = (self.tls_cert, self.tls_key) if self.tls_client_ca else ("", "")
        ca, cert, key = (Path(text) if text else None for text in (self.peer_ca, *shown))
        return ClientTls(ca, cert, key)

    def cache_tls(self) -> ClientTls:
        """How the cache service is reached."""
        ca, cert, key = (
            Path(text) if text else None
            for text in (self.cache_ca, self.cache_cert, self.cache_key)
        )
        return ClientTls(ca, cert, key)

    def limits(self) -> Limits:
        """What the farm takes on. Raises ConfigError for `tenants` that do not parse."""
        quota = Quota(
            self.tenant_queued or max(1, self.queue_limit // 4),
            self.tenant_running or self.running_limit,
        )
        return Limits(
            self.queue_limit,
            self.running_limit,
            self.queue_bytes,
            quota,
            parse_tenants(self.tenants, quota),
            self.keep_s,
            self.abandon_s,
        )

    def worker_count(self) -> int:
        """Tasks at once on this machine: `workers`, or one a core that this process may use."""
        return self.workers or len(os.sched_getaffinity(0))
