"""A pool of Ray workers, on this machine or on a cluster."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future
from typing import Final

import ray
from ray import exceptions as raised

from farm.pool import Pool, Runner, Task, TaskFailed, as_failure, pool_closed, settle
from farm.retry import ErrorKind

CPUS_KNOWN_S: Final = 5.0

_LOST = (
    raised.WorkerCrashedError,
    raised.NodeDiedError,
    raised.ObjectLostError,
    raised.RaySystemError,
    raised.LocalRayletDiedError,
)


class RayPool:
    """Runs `run` in Ray tasks of one CPU each; see `Pool`.

    address: a cluster to join; empty starts one on this machine with `workers` CPUs, which `close`
    stops again. A process that is connected to Ray already keeps its connection.
    """

    kind = "ray"

    def __init__(self, run: Runner, *, address: str = "", workers: int) -> None:
        self._owns = not ray.is_initialized()
        if self._owns:
            _connect(address, workers)
        self._run = run
        # Ray would try again by itself; `farm.retry` decides that, so that attempts add up right.
        self._task = ray.remote(num_cpus=1, max_retries=0)(_execute)
        self._lock = threading.Lock()
        self._open: dict[Future[bytes], ray.ObjectRef[bytes]] = {}
        self._closed = False
        self._cpus = 0
        self._counted_at = float("-inf")

    @property
    def workers(self) -> int:
        """See `Pool`: the CPUs of the cluster, at most CPUS_KNOWN_S old: nodes come and go."""
        if self._closed:
            return 0
        now = time.monotonic()
        if now - self._counted_at > CPUS_KNOWN_S:
            self._cpus = int(ray.cluster_resources().get("CPU", 0))
            self._counted_at = now
        return self._cpus

    def submit(self, task: Task) -> Future[bytes]:
        """See `Pool`."""
        future: Future[bytes] = Future()
        with self._lock:
            if self._closed:
                future.set_exception(pool_closed())
                return future
            ref = self._task.options(name=task.label or task.kind).remote(self._run, task)
            self._open[future] = ref
        ref.future().add_done_callback(lambda ended: self._ended(future, ended))
        return future

    def cancel(self, future: Future[bytes]) -> None:
        """See `Pool`. A task that runs already is killed with its worker process."""
        with self._lock:
            ref = self._open.pop(future, None)
        if ref is not None:
            ray.cancel(ref, force=True)
        settle(future, TaskFailed(ErrorKind.CANCELLED, "the task was cancelled"))

    def close(self) -> None:
        """See `Pool`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            left = dict(self._open)
            self._open.clear()
        for future, ref in left.items():
            ray.cancel(ref, force=True)
            settle(future, pool_closed())
        if self._owns:
            ray.shutdown()

    def _ended(self, future: Future[bytes], result: Future[bytes]) -> None:
        with self._lock:
            self._open.pop(future, None)
        error = result.exception()
        settle(future, result.result() if error is None else _failure(error))


def _connect(address: str, workers: int) -> None:
    # Ray would report its use to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
        return
    ray.init(
        address="local",
        # Else Ray asks a public name server which address this machine has.
        _node_ip_address="127.0.0.1",
        num_cpus=workers,
        num_gpus=0,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
    )


def _execute(run: Runner, task: Task) -> bytes:
    return run(task)


def _failure(error: BaseException) -> TaskFailed:
    """What Ray raised, as the one error of the interface."""
    if isinstance(error, raised.RayTaskError):
        cause = error.cause
        return as_failure(cause if isinstance(cause, BaseException) else error)
    if isinstance(error, raised.OutOfMemoryError):
        return TaskFailed(ErrorKind.OUT_OF_MEMORY, "the worker ran out of memory")
    if isinstance(error, raised.TaskCancelledError):
        return TaskFailed(ErrorKind.CANCELLED, "the task was cancelled")
    if isinstance(error, _LOST):
        return TaskFailed(ErrorKind.WORKER_LOST, f"{type(error).__name__}: {error}"[:1000])
    return as_failure(error)


_CONTRACT: type[Pool] = RayPool
