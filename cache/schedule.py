"""Collections of a service: now and then, one namespace after another, beside its traffic."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from cache import gc
from cache.errors import CacheError, NotReachable
from cache.gc import Collectable, Plan, Policy

log = logging.getLogger("fusec.cache")


class Collections:
    """Collects what `stores` names at the time, every `every_s` seconds, in a thread of its own.

    Give or take a fifth, so that replicas do not meet. `ended` is told what each has removed,
    None for one that failed, and the seconds that it took.
    """

    def __init__(
        self,
        every_s: float,
        stores: Callable[[], Iterable[tuple[Collectable, Policy]]],
        ended: Callable[[Plan | None, float], None],
    ) -> None:
        self._every_s = every_s
        self._stores = stores
        self._ended = ended
        self._stopped = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fusec-cache-gc")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin. Called in the event loop."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End; a collection under way removes nothing more."""
        self._stopped.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown(wait=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s * random.uniform(0.8, 1.2))
            await asyncio.get_running_loop().run_in_executor(self._thread, self._collect)

    def _collect(self) -> None:
        started = time.monotonic()
        try:
            stores = list(self._stores())
        except CacheError as error:
            self._failed(error, started)
            return
        for store, policy in stores:
            started = time.monotonic()
            try:
                done = gc.collect(store, policy, sleep=self._sleep)
            except CacheError as error:
                self._failed(error, started)
            else:
                self._ended(done, time.monotonic() - started)

    def _failed(self, error: CacheError, started: float) -> None:
        # Another replica's collector is at work, or the store is away: next time.
        log.warning("nothing was collected: %s", error, extra={"action": "collect"})
        self._ended(None, time.monotonic() - started)

    def _sleep(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise NotReachable("the service is stopping")
