"""`python -m loadtest.costs`: measure what the farm's work costs here, and keep it."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console

from fusec.codegen.isa import host_target
from loadtest.costs.model import COSTS_FILE, Costs, Requests, StoreTimes, Tasks, dump, load

_HELP = """\
Measures on this machine what drives `python -m loadtest.simulate`:

  compiles   the compiler's stages on models of the demo, for this CPU and, without one, for sm_90
  requests   the gateway and the cache service, a request
  store      puts and gets of a real S3-compatible server (SeaweedFS), and the service's client
  tasks      Ray: a task that does nothing, and the loss of a worker

What computes is counted in processor seconds, which other work on the machine changes little. What
is waited for (store, round trips, a worker's start) is in wall times, of which a short one counts.
Ray listens on every interface: `.ci/offline python -m loadtest.costs` keeps it to itself.
"""
Tell = Callable[[str], None]
PARTS: Final = ("compiles", "requests", "store", "tasks")
CORPUS: Final = {"mlp": 2, "llama": 2, "gpt2": 2, "convnet": 4}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the parts that are asked for; the others stay as the file has them."""
    arguments = _arguments(argv)
    say = Console(stderr=True, highlight=False)

    def tell(text: str) -> None:
        say.print(f"[dim]{text}[/]")

    path: Path = arguments.out
    costs = load(path) if path.exists() else Costs({}, (), {}, _NONE, _NO_STORE, _NO_TASKS)
    costs = replace(costs, machine=_machine())
    for part in arguments.parts:
        costs = _measured(costs, part, arguments, tell)
        path.write_text(dump(costs))
    return 0


def _measured(costs: Costs, part: str, arguments: argparse.Namespace, tell: Tell) -> Costs:
    # Each part loads what it needs alone: torch, the servers, Ray.
    if part == "compiles":
        from loadtest.costs import compiles

        found = compiles.measure(CORPUS, tell)
        return replace(costs, plans=tuple(found.plans), kernels=found.by_kind())
    if part == "requests":
        from loadtest.costs import requests

        return replace(costs, requests=requests.measure(arguments.count, tell))
    if part == "store":
        from loadtest.costs import stores

        return replace(costs, store=stores.measure(arguments.count, tell))
    from loadtest.costs import ray_tasks

    return replace(costs, tasks=ray_tasks.measure(arguments.count, tell))


def _machine() -> dict[str, object]:
    """The kind of machine, never its name."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": host_target().isa,
        "python": platform.python_version(),
    }


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.costs",
        description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help="compiles, requests, store, tasks; default: all"
    )
    parser.add_argument("--out", type=Path, default=COSTS_FILE, metavar="FILE")
    parser.add_argument("--count", type=int, default=400, help="requests of a kind; default: 400")
    arguments = parser.parse_args(argv)
    arguments.parts = arguments.parts or list(PARTS)
    unknown = sorted(set(arguments.parts) - set(PARTS))
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return arguments


_NONE = Requests(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
_NO_STORE = StoreTimes(0.0, 0.0, 0.0, 0.0)
_NO_TASKS = Tasks(0.0, 0.0, 0.0, 0.0)

if __name__ == "__main__":
    raise SystemExit(main())
