"""One process of the kernel suite: `python -m bench.cpu_case steady|cold …`, run by bench.cpu.

    steady   all sides in turn on the same inputs, checked against float64
    cold     one side from empty caches: seconds of its first call, and its peak memory

Prints one line of JSON.
"""

import argparse
import gc
from typing import Any

import torch

from bench import accuracy, display, memory, peers, process
from bench.cases import CASES, Workload
from bench.step import Step
from bench.timing import CLOCKS, against, interleave


def _make(arguments: argparse.Namespace) -> tuple[Workload, torch.Generator]:
    torch.manual_seed(arguments.seed)  # weights of whole models
    generator = torch.Generator().manual_seed(arguments.seed)
    return CASES[arguments.case](generator, arguments.quick), generator


def steady(arguments: argparse.Namespace) -> dict[str, Any]:
    """Times of every side, ratios of fusec to its peers, and each side's error."""
    work, generator = _make(arguments)
    gradients = accuracy.outputs_like(work, generator)
    steps = {
        side: Step(work, peers.compiled(work.function, side), gradients)
        for side in arguments.sides.split(",")
    }
    results = {side: step.named() for side, step in steps.items()}
    verdicts = accuracy.judge(results, accuracy.reference(work, gradients))
    del results
    times = interleave(
        steps,
        seconds=arguments.seconds * len(steps),
        min_rounds=arguments.rounds,
        clock=CLOCKS[arguments.clock],
    )
    return {
        "times": {side: t.to_json() for side, t in times.items()},
        "fusec_against": against("fusec", times),
        "errors": {side: verdict.to_json() for side, verdict in verdicts.items()},
        "moved_bytes": work.moved,
        "eager_runs": peers.eager_runs("fusec"),
    }


def cold(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a first call after imports, the one-off costs apart, and a later call's memory.

    `memory_bytes`: the peak during the third call over what was resident before the first one, so
    inputs and weights are not in it, scratch memory that a side keeps is.
    """
    side, clock = arguments.sides, CLOCKS[arguments.clock]
    work, generator = _make(arguments)
    gradients = accuracy.outputs_like(work, generator)
    peers.load(side)
    start = clock()
    peers.prime(side)
    once = clock() - start
    torch._dynamo.reset()
    gc.collect()
    before = memory.resident()
    step = Step(work, peers.compiled(work.function, side), gradients)
    start = clock()
    step()
    first = clock() - start
    step()
    gc.collect()
    found: dict[str, Any] = {"once_s": once, "first_s": first}
    try:
        memory.reset_peak()
    except OSError:
        return found  # not this kernel: the other figures stand
    step()
    found["memory_bytes"] = max(0, memory.peak() - before)
    found["eager_runs"] = peers.eager_runs(side)
    return found


def main() -> int:
    """Measure what the command line says and print it."""
    parser = argparse.ArgumentParser(prog="python -m bench.cpu_case", description=__doc__)
    parser.add_argument("what", choices=("steady", "cold"))
    parser.add_argument("--case", required=True, choices=list(CASES))
    parser.add_argument("--sides", required=True, help="of " + ", ".join(peers.BACKENDS))
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="of timing, a side")
    parser.add_argument("--rounds", type=int, default=5, help="at least so many")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    process.die_with_parent()
    torch.set_num_threads(arguments.threads)
    measure = steady if arguments.what == "steady" else cold
    display.result(measure(arguments))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
