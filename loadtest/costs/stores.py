"""Measures a real S3-compatible server's answers, and what a client of the service pays."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from cache.client import CacheClient
from cache.config import ServiceConfig
from cache.digest import digest
from cache.embedded import serve_in_thread
from cache.s3 import S3Store
from cache.testing import seaweedfs_server
from loadtest.costs.model import StoreTimes

SMALL = 16_000
LARGE = 8_000_000


def measure(count: int, say: Callable[[str], None]) -> StoreTimes:
    """Wall times are the tenth of the samples: a busy machine makes the others longer."""
    say("SeaweedFS")
    with (
        seaweedfs_server() as server,
        _store(server.endpoint, server.access_key, server.secret_key) as store,
    ):
        small = [os.urandom(SMALL) for _ in range(count)]
        large = [os.urandom(LARGE) for _ in range(8)]
        put_s = _tenth(lambda data: store.put_blob(digest(data), data), small)
        get_s = _tenth(lambda data: store.get_blob(digest(data)), small)
        for data in large:
            store.put_blob(digest(data), data)
        large_s = _tenth(lambda data: store.get_blob(digest(data)), large)
    say("the cache service's client")
    with serve_in_thread(ServiceConfig(port=0)) as running, CacheClient(running.url) as client:
        client.has_blobs(["0" * 64])
        # The service is in this process: the client's part is that of this thread.
        begin = time.thread_time()
        for _ in range(count):
            client.has_blobs(["0" * 64])
        client_cpu_s = (time.thread_time() - begin) / count
    mb_s = max(0.0, (large_s - get_s) / ((LARGE - SMALL) / 1e6))
    return StoreTimes(get_s, put_s, mb_s, client_cpu_s)


def _store(endpoint: str, access: str, secret: str) -> S3Store:
    return S3Store("fusec", "costs", endpoint=endpoint, access_key=access, secret_key=secret)


def _tenth(work: Callable[[bytes], object], samples: list[bytes]) -> float:
    seconds = []
    for sample in samples:
        begin = time.perf_counter()
        work(sample)
        seconds.append(time.perf_counter() - begin)
    return sorted(seconds)[len(seconds) // 10]
