"""`python -m loadtest`: load on a real service and farm on this machine, with pass or fail."""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench import display, machine
from cache.errors import CacheError
from loadtest.report import write_report
from loadtest.scenario import Outcome, Scale
from loadtest.scenarios import SCENARIOS
from loadtest.servers import stand

_EXAMPLES = """\
examples:
  python -m loadtest                                  all scenarios, about five minutes
  python -m loadtest herd tenants --ranks 4000        two of them, with more ranks
  python -m loadtest --minutes 60 --out report        an hour; report/index.html shows it

Beside it: loadtest.simulate (fleets larger than this machine) and loadtest.chaos (lost workers).
"""
# What the parts that do not grow with --minutes take together, and the shares of the rest.
_FIXED_S = 120.0
_SHARES = 4.5


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every objective was kept, 1 when one was not, 2 for settings that make no sense."""
    arguments = _arguments(argv)
    out = display.console()
    _allow_files(4 * arguments.ranks + 1024)
    seconds = max(8.0, (arguments.minutes * 60 - _FIXED_S) / _SHARES)
    scale = Scale(arguments.ranks, seconds)
    outcomes: list[Outcome] = []
    about = machine.line(machine.describe(1))
    for name in arguments.scenario or SCENARIOS:
        display.progress(f"{name}: {' '.join((SCENARIOS[name].__doc__ or '').split())}")
        begun = time.monotonic()
        try:
            with (
                tempfile.TemporaryDirectory(prefix="fusec-loadtest-") as folder,
                stand(Path(folder), workers=arguments.workers) as servers,
            ):
                outcomes.append(SCENARIOS[name](servers, scale))
        except CacheError as error:
            sys.stderr.write(f"error: {error}\n")
            return 2
        _show(out, outcomes[-1], time.monotonic() - begun)
    if arguments.out is not None:
        out.print(f"report: {write_report(arguments.out, outcomes, about)}")
    return 0 if all(outcome.kept for outcome in outcomes) else 1


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "scenario", nargs="*", help=f"of {', '.join(SCENARIOS)}; default: all", metavar="SCENARIO"
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="of all together; default 5")
    parser.add_argument("--ranks", type=int, default=2000, help="of the herd; default 2000")
    parser.add_argument("--workers", type=int, default=2, help="of the farm; default 2")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write a report in HTML there")
    arguments = parser.parse_args(argv)
    for name in arguments.scenario:
        if name not in SCENARIOS:
            parser.error(f"there is no scenario {name!r}; there are {', '.join(SCENARIOS)}")
    if arguments.ranks < 1 or arguments.workers < 1 or arguments.minutes <= 0:
        parser.error("--ranks, --workers and --minutes must be above 0")
    return arguments


def _allow_files(wanted: int) -> None:
    """A connection a rank, at both ends: raise this process's limit, which its children inherit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, most), most))


def _show(out: Console, outcome: Outcome, seconds: float) -> None:
    rows = [
        (each.what, each.seen, f"{each.most:g} {each.unit}".strip(),
         "kept" if each.kept else "NOT KEPT")
        for each in outcome.objectives
    ]  # fmt: skip
    figures = "; ".join(f"{name} {value}" for name, value in outcome.figures.items())
    display.table(
        out,
        f"{outcome.name}, {seconds:.0f} s",
        ("objective", "seen", "at most", ""),
        rows,
        figures,
    )


if __name__ == "__main__":
    sys.exit(main())
