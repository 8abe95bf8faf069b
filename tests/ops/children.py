"""Cases of operators run in child processes, which may crash, hang or grow and are replaced."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from queue import Queue
from typing import Any, Final, NamedTuple

_ASKED: Final = 200  # of one child, then a fresh one: torch's caches grow with each operator


class Case(NamedTuple):
    """An operator of torch's list, its variant, an element type, and whether with gradients."""

    name: str
    variant: str
    dtype: str
    gradients: bool


class Child:
    """A process that answers one case after another; a new one comes where it was lost."""

    def __init__(self, samples: int, store: str, limit_s: float) -> None:
        """samples: graphs at most a case; store: folder of the kernels that all children share;
        limit_s: seconds at most for a case."""
        self._command = [sys.executable, "-m", "tests.ops.children", str(samples), store]
        self._limit_s = limit_s
        self._process: subprocess.Popen[str] | None = None
        self._asked = 0

    def ask(self, case: Case) -> dict[str, Any]:
        """The case's outcome; a crash is one too, and so is a child that says nothing in time."""
        if self._asked == _ASKED:
            self.end()
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        self._asked += 1
        process.stdin.write(json.dumps(case) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], self._limit_s)
        line = process.stdout.readline() if ready else ""
        if line:
            outcome: dict[str, Any] = json.loads(line)
            return outcome
        code = self.end()
        if ready:
            return {"status": "crash", "detail": f"exit status {code}", "samples": 0}
        return {"status": "slow", "detail": f"no answer in {self._limit_s:.0f} s", "samples": 0}

    def _start(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=subprocess.DEVNULL, process_group=0,
        )  # fmt: skip
        self._asked = 0
        return self._process

    def end(self) -> int | None:
        """End the process and the compilers that it started; its exit status."""
        process, self._process = self._process, None
        if process is None:
            return None
        code = process.poll()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        self._asked = 0
        return process.returncode if code is None else code


def run_cases(
    cases: Sequence[Case], *, workers: int, samples: int, store: str, limit_s: float
) -> Iterator[dict[str, Any]]:
    """Each case with its outcome, as they come."""
    waiting = iter(cases)
    taking = threading.Lock()
    done: Queue[dict[str, Any]] = Queue()

    def work() -> None:
        child = Child(samples, store, limit_s)
        try:
            while True:
                with taking:
                    case = next(waiting, None)
                if case is None:
                    return
                done.put({**case._asdict(), **child.ask(case)})
        finally:
            child.end()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for _ in cases:
        yield done.get()


def _answer(samples: int, store: str) -> None:
    """Run the cases that stdin names, one line of JSON each; answer likewise."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    from cache.local import LocalStore
    from tests.ops.cases import run

    infos = {(i.name, i.variant_test_name): i for i in op_db}
    kernels = LocalStore(store)
    torch.set_num_threads(1)
    for line in sys.stdin:
        case = Case(*json.loads(line))
        outcome = run(
            infos[case.name, case.variant], getattr(torch, case.dtype), gradients=case.gradients,
            limit=samples, store=kernels,
        )  # fmt: skip
        sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _answer(int(sys.argv[1]), sys.argv[2])
