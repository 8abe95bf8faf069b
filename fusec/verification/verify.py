"""Verifying an artifact in a child process: what it does to that process is part of the verdict."""

from __future__ import annotations

import atexit
import functools
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cache.artifacts import Found
from fusec.artifact.quality import Outcome, Verification
from fusec.child_process import MAX_MESSAGE, Child
from fusec.errors import ChildLost

SEED: Final = 20250601
_START_S: Final = 120.0
_LEAST_S: Final = 30.0
_TIMES_EAGER: Final = 20.0  # an artifact that takes longer is taken for one that hangs
_FINITE: Final = 0.5
_SLACK_BYTES: Final = 4 << 30  # what torch itself and its libraries take
_MESSAGE_SLACK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """memory: bytes of tensors, above which a graph is left out; seconds: of wall time for all of
    it; threads: of the CPU."""

    memory: int = 4 << 30
    seconds: float = 60.0
    threads: int = 2


def verify(
    graph: bytes,
    found: Found,
    *,
    limits: Limits,
    gpu: Mapping[str, str] | None = None,
    seed: int = SEED,
) -> Verification:
    """Run an artifact beside eager, on the CPU or on the GPU that ``gpu`` shows the child.

    graph: `graph_to_bytes`. gpu: variables as of `fusec.tune.device.only_gpu`; None: there is none.
    Never raises for an artifact or a graph at fault: the outcome says it.
    """
    if len(graph) + found.manifest.size() > MAX_MESSAGE - _MESSAGE_SLACK:
        return Verification(Outcome.SKIPPED, why="the artifact is too large to be passed on")
    return _Run(graph, found, limits, gpu, seed).verification()


class _Run:
    def __init__(
        self,
        graph: bytes,
        found: Found,
        limits: Limits,
        gpu: Mapping[str, str] | None,
        seed: int,
    ) -> None:
        self._task = {
            "graph": graph,
            "manifest": found.manifest.encode(),
            "blobs": dict(found.blobs),
            "seed": seed,
            "memory": limits.memory if gpu is None else None,
            "threads": limits.threads,
        }
        self._limits = limits
        self._gpu = gpu
        self._seed = seed
        self._deadline = time.monotonic() + limits.seconds
        self._device = ""
        self._child: Child | None = None
        self._place = ""

    def verification(self) -> Verification:
        try:
            return self._verification()
        finally:
            if self._child is not None:
                _idle(os.getpid()).put(self._place, self._child)

    def _verification(self) -> Verification:
        try:
            left_out = self._open()
            if left_out is not None:
                return self._verdict(Outcome.SKIPPED, left_out)
            eager_s, refused = self._eager()
        except ChildLost as error:
            return self._verdict(Outcome.INCONCLUSIVE, f"before it was run: {error.message}")
        if refused is not None:
            return self._verdict(Outcome.INCONCLUSIVE, f"eager does not run: {refused}")
        try:
            patience = max(_LEAST_S, _TIMES_EAGER * eager_s)
            raised = self._ask("artifact", [], patience)
        except ChildLost as error:
            return self._verdict(Outcome.FAILED, f"running it: {error.message}")
        if raised is not None:
            return self._verdict(Outcome.FAILED, f"running it: {raised}")
        try:
            return Verification.from_wire(self._ask("judge", [], self._left()))
        except ChildLost as error:
            return self._verdict(Outcome.INCONCLUSIVE, f"comparing: {error.message}")

    def _open(self) -> str | None:
        threads = {"OMP_NUM_THREADS": str(self._limits.threads)}
        # A driver reserves what it never uses: with a GPU there is no limit of this kind.
        memory = self._limits.memory + _SLACK_BYTES if self._gpu is None else None
        shown = self._gpu or {"CUDA_VISIBLE_DEVICES": ""}
        self._place = repr((sorted(shown.items()), self._limits))
        self._child = _idle(os.getpid()).take(self._place) or Child(
            "fusec.verification.worker", environment={**threads, **shown}, memory=memory
        )
        left_out: str | None = self._ask("open", [self._task], _START_S)
        self._device = self._ask("device", [], _START_S)
        return left_out

    def _eager(self) -> tuple[float, str | None]:
        """Seconds of eager's run; why it does not run, or None. Raises ChildLost."""
        answer: dict[str, Any] = {}
        for safe in (False, True):
            started = time.monotonic()
            try:
                answer = self._ask("eager", [safe, False], self._left())
            except ChildLost:
                # A place out of range ends a GPU's context; with zeros there is none.
                if safe or self._gpu is None or self._left() <= _LEAST_S / 2:
                    raise
                self._open()
                continue
            if "raised" not in answer:
                break
        else:
            return 0.0, str(answer.get("raised"))
        took = time.monotonic() - started
        if answer["finite"] < _FINITE:
            again = self._ask("eager", [safe, True], self._left())
            if "raised" in again:
                return 0.0, str(again["raised"])
        return took, None

    def _ask(self, step: str, arguments: list[Any], timeout_s: float) -> Any:
        assert self._child is not None
        try:
            return self._child.request([step, arguments], timeout_s)
        except ChildLost:
            self._child = None
            raise

    def _left(self) -> float:
        return max(1.0, self._deadline - time.monotonic())

    def _verdict(self, outcome: Outcome, why: str) -> Verification:
        return Verification(outcome, self._device, self._seed, why=why)


class _Idle:
    """Children without work, by what they were started with: loading torch takes seconds."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._children: dict[str, list[Child]] = {}

    def take(self, place: str) -> Child | None:
        """A child that is ready, if there is one; the others of its kind that ended are closed."""
        while True:
            with self._lock:
                waiting = self._children.get(place)
                child = waiting.pop() if waiting else None
            if child is None or child.usable:
                return child
            child.close()

    def put(self, place: str, child: Child) -> None:
        with self._lock:
            self._children.setdefault(place, []).append(child)

    def close(self) -> None:
        """End them, unless they are of the process that this one was forked from."""
        if os.getpid() != self._process:
            return
        with self._lock:
            children = [child for waiting in self._children.values() for child in waiting]
            self._children.clear()
        for child in children:
            child.close()


@functools.cache
def _idle(process: int) -> _Idle:
    """The children of this process: those of the process that it was forked from are not its."""
    made = _Idle()
    atexit.register(made.close)
    return made


def cpu_threads() -> int:
    """Threads for a verification on the CPU, where several may run beside compiles."""
    return max(1, min(4, len(os.sched_getaffinity(0)) // 2))
