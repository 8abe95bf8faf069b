"""A gateway in a process of its own, over the tiny compiler: for tests that kill it.

`python -m tests.farm.gateway_process CACHE_URL PORT LOG SLOW_S LEASE_S` serves until its standard
input ends, and prints a line when it is ready.
"""

from __future__ import annotations

import sys
from functools import partial

from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.embedded import serve_app_in_thread
from farm.config import FarmConfig
from farm.memory_pool import MemoryPool
from farm.open_farm import open_app
from farm.workers import run
from tests.farm.tiny_stages import TinyStages


def main(cache_url: str, port: str, log: str, slow_s: str, lease_s: str) -> None:
    stages = TinyStages(log, slow_s=float(slow_s))
    config = FarmConfig(port=int(port), lease_s=float(lease_s))
    pool = MemoryPool(partial(run, stages=stages), 2)
    with CacheClient(cache_url, budget=DelayBudget(60.0)) as store:
        app = open_app(config, pool, store, stages=stages)
        with serve_app_in_thread(app, port=int(port)):
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            sys.stdin.read()
        pool.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
