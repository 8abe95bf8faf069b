"""The program of a child process that verifies an artifact for `fusec.verification.verify`."""

from __future__ import annotations

from typing import Any

import torch

import fusec.attention.operators
from cache.artifacts import Found
from cache.manifest import Manifest
from fusec.child.program import serve
from fusec.ir.wire import graph_from_bytes
from fusec.verification.check import RAISED, Check

_OPERATORS = fusec.attention.operators  # registers what graphs may call


class Worker:
    """What a request names: one method each, called in the order of a verification."""

    def __init__(self) -> None:
        self._check: Check | None = None

    def open(self, task: dict[str, Any]) -> str | None:
        """Take an artifact; why it is left out, or None."""
        torch.set_num_threads(int(task["threads"]))
        found = Found(Manifest.decode(task["manifest"]), task["blobs"])
        self._check = Check(
            graph_from_bytes(task["graph"]), found, seed=task["seed"], memory=task["memory"]
        )
        return self._check.too_large()

    def eager(self, safe: bool, positive: bool) -> dict[str, Any]:
        assert self._check is not None, "it is opened first"
        try:
            return {"finite": self._check.run_eager(safe=safe, positive=positive)}
        except RAISED as error:
            return {"raised": f"{type(error).__name__}: {error}"}

    def artifact(self) -> dict[str, Any]:
        """Run it; what it raised, and whether that was for want of memory."""
        assert self._check is not None, "it is opened first"
        try:
            self._check.run_artifact()
        except RAISED as error:
            memory = isinstance(error, torch.OutOfMemoryError)
            return {"raised": f"{type(error).__name__}: {error}", "memory": memory}
        return {}

    def judge(self) -> dict[str, Any]:
        """The verdict, or what comparing raised."""
        assert self._check is not None, "it is opened first"
        try:
            return {"verdict": self._check.judge().to_wire()}
        except RAISED as error:
            return {"raised": f"{type(error).__name__}: {error}"}

    def close(self) -> None:
        """Let the tensors go: others use the same GPU."""
        self._check = None
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def warm(self, gpu: bool) -> None:
        """Load what the first verification would wait for."""
        if gpu:
            torch.ones(16, 16, device="cuda") @ torch.ones(16, 16, device="cuda")
            torch.cuda.synchronize()

    def device(self) -> str:
        assert self._check is not None, "it is opened first"
        return self._check.device


def main() -> None:
    """A request is the name of a step and its arguments; the answer is its result."""
    worker = Worker()
    steps = {
        "open": worker.open,
        "device": worker.device,
        "eager": worker.eager,
        "artifact": worker.artifact,
        "judge": worker.judge,
        "close": worker.close,
        "warm": worker.warm,
    }

    def answer(request: tuple[str, list[Any]]) -> Any:
        name, arguments = request
        return steps[name](*arguments)  # type: ignore[operator]

    serve(answer)


if __name__ == "__main__":
    main()
