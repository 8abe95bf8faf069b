"""The farm on this machine: over 1 and 2 workers, beside a compile in the process itself."""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import display, machine, process
from bench.cold_warm import MODELS

_HELP = """\
Compiles the graphs of a model's training step for this CPU from empty stores, each side in a fresh
process: `here` is the compiler in the client's process, with kernels built on all cores; the others
are a real farm (cache service, gateway, pool, isolated workers) on loopback with so many workers.
All graphs are submitted at once.

`wall` is from the first submit to the last artifact in the client's hands; `wait` is what the
client spent waiting for the farm, `fetch` reading the artifacts. `speed-up` is over the farm with
one worker. A task's overhead is that of one that does nothing: `alone` from submit to result with
the farm idle, `in a row` the time a task when many are given at once to one worker.
"""
_EXAMPLES = """\
examples:
  python -m bench.farm                                    Llama, workers as threads
  .ci/offline python -m bench.farm --pool ray             workers of Ray
  python -m bench.farm --model gpt2 --layers 2 --workers 1,2,4 --json farm.json
"""


def main(argv: list[str] | None = None) -> int:
    """0 when every side made the same artifacts."""
    arguments = _arguments(argv)
    out = display.console()
    about = machine.describe(1)
    out.print(machine.line(about), soft_wrap=True)
    sides: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="fusec-bench-") as folder:
        for repeat in range(arguments.repeats):
            for name, command in _sides(arguments).items():
                display.progress(f"{name}, run {repeat + 1} of {arguments.repeats}")
                home = Path(folder) / f"{name}-{repeat}".replace(" ", "-")
                home.mkdir()
                found = process.run("bench.farm_process", command, folder=home).result
                sides.setdefault(name, []).append(found)
    best = {name: min(runs, key=lambda run: run["wall_s"]) for name, runs in sides.items()}
    digests = {tuple(run["artifacts"]) for runs in sides.values() for run in runs}
    result = {
        "machine": about,
        "model": arguments.model,
        "layers": arguments.layers,
        "pool": arguments.pool,
        "runs": sides,
        "speed_up": speed_up(best),
    }
    display.write_json(arguments.json, result)
    columns = ["side", "graphs", "kernels", "wall", "CPU", "wait", "fetch", "speed-up"]
    columns += ["task alone", "in a row"]
    title = f"{arguments.model}, one training step, pool {arguments.pool}"
    display.table(out, title, columns, [_row(name, run, best) for name, run in best.items()])
    if len(digests) > 1:
        out.print("the sides made different artifacts")
    return 0 if len(digests) == 1 else 1


def speed_up(best: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Of each side over the farm with the fewest workers."""
    farms = [run for run in best.values() if run["workers"]]
    if not farms:
        return {}
    base = min(farms, key=lambda run: int(run["workers"]))["wall_s"]
    return {name: base / run["wall_s"] for name, run in best.items()}


def _sides(arguments: argparse.Namespace) -> dict[str, list[str]]:
    model = ["--model", arguments.model, "--layers", str(arguments.layers)]
    farm = [*model, "--pool", arguments.pool]
    farms = {f"farm, {n} workers": [*farm, "--workers", str(n)] for n in arguments.workers}
    return {"here": model, **farms}


def _row(name: str, run: dict[str, Any], best: dict[str, dict[str, Any]]) -> list[str]:
    return [
        name,
        str(run["graphs"]),
        str(run["kernels"]),
        display.seconds(run["wall_s"]),
        display.seconds(run["cpu_s"]),
        *(display.seconds(run[key]) if run["workers"] else "" for key in ("wait_s", "fetch_s")),
        f"{speed_up(best).get(name, 0.0):.2f}",
        *(display.seconds(run[key]) if run["workers"] else "" for key in ("alone_s", "in_row_s")),
    ]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.farm",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=MODELS, default="llama", help="default: %(default)s")
    parser.add_argument("--layers", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--pool", choices=("memory", "ray"), default="memory")
    parser.add_argument("--workers", default="1,2", help="of the farms; default: %(default)s")
    parser.add_argument("--repeats", type=int, default=3, help="best of; default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    arguments = parser.parse_args(argv)
    try:
        arguments.workers = sorted({int(text) for text in arguments.workers.split(",")})
    except ValueError:
        parser.error("--workers: whole numbers, by commas")
    if arguments.workers[0] < 1 or arguments.repeats < 1:
        parser.error("--workers and --repeats are 1 or more")
    return arguments


if __name__ == "__main__":
    raise SystemExit(main())
