"""A pool of Ray workers, on this machine or on a cluster."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future
from typing import Final

import ray
from ray import exceptions as raised

from farm.devices import CPU, detected, is_gpu_class, ray_resources
from farm.pool import Pool, Runner, Task, TaskFailed, as_failure, pool_closed, settle
from farm.retry import ErrorKind

RESOURCES_KNOWN_S: Final = 5.0

_LOST = (
    raised.WorkerCrashedError,
    raised.NodeDiedError,
    raised.ObjectLostError,
    raised.RaySystemError,
    raised.LocalRayletDiedError,
)


class RayPool:
    """Runs `run` in Ray tasks of one CPU each, or of one GPU of the class they need; see `Pool`.

    address: a cluster to join; empty starts one on this machine with `workers` CPUs and its GPUs,
    which `close` stops again. A process that is connected to Ray already keeps its connection. A
    node offers its GPUs by class as custom resources: `python -m farm resources` names them.
    """

    kind = "ray"

    def __init__(self, run: Runner, *, address: str = "", workers: int) -> None:
        self._owns = not ray.is_initialized()
        if self._owns:
            _connect(address, workers)
        self._run = run
        # Ray would try again by itself; `farm.retry` decides that, so that attempts add up right.
        self._task = ray.remote(max_retries=0)(_execute)
        self._lock = threading.Lock()
        self._open: dict[Future[bytes], ray.ObjectRef[bytes]] = {}
        self._closed = False
        self._resources: dict[str, float] = {}
        self._counted_at = float("-inf")

    @property
    def workers(self) -> int:
        """See `Pool`: the CPUs of the cluster."""
        return self.workers_of(CPU)

    def workers_of(self, needs: str) -> int:
        """See `Pool`."""
        return int(self._known().get("CPU" if needs == CPU else needs, 0))

    def gpu_classes(self) -> tuple[str, ...]:
        """See `Pool`."""
        return tuple(sorted(name for name, n in self._known().items() if n and is_gpu_class(name)))

    def _known(self) -> dict[str, float]:
        """The cluster's resources, at most RESOURCES_KNOWN_S old: nodes come and go."""
        if self._closed:
            return {}
        now = time.monotonic()
        if now - self._counted_at > RESOURCES_KNOWN_S:
            self._resources = dict(ray.cluster_resources())
            self._counted_at = now
        return self._resources

    def submit(self, task: Task) -> Future[bytes]:
        """See `Pool`."""
        future: Future[bytes] = Future()
        with self._lock:
            if self._closed:
                future.set_exception(pool_closed())
                return future
            options = {"name": task.label or task.kind, **_resources(task)}
            ref = self._task.options(**options).remote(self._run, task)
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
    gpus = [needs for needs, ordinals in detected().items() for _ in ordinals]
    ray.init(
        address="local",
        # Else Ray asks a public name server which address this machine has.
        _node_ip_address="127.0.0.1",
        num_cpus=workers,
        num_gpus=len(gpus),
        resources=ray_resources(gpus),
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
    )


def _resources(task: Task) -> dict[str, object]:
    """What Ray is to keep for a task. A GPU's takes no CPU: it must not wait for compiles."""
    if task.needs == CPU:
        return {"num_cpus": 1}
    return {"num_cpus": 0, "num_gpus": 1, "resources": {task.needs: 1}}


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
