"""The kernel suite on the CPU: fusec, eager and Inductor on the same cores, case by case."""

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import display, machine, memory, process
from bench.cases import CASES, chosen
from bench.timing import geometric_mean

_HELP = """\
Times each case in one process, the sides in turn round by round on the same inputs, after checking
every side against float64. A process of its own for each side then takes the first call from empty
caches, and the peak memory of a later call.

The table's `x` columns say how many times as fast as a peer fusec is: above 1 is faster. `best` is
against the faster of eager and Inductor. Times are medians; on a shared machine only the ratios
mean anything, and a large spread says that a case should be run again. Where the cores are taken by
others, threads that wait for each other measure those others: use --threads 1 --clock cpu there; a
first call's time is then that of all its compilers together.
"""
_EXAMPLES = """\
examples:
  python -m bench.cpu                                 everything: about 15 minutes
  python -m bench.cpu --only softmax,norm --no-cold   two kinds of cases, run time only
  python -m bench.cpu --sides eager,fusec             without Inductor
  python -m bench.cpu --quick --only gelu             does it run at all? its figures mean nothing
  python -m bench.cpu --json cpu.json                 every figure, for another program
"""
# Inductor's compilers are then children of the process itself, which counts what they take.
_ONE_COMPILER = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}


def main(argv: list[str] | None = None) -> int:
    """0 when every case ran and was right."""
    arguments = _arguments(argv)
    out = display.console()
    about = machine.describe(arguments.threads)
    out.print(machine.line(about), soft_wrap=True)
    cases: dict[str, dict[str, Any]] = {}
    result = {
        "machine": about,
        "seed": arguments.seed,
        "quick": arguments.quick,
        "clock": arguments.clock,
        "cases": cases,
    }
    for name in chosen(arguments.only):
        display.progress(name)
        cases[name] = _case(name, arguments)
        display.write_json(arguments.json, result)  # a long run that is cut short leaves its part
    result["summary"] = summary(cases)
    display.write_json(arguments.json, result)
    _print(out, cases, arguments)
    failed = [name for name, case in cases.items() if wrong(case)]
    for name, case in cases.items():
        if peer := inexact(case, "inductor"):
            out.print(f"[yellow]note[/] {name}: {peer}", soft_wrap=True)
    for name in failed:
        out.print(f"[bold red]FAILED[/] {name}: {wrong(cases[name])}", soft_wrap=True)
    return 1 if failed else 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.cpu",
        description=_HELP,
        epilog=_EXAMPLES + "\ncases:\n  " + "\n  ".join(CASES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="WORDS", help="cases with one of these words, by commas")
    parser.add_argument("--sides", default="eager,inductor,fusec", help="default: %(default)s")
    parser.add_argument("--no-cold", action="store_true", help="no first calls and no memory")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, few rounds")
    parser.add_argument("--seconds", type=float, default=2.0, help="of timing, a side; default 2")
    parser.add_argument("--threads", type=int, default=2, help="of every side; default 2")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="default: wall")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: the clock")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    arguments = parser.parse_args(argv)
    if arguments.clock == "cpu" and arguments.threads != 1:
        parser.error("--clock cpu adds up threads that only wait: it needs --threads 1")
    sides = arguments.sides.split(",")
    unknown = set(sides) - {"eager", "inductor", "fusec"}
    if unknown or "eager" not in sides:
        parser.error("--sides: eager (the yardstick) and any of inductor, fusec")
    try:
        chosen(arguments.only)
    except ValueError as error:
        parser.error(f"--only: {error}")
    return arguments


