"""`python -m loadtest.simulate`: play scenarios, print what came of them, draw it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from loadtest.costs.model import COSTS_FILE, Costs, load
from loadtest.simulate import table, virtual
from loadtest.simulate.figures import Figures, figures
from loadtest.simulate.scenarios import SCENARIOS, Size, play
from loadtest.simulate.world import World

_HELP = """\
Runs the farm's own code (gateway, queue, fair share, single flight, retries, publishing) and the
client's waiting under a virtual clock, with thousands of ranks and workers that cost what was
measured (`python -m loadtest.costs`). A run is the same for the same --seed, and the same code.
"""
_EXAMPLES = f"""\
scenarios:
{chr(10).join(f"  {name:14} {scenario.about}" for name, scenario in SCENARIOS.items())}

examples:
  python -m loadtest.simulate cold --ranks 1000 --workers 64
  python -m loadtest.simulate mixed --jobs 1000 --workers 64 --out plots
  python -m loadtest.simulate all --json all.json      10,000 ranks, 1,000 workers: minutes each

`efficiency` is the work that had to be done, each plan and each distinct kernel once, over what the
workers could have done from the first submit to the end of the last task; `build` is the same for
kernels alone, from the end of the first plan. For plots: pip install 'fusec[loadtest]'.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every rank of every scenario got its graphs."""
    arguments = _arguments(argv)
    out = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    costs = load(arguments.costs)
    names = list(SCENARIOS) if arguments.scenario == "all" else [arguments.scenario]
    size = _size(arguments)
    found: dict[str, Figures] = {}
    for name in names:
        say = Console(stderr=True, highlight=False)
        begin = time.monotonic()
        with say.status(f"{name}: {SCENARIOS[name].about}"):
            world = _played(name, size, costs, arguments.seed)
        found[name] = figures(world)
        say.print(f"[dim]{name}: {time.monotonic() - begin:.0f} s of this machine[/]")
        if arguments.out is not None:
            # matplotlib comes with an extra, and takes a second to load.
            from loadtest.simulate.plots import draw

            draw(world, name, arguments.out, arguments.format)
    table.show(out, found, costs)
    if arguments.json is not None:
        body = {
            "machine": dict(costs.machine),
            "size": asdict(size),
            "seed": arguments.seed,
            "scenarios": {name: asdict(each) for name, each in found.items()},
        }
        arguments.json.write_text(json.dumps(body, indent=1) + "\n")
    return 0


def _played(name: str, size: Size, costs: Costs, seed: int) -> World:
    return virtual.run(lambda loop: play(SCENARIOS[name], size, costs, seed, loop))


def _size(arguments: argparse.Namespace) -> Size:
    given = {
        name: getattr(arguments, name)
        for name in ("ranks", "workers", "kernels", "graphs", "jobs", "kind", "gateways", "gpus")
    }
    return replace(Size(), **{name: value for name, value in given.items() if value is not None})


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.simulate",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    usual = Size()
    parser.add_argument("scenario", choices=[*SCENARIOS, "all"], metavar="SCENARIO|all")
    parser.add_argument("--ranks", type=_count, help=f"default: {usual.ranks}")
    parser.add_argument("--workers", type=_count, help=f"CPU workers; default: {usual.workers}")
    parser.add_argument("--kernels", type=_count, help=f"a model has; default: {usual.kernels}")
    parser.add_argument("--graphs", type=_count, help=f"a model has; default: {usual.graphs}")
    parser.add_argument("--jobs", type=_count, help=f"of the large tenant; default: {usual.jobs}")
    parser.add_argument("--kind", choices=("triton", "c"), help="kernels; default: triton")
    parser.add_argument("--gateways", type=_count, help=f"default: {usual.gateways}")
    parser.add_argument("--gpus", type=_count, help=f"of `tuned`; default: {usual.gpus}")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument(
        "--costs",
        type=Path,
        default=COSTS_FILE,
        metavar="FILE",
        help="default: what is in the tree",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--out", type=Path, metavar="DIR", help="draw plots into this folder")
    parser.add_argument("--format", choices=("png", "svg"), default="png", help="of the plots")
    return parser.parse_args(argv)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


if __name__ == "__main__":
    raise SystemExit(main())
