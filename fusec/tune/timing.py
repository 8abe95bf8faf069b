"""Racing the variants of a kernel on a GPU, by a child process that may be lost.

A variant that reads where it may not, or never ends, costs the child and itself: the next question
starts another child, and the samples of the other variants count on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from fusec.child.process import Child
from fusec.codegen.gpu_binary import GpuBinary
from fusec.errors import ChildLost
from fusec.tune.device import Device
from fusec.tune.problem import Problem
from fusec.tune.race import still_racing

_OPEN_S: Final = 60.0
_PREPARE_S: Final = 30.0
_KERNEL_S: Final = 5.0  # for a request in which kernels run
_AGREE_S: Final = 60.0  # for one that loads torch and compares memory
_HOPELESS: Final = 3.0  # times the fastest probe: not worth a sample
# What says which GPU a number stands for.
_PASSED_ON: Final = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


@dataclass(slots=True)
class Outcome:
    """samples: milliseconds of a launch, by variant; failed: why a variant has none; decided:
    whether the race came to its end."""

    samples: dict[int, list[float]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    decided: bool = False


class Timer:
    """Times on the GPU of a number, as this process counts them."""

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal
        self._child: Child | None = None
        self._prepared = False  # these are of the child's state
        self._loaded: set[int] = set()
        self._ready: set[int] = set()
        self._referenced = False
        # The variant that the others must agree with: the first that runs.
        self._trusted: tuple[int, GpuBinary] | None = None

    def open(self) -> Device:
        """What the GPU is; at once where it is open. Raises ChildLost where there is none that can
        be used."""
        if self._child is not None and not self._child.usable:
            self.close()
        if self._child is None:
            return Device.from_wire(self._start())
        return Device.from_wire(self._ask("device", [], _OPEN_S))

    def rest(self) -> None:
        """Let go of the GPU's memory, which others may need before this is used again. Raises
        ChildLost."""
        self._new_problem()
        if self._child is not None:
            self._ask("rest", [], _OPEN_S)

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def race(self, problem: Problem, binaries: Mapping[int, GpuBinary], deadline: float) -> Outcome:
        """Time the variants of a kernel against each other until the fastest is known.

        deadline: of `time.monotonic`; a race that is not decided by then is given up.
        """
        self._new_problem()
        self._trusted = None
        outcome = Outcome(samples={number: [] for number in binaries})
        probes: dict[int, float] = {}
        for number, binary in binaries.items():
            if time.monotonic() > deadline:
                return outcome
            with _losing(number, outcome):
                took = self._probe(problem, number, binary)
                self._agree(problem, number, binary)
                probes[number] = took
        fastest = min(probes.values(), default=0.0)
        hopeless = {n: [took] for n, took in probes.items() if took > _HOPELESS * fastest}
        for number in hopeless:
            del outcome.samples[number]
        while outcome.samples and (racing := still_racing(outcome.samples)):
            for number in racing:
                if time.monotonic() > deadline:
                    return outcome
                with _losing(number, outcome):
                    took = self._sample(problem, number, binaries[number], fastest)
                    outcome.samples[number].append(took)
        outcome.decided = bool(outcome.samples)
        outcome.samples.update(hopeless)
        return outcome

    def _new_problem(self) -> None:
        self._prepared = self._referenced = False
        self._loaded.clear()
        self._ready.clear()

    def _probe(self, problem: Problem, number: int, binary: GpuBinary) -> float:
        if self._child is None:
            self._start()
        if not self._prepared:
            wire = problem.to_wire()
            self._ask("prepare", [wire["buffers"], wire["sizes"]], _PREPARE_S)
            self._prepared = True
        grid = list(problem.grid(binary))
        took: float = self._ask("probe", [number, binary.to_bytes(), grid], _KERNEL_S)
        self._loaded.add(number)
        return took

    def _agree(self, problem: Problem, number: int, binary: GpuBinary) -> None:
        """Raises ChildLost for a variant that does not leave in memory what the first one does."""
        if self._trusted is None:
            self._ask("reference", [number], _AGREE_S)
            self._trusted, self._referenced = (number, binary), True
            return
        first, its_binary = self._trusted
        if not self._referenced:  # in a child that is lost
            self._probe(problem, first, its_binary)
            self._ask("reference", [first], _AGREE_S)
            self._referenced = True
        if not self._ask("agree", [number], _AGREE_S):
            text = f"its results are not those of variant {first}"
            raise ChildLost(text, where="the check of a variant")

    def _sample(self, problem: Problem, number: int, binary: GpuBinary, fastest_ms: float) -> float:
        if number not in self._loaded:  # it was probed in a child that is lost
            self._probe(problem, number, binary)
        if number not in self._ready:
            self._ask("ready", [number, fastest_ms], _KERNEL_S)
            self._ready.add(number)
        took: float = self._ask("sample", [number], _KERNEL_S)
        return took

    def _start(self) -> Any:
        given = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment = {**given, "CUDA_CACHE_DISABLE": "1"}
        self._child = Child("fusec.tune.bench_worker", environment=environment)
        return self._ask("open", [self._ordinal], _OPEN_S)

    def _ask(self, method: str, arguments: list[Any], timeout_s: float) -> Any:
        assert self._child is not None
        try:
            answer = self._child.request([method, arguments], timeout_s)
        except ChildLost:
            self._child = None
            self._new_problem()
            raise
        if "error" in answer:
            if answer["fatal"]:
                self.close()
                self._new_problem()
            raise ChildLost(answer["error"], where=f"{method} of a variant")
        return answer["result"]


@contextmanager
def _losing(number: int, outcome: Outcome) -> Iterator[None]:
    """Take a variant out of the race if the process that works on it is lost."""
    try:
        yield
    except ChildLost as error:
        outcome.failed[number] = error.message
        outcome.samples.pop(number, None)