def _case(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The figures of one case; {"failed": words} when a process died."""
    common = ["--case", name, "--seed", str(arguments.seed), "--threads", str(arguments.threads)]
    common += ["--clock", arguments.clock, *(["--quick"] if arguments.quick else [])]
    timing = ["--seconds", "0.05" if arguments.quick else str(arguments.seconds)]
    with tempfile.TemporaryDirectory(prefix="fusec-bench-") as folder:
        root = Path(folder)
        try:
            # The timed process finds what the cold ones compiled.
            found: dict[str, Any] = {"cold": {}}
            if not arguments.no_cold:
                for side in arguments.sides.split(","):
                    found["cold"][side] = process.run(
                        "bench.cpu_case",
                        ["cold", "--sides", side, *common],
                        folder=root,
                        env={
                            **process.caches(root / "caches"),
                            **memory.EXACT,
                            **(_ONE_COMPILER if arguments.clock == "cpu" else {}),
                        },
                    ).result
            steady = process.run(
                "bench.cpu_case",
                ["steady", "--sides", arguments.sides, *common, *timing],
                folder=root,
                env=process.caches(root / "caches"),
            ).result
        except process.ChildFailedError as error:
            return {"failed": str(error)}
    return found | steady


def wrong(case: Mapping[str, Any]) -> str:
    """Why a case does not count, in words; empty when it does."""
    if "failed" in case:
        return str(case["failed"])
    if case["eager_runs"]:
        return "fusec gave up on a graph and ran it eager"
    return inexact(case, "fusec")


def inexact(case: Mapping[str, Any], side: str) -> str:
    """What a side got wrong, in words. A peer's faults are told; its time counts all the same."""
    error = case.get("errors", {}).get(side, {"right": True})
    if error["right"]:
        return ""
    return (
        f"{side}: {error['tensor']} is off by {error['error']:.1e} of its size, "
        f"allowed is {error['allowed']:.1e}"
    )


def best_ratio(case: Mapping[str, Any]) -> float | None:
    """fusec against the faster of its peers; None without one."""
    ratios = case.get("fusec_against", {})
    return min((r["median"] for r in ratios.values()), default=None)


def compile_ratio(case: Mapping[str, Any], *, once: bool) -> float | None:
    """Inductor's cold compile over fusec's; once: what a machine pays once is part of both."""
    cold = case.get("cold", {})
    if not {"fusec", "inductor"} <= set(cold):
        return None
    ours, theirs = (
        cold[side]["first_s"] + (cold[side]["once_s"] if once else 0.0)
        for side in ("fusec", "inductor")
    )
    return float(theirs / ours)


def summary(cases: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Geometric means over the cases that count, and those below 0.95 of their best peer."""
    good = {name: case for name, case in cases.items() if not wrong(case)}
    found: dict[str, Any] = {"cases": len(cases), "counted": len(good)}
    for peer in ("eager", "inductor"):
        ratios = [
            case["fusec_against"][peer]["median"]
            for case in good.values()
            if peer in case["fusec_against"]
        ]
        if ratios:
            found[f"geomean_against_{peer}"] = geometric_mean(ratios)
    best = {name: ratio for name, case in good.items() if (ratio := best_ratio(case)) is not None}
    if best:
        found["geomean_against_best"] = geometric_mean(list(best.values()))
        found["below_0.95_of_best"] = {name: r for name, r in best.items() if r < 0.95}
    for key, once in (("compile_speedup", False), ("compile_speedup_with_one_off_costs", True)):
        speedups = [r for c in good.values() if (r := compile_ratio(c, once=once)) is not None]
        if speedups:
            found[key] = geometric_mean(speedups)
    return found


def _print(out: Console, cases: Mapping[str, Mapping[str, Any]], args: argparse.Namespace) -> None:
    sides = args.sides.split(",")
    peers = [side for side in sides if side != "fusec"] if "fusec" in sides else []
    good = {name: case for name, case in cases.items() if "failed" not in case}
    rows = []
    for name, case in good.items():
        times, ratios = case["times"], case["fusec_against"]
        best = best_ratio(case)
        rows.append(
            [
                name,
                *(display.seconds(times[side]["median_s"]) for side in sides),
                *(f"{ratios[peer]['median']:.2f}" for peer in peers),
                "" if best is None else f"{best:.2f}" + (" !" if best < 0.95 else ""),
                f"{max(times[side]['spread'] for side in sides):.0%}",
                "wrong" if wrong(case) else f"{case['errors'][sides[-1]]['error']:.0e}",
            ]
        )
    columns = ["run time", *sides, *(f"x {peer}" for peer in peers), "x best", "spread", "error"]
    display.table(out, "Run time, medians", columns, rows)
    if not args.no_cold:
        _print_cold(out, good, sides)
    for name, value in summary(cases).items():
        text = f"{value:.2f}" if isinstance(value, float) else str(value)
        out.print(f"{name.replace('_', ' ')}: {text}", soft_wrap=True, markup=False)


def _print_cold(out: Console, cases: Mapping[str, Mapping[str, Any]], sides: list[str]) -> None:
    out.print()
    compilers = [side for side in sides if side != "eager"]
    rows = []
    for name, case in cases.items():
        cold = case["cold"]
        ratio = compile_ratio(case, once=False)
        peaks = [cold[side].get("memory_bytes") for side in sides]
        rows.append(
            [
                name,
                *(display.seconds(cold[side]["first_s"]) for side in compilers),
                "" if ratio is None else f"{ratio:.1f}",
                *("" if peak is None else display.mebibytes(peak) for peak in peaks),
            ]
        )
    columns = ["cold", *(f"{side} first" for side in compilers), "x inductor"]
    columns += [f"{side} memory" for side in sides]
    once = {side: [case["cold"][side]["once_s"] for case in cases.values()] for side in compilers}
    costs = ", ".join(
        f"{side} {display.seconds(statistics.median(v))}" for side, v in once.items() if v
    )
    note = (
        "first: the first call from empty caches, imports and what a machine pays once apart (that "
        f"is {costs}, median); memory: peak of a later call over inputs and weights"
    )
    display.table(out, "First call and memory", columns, rows, note)


if __name__ == "__main__":
    raise SystemExit(main())
