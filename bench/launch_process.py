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


def multiply_up(x: Tensor, *ws: Tensor) -> Tensor:
    """A row times each matrix, with a sine between: a library call and a kernel for each."""
    for w in ws:
        x = (x @ w).sin()
    return x


WORK = {"sum": add_up, "products": multiply_up}


def _inputs(work: str, count: int, device: str, training: bool) -> list[Tensor]:
    if work == "sum":
        made = [torch.randn(64) for _ in range(count)]
    else:
        made = [torch.randn(1, 64), *(torch.randn(64, 64) / 8 for _ in range(count))]
    return [x.to(device).requires_grad_(training) for x in made]


def _check(
    side: str, result: Tensor, function: Callable[..., Tensor], inputs: list[Tensor]
) -> None:
    """Exact enough to see a wrong answer; rounding grows with the inputs."""
    expected = function(*[x.detach().double() for x in inputs])
    worst = float((result.detach() - expected).abs().max())
    if worst > 1e-5 * len(inputs):
        raise ValueError(f"{side} is off by {worst} for {len(inputs)} inputs")


def _call(function: Callable[..., Tensor], inputs: list[Tensor]) -> Callable[[], Tensor]:
    return lambda: function(*inputs)


def _calls_a_sample(count: int, arguments: argparse.Namespace) -> int:
    """Few on a GPU: what is handed over must fit its queue, or the host waits for the GPU."""
    if arguments.device == "cuda":
        return max(1, 400 // (2 * count))
    return 200 if count < 50 and arguments.work == "sum" else 50


def main() -> int:
    """Measure what the command line says and print one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.launch_process")
    parser.add_argument("--inputs", required=True)
    parser.add_argument("--sides", required=True)
    parser.add_argument("--work", choices=list(WORK), default="sum")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    arguments = parser.parse_args()
    process.die_with_parent()
    torch.set_num_threads(arguments.threads)
    sides = arguments.sides.split(",")
    settle = torch.cuda.synchronize if arguments.device == "cuda" else None
    cases = []
    for count in map(int, arguments.inputs.split(",")):
        for training in (False, True):
            torch._dynamo.reset()
            inputs = _inputs(arguments.work, count, arguments.device, training)
            function = WORK[arguments.work]
            calls = {side: _call(peers.compiled(function, side), inputs) for side in sides}
            with torch.set_grad_enabled(training):
                for side, call in calls.items():
                    _check(side, call(), function, inputs)
                seconds = arguments.seconds * len(sides)
                inner = _calls_a_sample(count, arguments)
                clock = CLOCKS[arguments.clock]
                times = interleave(
                    calls, seconds=seconds, inner=inner, warmup=20, clock=clock, settle=settle
                )
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
