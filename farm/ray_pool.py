"""A pool of Ray workers, on this machine or on a cluster."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

import ray
from ray import exceptions as raised
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from farm.devices import CPU, detected, is_gpu_class, ray_resources
from farm.pool import Heard, Pool, Runner, Task, TaskFailed, as_failure, pool_closed, settle
from farm.ray_demand import RayDemand, ray_needs
from farm.retry import ErrorKind
from farm.stamp import stamped
from fusec.parts import Parts, each, finish
from fusec.remote.protocol import Priority

_Ref: TypeAlias = "ray.ObjectRef[bytes] | ray.ObjectRefGenerator"

log = logging.getLogger("fusec.farm")

NODES_KNOWN_S: Final = 2.0
WITHDRAW_S: Final = 2.0
STREAM_ENDS_S: Final = 10.0

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
        self._streaming = ray.remote(max_retries=0, num_returns="streaming")(_execute_in_parts)
        self._lock = threading.Lock()
        self._open: dict[Future[bytes], _Ref | None] = {}  # None: not started yet
        self._streams: dict[Future[bytes], threading.Thread] = {}
        self._closed = threading.Event()
        self._nodes = _nodes()
        self._demand = RayDemand()
        # Ray is called from here alone: not from the caller's event loop, since a call may wait for
        # a head that is away, and not from the thread that tells of results, which must not wait.
        self._calls = ThreadPoolExecutor(1, thread_name_prefix="farm-ray")
        self._watcher = threading.Thread(target=self._watch, name="farm-ray-watch", daemon=True)
        self._watcher.start()

    @property
    def workers(self) -> int:
        """See `Pool`: the CPUs of the cluster."""
        return self.workers_of(CPU)

    def workers_of(self, needs: str) -> int:
        """See `Pool`. At most NODES_KNOWN_S old: nodes come and go."""
        if self._closed.is_set():
            return 0
        name = _resource(needs)
        return int(sum(offers.get(name, 0) for offers in self._nodes.values()))

    def gpu_classes(self) -> tuple[str, ...]:
        """See `Pool`."""
        names = {name for offers in self._nodes.values() for name, n in offers.items() if n}
        return tuple(sorted(name for name in names if is_gpu_class(name)))

    def want(self, needs: str, tasks: int) -> None:
        """See `Pool`. Told to Ray's autoscaler, within NODES_KNOWN_S."""
        self._demand.want(needs, tasks)

    def submit(self, task: Task, heard: Heard | None = None) -> Future[bytes]:
        """See `Pool`."""
        future: Future[bytes] = Future()
        with self._lock:
            if self._closed.is_set():
                future.set_exception(pool_closed())
                return future
            self._open[future] = None
            self._calls.submit(self._start, future, task, heard)
        return future

    def hurry(self, future: Future[bytes], priority: Priority) -> None:
        """See `Pool`. The order of this one is that of submission."""

    def cancel(self, future: Future[bytes]) -> None:
        """See `Pool`. A task that runs already is interrupted."""
        settle(future, TaskFailed(ErrorKind.CANCELLED, "the task was cancelled"))
        with self._lock:
            ref = self._open.get(future)
            if ref is not None and not self._closed.is_set():
                self._calls.submit(ray.cancel, ref)

    def close(self) -> None:
        """See `Pool`."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
        self._calls.shutdown(cancel_futures=True)
        with self._lock:
            left, self._open = self._open, {}
            streams = [*self._streams.values()]
        for future, ref in left.items():
            if ref is not None:
                ray.cancel(ref, force=True)
            settle(future, pool_closed())
        for stream in streams:
            stream.join(STREAM_ENDS_S)  # a shutdown below it would be the end of this process
        if self._owns:
            ray.shutdown()
        else:
            self._watcher.join(WITHDRAW_S)

    def _start(self, future: Future[bytes], task: Task, heard: Heard | None) -> None:
        if future.done():  # cancelled meanwhile
            self._forget(future)
            return
        options = {"name": task.label or task.kind, **_resources(task), **self._elsewhere(task)}
        function = self._task if heard is None else self._streaming
        try:
            ref = function.options(**options).remote(self._run, task)
        except (raised.RayError, OSError, RuntimeError) as error:
            self._forget(future)
            settle(future, TaskFailed(ErrorKind.WORKER_LOST, f"Ray takes no task: {error}"))
            return
        with self._lock:
            self._open[future] = ref
        if heard is None:
            ref.future().add_done_callback(partial(self._ended, future))
        else:
            # A thread for each: few tasks have parts, and a stream is read by waiting for it.
            arguments = (future, ref, heard)
            thread = threading.Thread(target=self._follow, args=arguments, name="farm-ray-stream")
            thread.daemon = True
            with self._lock:
                self._streams[future] = thread
            thread.start()
        if future.done():
            ray.cancel(ref)

    def _elsewhere(self, task: Task) -> dict[str, object]:
        """Sends a task to a node on which it has not failed, if there is one."""
        if not task.avoid:
            return {}
        name, known = _resource(task.needs), self._nodes
        others = [node for node in known if node not in task.avoid and known[node].get(name)]
        if not others:
            return {}
        # Soft: a node that is lost meanwhile does not keep the task. (A soft label that is not to
        # be met is passed over by Ray 2.60 even where others are.)
        chosen = NodeAffinitySchedulingStrategy(random.choice(others), soft=True)
        return {"scheduling_strategy": chosen}

    def _ended(self, future: Future[bytes], result: Future[bytes]) -> None:
        self._forget(future)
        error = result.exception()
        settle(future, result.result() if error is None else _failure(error))

    def _follow(self, future: Future[bytes], stream: ray.ObjectRefGenerator, heard: Heard) -> None:
        """Tell each part of a task as it comes, up to the result."""
        outcome: bytes | TaskFailed = TaskFailed(ErrorKind.WORKER_LOST, "a task without a result")
        try:
            for ref in stream:
                more, data = ray.get(ref)
                if more:
                    heard(data)
                else:
                    outcome = data
        except (raised.RayError, OSError, RuntimeError) as error:
            outcome = _failure(error)
        self._forget(future)
        settle(future, outcome)

    def _forget(self, future: Future[bytes]) -> None:
        with self._lock:
            self._open.pop(future, None)
            self._streams.pop(future, None)

    def _watch(self) -> None:
        """Keep up with the nodes that come and go, and have more come."""
        while not self._closed.wait(NODES_KNOWN_S):
            try:
                self._nodes = _nodes()
                self._demand.tell()
            except raised.RayError as error:
                log.warning("Ray does not answer: %s", error, extra={"action": "ray"})
        if not self._owns:
            with suppress(raised.RayError):  # others forget it when they hear no more of it
                self._demand.withdraw()


def _nodes() -> dict[str, dict[str, float]]:
    """What each node that is alive offers, by its name."""
    return {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}


def _resource(needs: str) -> str:
    """Ray's name of what a class of worker has one of for each task."""
    return "CPU" if needs == CPU else needs


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
        # Ray ends workers beyond one a CPU that rest for a second. A GPU's would be the first, and
        # with it what it keeps ready: a process with torch and the GPU's context.
        _system_config={"num_workers_soft_limit": workers + len(gpus)},
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
    )


def _resources(task: Task) -> dict[str, object]:
    """`ray_needs` as the options of a task."""
    needs = dict(ray_needs(task.needs))
    cpus, gpus = needs.pop("CPU", 0), needs.pop("GPU", 0)
    return {"num_cpus": cpus, "num_gpus": gpus, "resources": needs}


def _execute(run: Runner, task: Task) -> bytes:
    return finish(_work(run, task))


def _execute_in_parts(run: Runner, task: Task) -> Iterator[tuple[bool, bytes]]:
    """Whether there is more, and what there is."""
    result = yield from each(_work(run, task), lambda part: (True, part))
    yield False, result


def _work(run: Runner, task: Task) -> Parts[bytes, bytes]:
    # Ray cancels by an interrupt, which a cluster that was started in the background has its
    # workers ignore.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    node = ray.get_runtime_context().get_node_id()
    try:
        return (yield from stamped(run, replace(task, node=node)))
    except TaskFailed as error:
        error.node = node
        raise


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
