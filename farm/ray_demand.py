"""Tells Ray's autoscaler how large a cluster the farm can use, by class of worker.

Ray sees the tasks that it has. The farm hands it few more than there are workers, so that the order
stays fair; what waits at the gateway would not make the cluster grow. So the whole demand is told,
as the size that the cluster should have. None at all lets it shrink to what the cluster's settings
allow: to no GPU node, where those may go.

Ray keeps one demand, that of who spoke last. So each gateway writes its own beside it, in the
key-value store of Ray's head, and tells the sum of all. Its value changes with every round: one
that stands still for STALE_S seconds is that of a gateway which has gone.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from ray.autoscaler.sdk import request_resources
from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_list,
    _internal_kv_put,
)

from cache.errors import CacheError
from cache.protocol import pack, unpack
from farm.devices import CPU

MOST: Final = 4096  # workers of a class that are asked for
STALE_S: Final = 10.0  # several rounds of `RayPool`
PREFIX: Final = b"fusec-demand/"
_MAX_VALUE: Final = 64 << 10
_MAX_CLASSES: Final = 256


class RayDemand:
    """The demand of one gateway, and that of all. `tell` and `withdraw` are for one thread and may
    take as long as Ray's head is away. They raise RayError."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key = PREFIX + secrets.token_hex(8).encode()
        self._lock = threading.Lock()
        self._wanted: dict[str, int] = {}
        self._round = 0
        self._seen: dict[bytes, tuple[bytes, float]] = {}  # others' values, and since when
        self._told: Counter[str] | None = None

    def want(self, needs: str, tasks: int) -> None:
        """So many tasks of a class are at work or wait."""
        with self._lock:
            self._wanted[needs] = min(tasks, MOST)

    def tell(self) -> None:
        """Write this gateway's demand, and tell Ray what all want if that has changed."""
        with self._lock:
            wanted = {needs: tasks for needs, tasks in self._wanted.items() if tasks}
        self._round += 1
        _internal_kv_put(self._key, pack({"round": self._round, "wants": {**wanted}}))
        self._tell(Counter(wanted) + self._others())

    def withdraw(self) -> None:
        """This gateway wants nothing any more."""
        _internal_kv_del(self._key)
        self._tell(self._others())

    def _tell(self, total: Counter[str]) -> None:
        if total != self._told:
            request_resources(bundles=bundles(total))
            self._told = total

    def _others(self) -> Counter[str]:
        """What the other gateways want together; those that have gone are forgotten."""
        total: Counter[str] = Counter()
        now, before, self._seen = self._clock(), self._seen, {}
        for key in _internal_kv_list(PREFIX):
            value = None if key == self._key else _internal_kv_get(key)
            if value is None:
                continue
            known, since = before.get(key, (b"", now))
            since = since if known == value else now
            if now - since > STALE_S:
                _internal_kv_del(key)
                continue
            self._seen[key] = value, since
            total.update(_wants(value))
        return total


def bundles(wanted: Mapping[str, int]) -> list[dict[str, float]]:
    """What Ray is to have room for at the same time, one for each task."""
    return [
        ray_needs(needs) for needs, tasks in sorted(wanted.items()) for _ in range(min(tasks, MOST))
    ]


def ray_needs(needs: str) -> dict[str, float]:
    """What a task takes of a node. A GPU's takes no CPU: it must not wait for compiles."""
    return {"CPU": 1} if needs == CPU else {"GPU": 1, needs: 1}


def _wants(value: bytes) -> Counter[str]:
    """What a gateway has written; nothing if it makes no sense, as of another release."""
    try:
        body = unpack(value, max_bytes=_MAX_VALUE, max_depth=2)
    except CacheError:
        return Counter()
    wants = body.get("wants") if isinstance(body, dict) else None
    if not isinstance(wants, dict) or len(wants) > _MAX_CLASSES:
        return Counter()
    return Counter(
        {needs: min(tasks, MOST) for needs, tasks in wants.items() if type(tasks) is int}
    )
