"""Tells Ray's autoscaler how large a cluster the farm can use, by class of worker.

Ray sees the tasks that it has. The farm hands it few more than there are workers, so that the order
stays fair; what waits at the gateway would not make the cluster grow. So the whole demand is told,
as the size that the cluster should have. None at all lets it shrink to what the cluster's settings
allow: to no GPU node, where those may go.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

from ray.autoscaler.sdk import request_resources

from farm.devices import CPU

MOST: Final = 4096  # workers of a class that are asked for


class RayDemand:
    """The demand of one gateway. With several, the last word counts for all until the next one;
    Ray removes nodes only after they were idle for minutes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: dict[str, int] = {}
        self._told: dict[str, int] = {}

    def want(self, needs: str, tasks: int) -> None:
        """So many tasks of a class are at work or wait."""
        with self._lock:
            self._wanted[needs] = min(tasks, MOST)

    def tell(self) -> None:
        """Tell Ray what has changed. May take as long as Ray's head is away. Raises RayError."""
        with self._lock:
            wanted = {needs: tasks for needs, tasks in self._wanted.items() if tasks}
        if wanted != self._told:
            request_resources(bundles=bundles(wanted))
            self._told = wanted


def bundles(wanted: Mapping[str, int]) -> list[dict[str, float]]:
    """What Ray is to have room for at the same time, one for each task."""
    return [ray_needs(needs) for needs, tasks in sorted(wanted.items()) for _ in range(tasks)]


def ray_needs(needs: str) -> dict[str, float]:
    """What a task takes of a node. A GPU's takes no CPU: it must not wait for compiles."""
    return {"CPU": 1} if needs == CPU else {"GPU": 1, needs: 1}
