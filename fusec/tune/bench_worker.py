"""The program of a child process that times kernels for `timing`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusec.child.program import serve
from fusec.errors import WireError
from fusec.tune.bench import Bench
from fusec.tune.cuda import CudaError


def main() -> None:
    """A request is the name of a method of `Bench` and its arguments; the answer is its result, or
    an error and whether the context is lost with it."""
    bench = Bench()
    methods: dict[str, Callable[..., Any]] = {
        "open": bench.open,
        "device": bench.device,
        "rest": bench.rest,
        "prepare": bench.prepare,
        "probe": bench.probe,
        "reference": bench.reference,
        "agree": bench.agree,
        "ready": bench.ready,
        "sample": bench.sample,
    }

    def answer(request: tuple[str, list[Any]]) -> dict[str, Any]:
        name, arguments = request
        try:
            return {"result": methods[name](*arguments)}
        except CudaError as error:
            return {"error": str(error), "fatal": error.fatal}
        except (OSError, WireError) as error:
            return {"error": str(error), "fatal": False}

    serve(answer)


if __name__ == "__main__":
    main()
