"""Whether a service works: a blob of random bytes goes there and comes back."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

from cache.client import CacheClient
from cache.digest import digest
from cache.errors import Corrupt

CHECK_BYTES = 1 << 16


@dataclass(frozen=True)
class RoundTrip:
    """Seconds that the put and the get of `size` bytes took."""

    size: int
    put_s: float
    get_s: float


def round_trip(client: CacheClient, size: int = CHECK_BYTES) -> RoundTrip:
    """Put `size` random bytes and get them back. No entry names them: a collection removes them.

    Raises what `CacheClient` raises, and Corrupt where the service has not got them afterwards.
    """
    data = secrets.token_bytes(size)
    name = digest(data)
    started = time.perf_counter()
    client.put_blob(name, data)
    written = time.perf_counter()
    found = client.get_blob(name)  # checked by its digest
    if found is None:
        raise Corrupt("the service took a blob and has not got it")
    return RoundTrip(size, written - started, time.perf_counter() - written)
