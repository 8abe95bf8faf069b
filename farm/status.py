"""The farm's state as its operators see it, drawn up from the book, the pool and the metrics."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

from farm.book import JobBook
from farm.devices import CPU
from farm.estimate import Estimates
from farm.fair_pool import FairPool
from farm.history import History
from farm.job import Job
from farm.metrics import PRIORITIES, WORKERS, FarmMetrics, worker_label
from farm.queue import Backlog
from fusec.remote.farm_status import (
    MAX_ROWS,
    Compiled,
    FarmStatus,
    Poisoned,
    Running,
    Waiting,
    Workers,
)

T = TypeVar("T")


class Reporter:
    """Draws up statuses of one gateway, and sets its gauges."""

    def __init__(
        self,
        book: JobBook,
        pool: FairPool,
        estimates: Estimates,
        history: History,
        metrics: FarmMetrics,
        *,
        slots: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._book = book
        self._pool = pool
        self._estimates = estimates
        self._history = history
        self._metrics = metrics
        self._slots = slots
        self._clock = clock
        self._started = clock()

    def status(self, tenant: str | None, *, draining: bool) -> FarmStatus:
        """The farm's state; with a tenant's name only that tenant's jobs."""
        now, metrics, whole = self._clock(), self._metrics, tenant is None

        def seen(name: str) -> bool:
            return tenant is None or name == tenant

        queue = [backlog for backlog in self._book.backlogs() if seen(backlog.tenant)]
        tasks = {
            needs: [backlog for backlog in backlogs if seen(backlog.tenant)]
            for needs, backlogs in self._pool.backlogs().items()
        }
        running = sorted(
            (job for job in self._book.in_work() if seen(job.tenant)), key=lambda j: j.submitted_at
        )
        ended = [job for job in self._book.ended() if seen(job.tenant)]
        recent = [job for job in self._history.recent() if seen(job.tenant)]
        slowest = [job for job in self._history.slowest() if seen(job.tenant)]
        return FarmStatus(
            pool=self._pool.kind,
            up_s=now - self._started,
            draining=draining,
            queued=sum(backlog.length for backlog in queue),
            in_work=len(running),
            workers=self._workers(),
            queue=_rows(_waiting("", backlog, now) for backlog in queue),
            tasks=_rows(
                _waiting(needs, backlog, now)
                for needs, backlogs in tasks.items()
                for backlog in backlogs
            ),
            running=_rows(self._running(job, now) for job in running),
            recent=_rows(_compiled(job, now) for job in recent),
            slowest=_rows(_compiled(job, now) for job in slowest),
            poisoned=_rows(made for job in ended if (made := _poisoned(job, now)) is not None),
            submits=metrics.counts("fusec_farm_submits_total", "outcome") if whole else {},
            kernels=metrics.counts("fusec_farm_kernels_total", "source") if whole else {},
            seconds_saved=metrics.value("fusec_farm_seconds_saved_total") if whole else None,
        )

    def measure(self, *, draining: bool) -> None:
        """Set the gauges, for a scrape."""
        metrics, now = self._metrics, self._clock()
        lengths: Counter[tuple[str, str]] = Counter()
        ages: defaultdict[tuple[str, str], float] = defaultdict(float)
        waiting = {"": self._book.backlogs(), **self._pool.backlogs()}
        for needs, backlogs in waiting.items():
            for backlog in backlogs:
                place = worker_label(needs), backlog.priority.label
                lengths[place] += backlog.length
                ages[place] = max(ages[place], now - backlog.oldest)
        counts: Counter[str] = Counter()
        busy: Counter[str] = Counter()
        for row in self._workers():
            counts[worker_label(row.needs)] += row.workers
            busy[worker_label(row.needs)] += row.busy
        for priority in PRIORITIES:
            metrics.queued.labels(priority).set(lengths["", priority])
            metrics.queue_age.labels(priority).set(ages["", priority])
        # A class that has gone must not keep its last figures.
        for worker in {*WORKERS, *counts, *(place for place, _ in lengths if place)}:
            metrics.workers.labels(worker).set(counts[worker])
            metrics.busy.labels(worker).set(busy[worker])
            for priority in PRIORITIES:
                metrics.tasks.labels(worker, priority).set(lengths[worker, priority])
                metrics.tasks_age.labels(worker, priority).set(ages[worker, priority])
        metrics.running.set(self._book.running)
        metrics.draining.set(draining)

    def _workers(self) -> tuple[Workers, ...]:
        busy = self._pool.in_work()
        classes = dict.fromkeys((CPU, *self._pool.gpu_classes(), *busy))
        return _rows(
            Workers(needs, self._pool.workers_of(needs), busy.get(needs, 0)) for needs in classes
        )

    def _running(self, job: Job, now: float) -> Running:
        return Running(
            tenant=job.tenant,
            training_job=job.request.training_job,
            fingerprint=job.fingerprint,
            stage=job.state.value,
            age_s=now - job.submitted_at,
            stage_s=now - job.since,
            kernels_done=job.kernels_done,
            kernels_total=job.kernels_total,
            waiters=self._book.waiters(job.id),
            left_s=self._estimates.left_s(job, 0, self._slots, now),
        )


def _rows(rows: Iterable[T]) -> tuple[T, ...]:
    return tuple(islice(rows, MAX_ROWS))


def _waiting(needs: str, backlog: Backlog, now: float) -> Waiting:
    return Waiting(
        needs, backlog.tenant, backlog.priority.label, backlog.length, now - backlog.oldest
    )


def _compiled(job: Job, now: float) -> Compiled:
    ended = job.since
    started = job.started_at or ended
    return Compiled(
        tenant=job.tenant,
        training_job=job.request.training_job,
        fingerprint=job.fingerprint,
        device=job.request.target.device,
        seconds=ended - started,
        queued_s=started - job.submitted_at,
        kernels_total=job.kernels_total,
        kernels_stored=job.kernels_stored,
        merged=job.merged,
        ago_s=now - ended,
        error=job.error.kind if job.error is not None else "",
    )


def _poisoned(job: Job, now: float) -> Poisoned | None:
    left_s = job.since + job.remember_s - now
    if job.error is None or left_s <= 0.0:
        return None
    lines = job.error.message.strip().splitlines() or [""]
    return Poisoned(job.tenant, job.fingerprint, job.error.kind, lines[0][:200], left_s)
