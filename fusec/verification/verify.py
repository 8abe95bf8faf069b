"""Verifying an artifact in a child process: what it does to that process is part of the verdict."""

from __future__ import annotations

import atexit
import functools
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from cache.artifacts import Found
from fusec.artifact.quality import Outcome, Verification
from fusec.child.messages import MAX_MESSAGE
from fusec.child.pool import Children
from fusec.child.process import Child
from fusec.errors import ChildLost, Loss
from fusec.trace import Recorder

SEED: Final = 20250601
_START_S: Final = 120.0
_LEAST_S: Final = 30.0
_TIMES_EAGER: Final = 20.0  # an artifact that takes longer is taken for one that hangs
_FINITE: Final = 0.5
_SLACK_BYTES: Final = 4 << 30  # what torch itself and its libraries take
_MESSAGE_SLACK: Final = 1 << 20
_MOST_CHILDREN: Final = 16
_IDLE_S: Final = 600.0  # loading torch and opening a GPU takes seconds of the first artifact


@dataclass(frozen=True, slots=True)
class Limits:
    """memory: bytes of tensors, above which a graph is left out; a GPU's own where there is one.
    seconds: of wall time for all of it; threads: of the CPU."""

    memory: int = 4 << 30
    seconds: float = 60.0
    threads: int = 2


def verify(
    graph: bytes,
    found: Found,
    *,
    limits: Limits,
    recorder: Recorder,
    gpu: Mapping[str, str] | None = None,
    seed: int = SEED,
) -> Verification:
    """Run an artifact beside eager, on the CPU or on the GPU that ``gpu`` shows the child.

    graph: `graph_to_bytes`. gpu: variables as of `fusec.tune.device.only_gpu`; None: there is none.
    recorder: of the stages `verify_child`, `verify_eager`, `verify_artifact` and `verify_compare`.
    Never raises for an artifact or a graph at fault: the outcome says it.
    """
    if len(graph) + found.manifest.size() > MAX_MESSAGE - _MESSAGE_SLACK:
        return Verification(Outcome.SKIPPED, why="the artifact is too large to be passed on")
    children = _children_for(limits, gpu)
    task = {
        "graph": graph,
        "manifest": found.manifest.encode(),
        "blobs": dict(found.blobs),
        "seed": seed,
        "memory": limits.memory if gpu is None else None,
        "threads": limits.threads,
    }
    deadline = time.monotonic() + limits.seconds
    verdict = Verification(Outcome.INCONCLUSIVE, seed=seed, why="no process for it starts")
    # A place out of range ends a GPU's context, or raises: then with zeros, which are never that.
    for safe in (False, True):
        try:
            with recorder.span("verify_child"), children.lend() as child:
                run = _Run(child, deadline, recorder)
                verdict = replace(run.verification(task, safe), seed=seed)
                run.close()
        except ChildLost as error:
            return replace(verdict, why=error.message)
        if run.eager_ran or verdict.outcome is not Outcome.INCONCLUSIVE:
            break
    return verdict


class _Run:
    """One attempt, in one child. ``eager_ran``: whether there was something to compare with."""

    def __init__(self, child: Child, deadline: float, recorder: Recorder) -> None:
        self.eager_ran = False
        self._child = child
        self._deadline = deadline
        self._recorder = recorder
        self._device = ""

    def verification(self, task: Mapping[str, Any], safe: bool) -> Verification:
        try:
            left_out = self._ask("open", [dict(task)], _START_S)
            self._device = self._ask("device", [], _START_S)
            if left_out is not None:
                return self._verdict(Outcome.SKIPPED, left_out)
            with self._recorder.span("verify_eager"):
                refused, took = self._eager(safe)
        except ChildLost as error:
            return self._verdict(Outcome.INCONCLUSIVE, f"running eager: {error.message}")
        if refused is not None:
            return self._verdict(Outcome.INCONCLUSIVE, f"eager does not run: {refused}")
        self.eager_ran = True
        try:
            with self._recorder.span("verify_artifact"):
                answer = self._ask("artifact", [], max(_LEAST_S, _TIMES_EAGER * took))
        except ChildLost as error:
            # What takes memory is limited here, and nowhere where it is used.
            mine = error.loss is not Loss.MEMORY
            outcome = Outcome.FAILED if mine else Outcome.INCONCLUSIVE
            return self._verdict(outcome, f"running it: {error.message}")
        if "raised" in answer:
            outcome = Outcome.INCONCLUSIVE if answer["memory"] else Outcome.FAILED
            return self._verdict(outcome, f"running it: {answer['raised']}")
        try:
            with self._recorder.span("verify_compare"):
                answer = self._ask("judge", [], self._left())
        except ChildLost as error:
            return self._verdict(Outcome.INCONCLUSIVE, f"comparing: {error.message}")
        if "raised" in answer:
            return self._verdict(Outcome.INCONCLUSIVE, f"comparing: {answer['raised']}")
        return Verification.from_wire(answer["verdict"])

    def close(self) -> None:
        """Have the child let go of its tensors, where it is still there. Raises ChildLost."""
        if self._child.usable:
            self._ask("close", [], _START_S)

    def _eager(self, safe: bool) -> tuple[str | None, float]:
        """Why it does not run, or None; its seconds. Raises ChildLost."""
        started = time.monotonic()
        answer = self._ask("eager", [safe, False], self._left())
        took = time.monotonic() - started
        if answer.get("finite", 1.0) < _FINITE:
            answer = self._ask("eager", [safe, True], self._left())
        return answer.get("raised"), took

    def _ask(self, step: str, arguments: list[Any], timeout_s: float) -> Any:
        return self._child.request([step, arguments], timeout_s)

    def _left(self) -> float:
        return max(1.0, self._deadline - time.monotonic())

    def _verdict(self, outcome: Outcome, why: str) -> Verification:
        return Verification(outcome, self._device, why=why)


def warm(limits: Limits, gpu: Mapping[str, str] | None) -> None:
    """Have a child ready for the first verification. Raises ChildLost."""
    with _children_for(limits, gpu).lend() as child:
        child.request(["warm", [gpu is not None]], _START_S)


def _children_for(limits: Limits, gpu: Mapping[str, str] | None) -> Children:
    shown = tuple(sorted((gpu or {"CUDA_VISIBLE_DEVICES": ""}).items()))
    # A driver reserves what it never uses: with a GPU there is no limit of this kind.
    memory = limits.memory + _SLACK_BYTES if gpu is None else None
    return _children(os.getpid(), shown, memory, limits.threads)


@functools.cache
def _children(
    process: int, shown: tuple[tuple[str, str], ...], memory: int | None, threads: int
) -> Children:
    """The children of this process; one that was forked from it has none of them."""
    environment = {"OMP_NUM_THREADS": str(threads), **dict(shown)}
    made = Children(
        "fusec.verification.worker",
        _MOST_CHILDREN,
        environment=environment,
        memory=memory,
        idle_s=_IDLE_S,
    )
    atexit.register(made.close)
    return made
