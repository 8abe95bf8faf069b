"""Host-side cost of a call: microseconds to get through a compiled function of little work."""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import display, machine, process

_HELP = """\
Calls a function of little work and times a call: Dynamo's guards, the backend's wrapper, library
calls and launches, since the arithmetic takes next to nothing. `sum` adds up its inputs, 64 float32
each: compiled, it is one kernel however many inputs there are; eager, one operation an input.
`products` multiplies a row by each input, 64 x 64, with a sine between: a library call and a kernel
for each input. `training` is the forward pass with gradients recorded. All sides in turn in one
process, medians of many rounds. On a GPU the clock stops when the work is handed over, not when it
is done; the GPU is waited for between the sides.
"""
_EXAMPLES = """\
examples:
  python -m bench.launch                         1, 10 and 100 inputs: about a minute
  python -m bench.launch --inputs 1,300 --sides eager,fusec
  python -m bench.launch --inputs 10,200 --work products --device cuda
"""


def main(argv: list[str] | None = None) -> int:
    """0 when it ran."""
    arguments = _arguments(argv)
    out = display.console()
    about = machine.describe(arguments.threads)
    out.print(machine.line(about), soft_wrap=True)
    command = ["--inputs", ",".join(map(str, arguments.inputs)), "--sides", arguments.sides]
    command += ["--threads", str(arguments.threads), "--seconds", str(arguments.seconds)]
    command += ["--clock", arguments.clock, "--work", arguments.work]
    command += ["--device", arguments.device]
    with tempfile.TemporaryDirectory(prefix="fusec-bench-") as folder:
        root = Path(folder)
        env = process.caches(root / "caches")
        found = process.run("bench.launch_process", command, folder=root, env=env).result
    result = {
        "machine": about,
        "clock": arguments.clock,
        "device": arguments.device,
        "cases": found["cases"],
    }
    display.write_json(arguments.json, result)
    _print(out, found["cases"], arguments.sides.split(","))
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.launch",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--inputs", default="1,10,100", help="default: %(default)s")
    parser.add_argument("--work", choices=("sum", "products"), default="sum")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--sides", default="eager,inductor,fusec", help="default: %(default)s")
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu: for a busy machine"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing, a side; default 1")
    parser.add_argument("--threads", type=int, default=2, help="of every side; default 2")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    arguments = parser.parse_args(argv)
    try:
        arguments.inputs = sorted({int(text) for text in arguments.inputs.split(",")})
    except ValueError:
        parser.error("--inputs: whole numbers, by commas")
    if set(arguments.sides.split(",")) - {"eager", "inductor", "fusec"}:
        parser.error("--sides: any of eager, inductor, fusec, by commas")
    return arguments


def _print(out: Any, cases: Sequence[dict[str, Any]], sides: Sequence[str]) -> None:
    rows = []
    for case in cases:
        medians = {side: case["times"][side]["median_s"] for side in sides}
        rows.append(
            [
                f"{case['inputs']} inputs, {'training' if case['training'] else 'inference'}",
                *(f"{value * 1e6:.1f}" for value in medians.values()),
                *(f"{r['median']:.2f}" for r in case["fusec_against"].values()),
                f"{max(case['times'][side]['spread'] for side in sides):.0%}",
            ]
        )
    against = list(cases[0]["fusec_against"])
    columns = ["a call", *(f"{s} µs" for s in sides), *(f"x {s}" for s in against), "spread"]
    display.table(out, "Host time of a call, medians", columns, rows)


if __name__ == "__main__":
    raise SystemExit(main())
