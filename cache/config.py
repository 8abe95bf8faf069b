"""Settings of the cache service: one frozen value, from FUSEC_CACHE_* and flags, checked once."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cache import settings
from cache.auth import Grant
from cache.errors import ConfigError
from cache.gc import MIN_GRACE_S, Policy
from cache.tls import ClientTls, ServerTls
from cache.tracing import SETTING_HELP

ENV_PREFIX = "FUSEC_CACHE_"
CLIENTS = frozenset({"FUSEC_CACHE_BYTES", "FUSEC_CACHE_DIR"})
"""The client's settings: not ours, and no mistake."""


def _grants(text: str) -> tuple[Grant, ...]:
    return tuple(Grant.parse(item) for item in text.split(",") if item.strip())


@dataclass(frozen=True)
class ServiceConfig:
    """How a cache service runs. Raises ConfigError on values that make no sense.

    Each field is the environment variable FUSEC_CACHE_<FIELD> and the flag --<field>.
    """

    host: str = field(default="127.0.0.1", metadata={"help": "interface to listen on"})
    port: int = field(default=8700, metadata={"help": "port to listen on; 0 takes a free one"})
    store: str = field(
        default="memory:",
        metadata={"help": "where artifacts live: memory:, file:///dir or s3://bucket/prefix"},
    )
    disk: str = field(
        default="", metadata={"help": "a directory that keeps copies in front of an s3 store"}
    )
    s3_endpoint: str = field(
        default="", metadata={"help": "address of an S3-compatible server, if not AWS"}
    )
    s3_region: str = field(default="", metadata={"help": "region of the bucket, if not AWS's own"})
    memory_bytes: int = field(
        default=512 << 20, metadata={"help": "bytes of compressed blobs kept in memory"}
    )
    entry_ttl_s: float = field(
        default=10.0, metadata={"help": "seconds for which an entry is served from memory"}
    )
    farm_url: str = field(
        default="",
        metadata={
            "help": "address of the compile farm's gateway, for misses; several by commas, or by a "
            "name that has several addresses"
        },
    )
    farm_token: str = field(
        default="",
        repr=False,
        metadata={"help": "bearer token for the farm's gateway", "secret": True},
    )
    tokens: tuple[Grant, ...] = field(
        default=(),
        repr=False,
        metadata={
            "help": "who may do what: role:sha256-of-token[:namespace], comma-separated (see "
            "`token`)",
            "secret": True,
            "parse": _grants,
        },
    )
    trusted_keys: str = field(
        default="",
        metadata={"help": "a file of public keys: entries that none of them signed are refused"},
    )
    tls_cert: str = field(default="", metadata={"help": "certificate to serve with, PEM"})
    tls_key: str = field(default="", metadata={"help": "its key, PEM"})
    tls_client_ca: str = field(
        default="", metadata={"help": "authority whose certificate every client must show, PEM"}
    )
    farm_ca: str = field(
        default="", metadata={"help": "authority of the farm's certificate, if not the system's"}
    )
    insecure: bool = field(
        default=False,
        metadata={"help": "serve other machines without tokens: anybody there may plant code"},
    )
    gc_every_s: float = field(
        default=0.0, metadata={"help": "seconds between collections; 0 runs none (see `gc-once`)"}
    )
    gc_max_age_s: float = field(
        default=0.0, metadata={"help": "seconds without use after which an entry goes; 0 is never"}
    )
    gc_max_bytes: int = field(
        default=0, metadata={"help": "bytes at rest above which what was used longest ago goes"}
    )
    gc_grace_s: float = field(
        default=86_400.0, metadata={"help": "seconds for which a blob stays without an entry"}
    )
    disk_bytes: int = field(
        default=64 << 30, metadata={"help": "most bytes of the copies in the directory `disk`"}
    )
    redirect_bytes: int = field(
        default=0,
        metadata={
            "help": "blobs of so many bytes at rest are fetched from S3 by the client itself, by a "
            "presigned address; 0 serves all from here"
        },
    )
    tracing: str = field(default="", metadata={"help": SETTING_HELP})
    store_threads: int = field(default=16, metadata={"help": "most store calls at the same time"})

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port {self.port} is not between 0 and 65535")
        if self.memory_bytes < 0 or self.entry_ttl_s < 0 or self.store_threads < 1:
            raise ConfigError("memory_bytes, entry_ttl_s and store_threads cannot be negative")
        if min(self.gc_every_s, self.gc_max_age_s, self.gc_max_bytes) < 0:
            raise ConfigError("the settings of the collector cannot be negative")
        if min(self.disk_bytes, self.redirect_bytes) < 0:
            raise ConfigError("disk_bytes and redirect_bytes cannot be negative")
        if self.gc_grace_s < MIN_GRACE_S:
            raise ConfigError(
                f"gc_grace_s is under {MIN_GRACE_S:.0f}: an upload under way would lose its blobs"
            )
        if not self.store.startswith(("memory:", "file:///", "s3://")):
            raise ConfigError(
                f"store {self.store!r} is of no known kind",
                hint="use memory:, file:///dir or s3://bucket/prefix",
            )
        if self.disk and not self.store.startswith("s3://"):
            raise ConfigError("disk keeps copies in front of an s3 store; the store is not s3")
        for url in self.farm_urls():
            if not url.startswith(("http://", "https://")):
                raise ConfigError(f"farm_url {url!r} is not an http address")
        self.tls()
        if not self.tokens and not self.insecure and not is_loopback(self.host):
            raise ConfigError(
                f"will not listen on {self.host} without tokens: anybody who reaches it could "
                "plant code that training jobs execute",
                hint="set FUSEC_CACHE_TOKENS (see `python -m cache token --help`) or --insecure",
            )

    def tls(self) -> ServerTls:
        """How it serves. Raises ConfigError."""
        return ServerTls(self.tls_cert, self.tls_key, self.tls_client_ca)

    def policy(self) -> Policy:
        """What a collection lets go."""
        return Policy(
            max_age_s=self.gc_max_age_s or None,
            max_bytes=self.gc_max_bytes or None,
            grace_s=self.gc_grace_s,
        )

    def farm_urls(self) -> tuple[str, ...]:
        """The gateways' addresses, each once."""
        urls = (url.strip().rstrip("/") for url in self.farm_url.split(","))
        return tuple(dict.fromkeys(url for url in urls if url))

    def farm_tls(self) -> ClientTls:
        """How the farm's certificate is checked."""
        return ClientTls(Path(self.farm_ca) if self.farm_ca else None)

    @classmethod
    def load(
        cls, environ: Mapping[str, str], flags: Mapping[str, str] | None = None
    ) -> ServiceConfig:
        """Read FUSEC_CACHE_* of `environ`, then `flags` (field name to text), which win.

        Raises ConfigError for an unknown name and for a value that does not parse.
        """
        return settings.load(cls, ENV_PREFIX, environ, flags, others=CLIENTS)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
