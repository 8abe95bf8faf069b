"""From a configuration to a store."""

from __future__ import annotations

from urllib.parse import unquote

from cache.config import ServiceConfig
from cache.counters import Counters
from cache.errors import ConfigError
from cache.local import LocalStore
from cache.memory import MemoryStore
from cache.store import Store


def open_store(config: ServiceConfig, counters: Counters) -> Store:
    """The store that a configuration names. Raises ConfigError, or Refused for a directory that
    is not ours; an S3 bucket is not asked for here, so that the service starts without it."""
    scheme, _, rest = config.store.partition(":")
    if scheme == "memory":
        return MemoryStore()
    if scheme == "file":
        return LocalStore(unquote(rest.removeprefix("//")), counters=counters)
    if scheme == "s3":
        raise ConfigError("s3 stores come with the next commit")
    raise ConfigError(f"store {config.store!r} is of no known kind")
