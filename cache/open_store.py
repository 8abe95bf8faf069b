"""From a configuration to a store."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable
from urllib.parse import unquote

from cache import key as keys
from cache.config import ServiceConfig
from cache.counters import Counters
from cache.errors import ConfigError
from cache.gc import Collectable
from cache.local import LocalStore
from cache.memory import MemoryStore
from cache.store import Store, SwapStore
from cache.tiered import TieredStore


def open_store(config: ServiceConfig, counters: Counters, namespace: str = "") -> SwapStore:
    """The store that a configuration names, or the part of it that is a namespace's own.

    Namespaces share nothing, not even blobs: who may read one learns nothing of another.

    Raises ConfigError, or Refused for a directory that is not ours. An S3 bucket is not asked
    for anything yet, so that the service starts, alive but not ready, without it.
    """
    scheme, _, rest = config.store.partition(":")
    if scheme == "memory":
        return MemoryStore()
    if scheme == "file":
        folder = disk_folder(config)
        assert folder is not None
        return LocalStore(_part(folder, namespace), counters=counters)
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


def disk_folder(config: ServiceConfig) -> Path | None:
    """Where on a disk the service keeps its store or copies of it; None where it keeps nothing."""
    scheme, _, rest = config.store.partition(":")
    if scheme == "file":
        return Path(unquote(rest.removeprefix("//")))
    return Path(config.disk) if scheme == "s3" and config.disk else None


def collected_part(store: Store) -> Collectable | None:
    """What a collector works on: the store itself or the far one of two tiers; None for memory."""
    part = store.far if isinstance(store, TieredStore) else store
    return part if isinstance(part, Collectable) else None


def namespaces(store: Store) -> list[str]:
    """The namespaces that lie beside a default namespace's store. Raises what the store raises."""
    part = store.far if isinstance(store, TieredStore) else store
    named = part.namespaces() if isinstance(part, HoldsNamespaces) else []
    return sorted(name for name in named if name and keys.is_namespace(name))


def copies(store: Store, counters: Counters) -> list[LocalStore]:
    """The near parts on this disk of all namespaces, open or not, found from the default one's
    store; none where it has no such part. Raises what the store raises."""
    near = store.near if isinstance(store, TieredStore) else None
    if not isinstance(near, LocalStore):
        return []
    beside = (_part(near.root, name) for name in namespaces(near))
    return [near, *(LocalStore(folder, counters=counters) for folder in beside)]


@runtime_checkable
class HoldsNamespaces(Protocol):
    """A store of a default namespace that can name those beside it."""

    def namespaces(self) -> list[str]: ...


def _part(root: Path, namespace: str) -> Path:
    return root / "ns" / namespace if namespace else root
