"""From a configuration to a store."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from cache.config import ServiceConfig
from cache.counters import Counters
from cache.errors import ConfigError
from cache.local import LocalStore
from cache.memory import MemoryStore
from cache.store import Store
from cache.tiered import TieredStore


def open_store(config: ServiceConfig, counters: Counters, namespace: str = "") -> Store:
    """The store that a configuration names, or the part of it that is a namespace's own.

    Namespaces share nothing, not even blobs: who may read one learns nothing of another.

    Raises ConfigError, or Refused for a directory that is not ours. An S3 bucket is not asked
    for anything yet, so that the service starts, alive but not ready, without it.
    """
    scheme, _, rest = config.store.partition(":")
    if scheme == "memory":
        return MemoryStore()
    if scheme == "file":
        return LocalStore(
            _part(Path(unquote(rest.removeprefix("//"))), namespace), counters=counters
        )
    if scheme != "s3":
        raise ConfigError(f"store {config.store!r} is of no known kind")
    try:
        # boto3 comes with an extra and takes long to import: only those who use it pay.
        from cache.s3 import S3Store
    except ModuleNotFoundError as error:
        raise ConfigError("an s3 store needs boto3", hint="pip install 'fusec[cache]'") from error
    bucket, _, prefix = rest.removeprefix("//").partition("/")
    if not bucket:
        raise ConfigError(f"store {config.store!r} names no bucket")
    far = S3Store(
        bucket,
        "/".join(filter(None, (prefix.strip("/"), f"ns/{namespace}" if namespace else ""))),
        endpoint=config.s3_endpoint,
        region=config.s3_region,
        counters=counters,
    )
    if not config.disk:
        return far
    near = LocalStore(_part(Path(config.disk), namespace), counters=counters)
    return TieredStore(near, far, counters=counters)


def _part(root: Path, namespace: str) -> Path:
    return root / "ns" / namespace if namespace else root
