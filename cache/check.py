"""Whether a service works: a blob comes back, and a record changes under a condition alone."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

from cache import key as keys
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


def compare_and_swap(client: CacheClient) -> None:
    """Write a record and change it, as the farm's leases do. A collection removes it.

    Raises what `CacheClient` raises: NoSwap where the service's store gets conditions wrong.
    Raises Corrupt where the service itself does.
    """
    name = f"{keys.LEASE}/{secrets.token_hex(32)}"
    first, second, third = b"1", b"2", b"3"
    steps = (
        (None, first, True),
        (None, second, False),
        (digest(second), third, False),
        (digest(first), third, True),
    )
    for expected, data, written in steps:
        if client.swap_record(name, expected, data) is not written:
            raise Corrupt("the service changes records though the condition does not hold")
    if client.get_record(name) != third:
        raise Corrupt("the service took a record and has not got it")
