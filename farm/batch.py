"""Kernels that share a task, so that scheduling costs less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from farm.attempts import avoided
from farm.pool import Task, TaskFailed
from farm.queue import Share
from farm.urgency import Urgency
from farm.workers import PlannedKernel, build_task
from fusec.options import Target

SMALL_SOURCE: Final = 2048  # bytes of source below which a kernel shares a task with others
MOST_IN_BATCH: Final = 8
BATCHES_PER_WORKER: Final = 4


@dataclass(frozen=True, slots=True)
class Batch:
    """Kernels of one task, whose work they are and how urgent, and how often and where they were
    tried before."""

    kernels: tuple[PlannedKernel, ...]
    target: Target
    share: Share
    urgency: Urgency
    attempt: int = 1
    avoid: frozenset[str] = frozenset()

    def task(self) -> Task:
        """The task that builds them."""
        one = len(self.kernels) == 1
        label = f"kernel {self.kernels[0].digest[:12]}" if one else f"{len(self.kernels)} kernels"
        made = build_task(self.kernels, self.target, label)
        return replace(made, share=self.share, avoid=self.avoid)

    def of(self, kernels: Sequence[PlannedKernel]) -> Batch:
        """Some of the kernels."""
        return replace(self, kernels=tuple(kernels))

    def again(self, error: TaskFailed) -> Batch:
        """The next attempt, after a failure."""
        return replace(self, attempt=self.attempt + 1, avoid=avoided(self.avoid, error))


def batches(kernels: Sequence[PlannedKernel], workers: int) -> list[list[PlannedKernel]]:
    """Group small kernels, so that scheduling costs less, without starving a worker.

    A kernel of much source is alone. Small ones share a task of at most MOST_IN_BATCH, while there
    are still BATCHES_PER_WORKER tasks for each worker. Much source comes first, as what probably
    takes longest: whatever is started last should be short (R. Graham, "Bounds on Multiprocessing
    Timing Anomalies", 1969).
    """
    longest = sorted(kernels, key=lambda kernel: -len(kernel.source))
    small = [kernel for kernel in longest if len(kernel.source) < SMALL_SOURCE]
    made = [[kernel] for kernel in longest if len(kernel.source) >= SMALL_SOURCE]
    size = len(small) // max(1, workers * BATCHES_PER_WORKER)
    size = min(MOST_IN_BATCH, max(1, size))
    made.extend(list(small[at : at + size]) for at in range(0, len(small), size))
    return made
