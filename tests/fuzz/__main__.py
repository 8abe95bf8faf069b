"""Compile many random programs and print every failure as a test that can be pasted.

python -m tests.fuzz --count 10000 --seed 1
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings

from fusec.codegen.isa import host_target
from fusec.options import Options, Target
from tests.fuzz.case import random_case
from tests.fuzz.check import check_cases, shrink
from tests.fuzz.dynamic import check_dynamic

_AT_ONCE = 96


def options_for(number: int) -> Options:
    """Every way of compiling comes up."""
    return Options(progress=False, strict_rounding=number % 3 == 1, fusion=number % 5 != 2)


def target_for(number: int) -> Target:
    """This machine, or an older one whose code it runs."""
    host = host_target()
    levels = ("x86-64-v4", "x86-64-v3", "x86-64-v2")
    if host.isa not in levels:
        return host
    older = levels[levels.index(host.isa) :]
    return Target("cpu", older[number % len(older)])


def main() -> int:
    """Run the command line; the exit status is 1 when a program failed."""
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="programs to try")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first program")
    parser.add_argument("--steps", type=int, default=8, help="operations of a typical program")
    parser.add_argument("--keep-going", action="store_true", help="go on after ten failures")
    parser.add_argument("--dynamic", type=int, default=0, help="programs of dynamic size as well")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    failures, start = 0, time.monotonic()
    for first in range(args.seed, args.seed + args.count, _AT_ONCE):
        last = min(first + _AT_ONCE, args.seed + args.count)
        cases = [random_case(seed, args.steps) for seed in range(first, last)]
        options, target = options_for(first // _AT_ONCE), target_for(first // _AT_ONCE)
        for case, why in check_cases(cases, options, target):
            failures += 1
            print(shrink(case, why, options, target), flush=True)
        print(
            f"# seeds to {last}: {failures} failures, {time.monotonic() - start:.0f} s", flush=True
        )
        if failures >= 10 and not args.keep_going:
            break
    for seed in range(args.seed, args.seed + args.dynamic):
        why = check_dynamic(seed)
        if why:
            failures += 1
            print(why, flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
