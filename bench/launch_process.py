"""The process of bench.launch: times calls of tiny functions and prints the figures."""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from bench import display, peers, process
from bench.timing import CLOCKS, against, interleave


def add_up(*xs: Tensor) -> Tensor:
    """The sum of all inputs: one kernel when compiled."""
    total = xs[0] * 2
    for x in xs[1:]:
        total = total + x
    return total


def _call(function: Callable[..., Tensor], inputs: list[Tensor]) -> Callable[[], Tensor]:
    return lambda: function(*inputs)


def main() -> int:
    """Measure what the command line says and print one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.launch_process")
    parser.add_argument("--inputs", required=True)
    parser.add_argument("--sides", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    arguments = parser.parse_args()
    process.die_with_parent()
    torch.set_num_threads(arguments.threads)
    sides = arguments.sides.split(",")
    cases = []
    for count in map(int, arguments.inputs.split(",")):
        for training in (False, True):
            torch._dynamo.reset()
            inputs = [torch.randn(64, requires_grad=training) for _ in range(count)]
            calls = {side: _call(peers.compiled(add_up, side), inputs) for side in sides}
            with torch.set_grad_enabled(training):
                expected = torch.stack([x.detach().double() for x in inputs]).sum(0)
                expected += inputs[0].detach()
                for side, call in calls.items():
                    # Exact enough to see a wrong answer; rounding grows with the inputs.
                    worst = float((call().detach() - expected).abs().max())
                    if worst > 1e-6 * count * 10:
                        raise ValueError(f"{side} is off by {worst} for {count} inputs")
                seconds = arguments.seconds * len(sides)
                inner = 200 if count < 50 else 50
                clock = CLOCKS[arguments.clock]
                times = interleave(calls, seconds=seconds, inner=inner, warmup=20, clock=clock)
            cases.append(
                {
                    "inputs": count,
                    "training": training,
                    "times": {side: t.to_json() for side, t in times.items()},
                    "fusec_against": against("fusec", times),
                    "eager_runs": peers.eager_runs("fusec"),
                }
            )
    display.result({"cases": cases})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
