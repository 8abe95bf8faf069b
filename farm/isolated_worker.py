"""The program of the child processes in which `farm.isolation` has tasks done."""

from __future__ import annotations

import sys

from farm.pool import Runner, Task, TaskFailed, as_failure
from farm.workers import run
from fusec.child.program import serve
from fusec.faults import FAULTS
from fusec.parts import Parts


def answer(request: tuple[str, bytes, int], run: Runner = run) -> Parts[bytes, dict[str, object]]:
    """``request``: a task's kind, payload and GPU. A failure is an answer, ``kind`` and
    ``message``."""
    kind, payload, gpu = request
    try:
        return {"result": (yield from run(Task(kind, payload, gpu=gpu)))}
    except (TaskFailed, MemoryError, *FAULTS) as error:
        failure = as_failure(error)
        return {"kind": failure.kind.value, "message": failure.message}


def preload() -> None:
    """Load what every task needs, before the process is made two: it is then there in both."""
    import fusec.pipeline

    assert "torch" not in sys.modules, "a compiler's child needs no torch"
    assert callable(fusec.pipeline.plan)


if __name__ == "__main__":
    preload()
    serve(answer)
