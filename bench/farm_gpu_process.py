"""One process of bench.farm_gpu: a model's first call on one side, then the time of its steps."""

from __future__ import annotations

import time

from bench import display, process


def main() -> int:
    """Run and print one line of JSON: seconds and milliseconds by name."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m bench.farm_gpu_process")
    parser.add_argument("--model", required=True)
    parser.add_argument("--side", required=True)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    process.die_with_parent()

    import torch

    from bench import peers
    from bench.gpu import models
    from bench.gpu.measure import Step, compiled

    torch.manual_seed(0)
    case = models.CASES[arguments.model]()
    Step(case, case.function)()  # libraries load on first use; eager's are everybody's
    torch.cuda.synchronize()
    peers.load(arguments.side.partition("-")[0])
    step = Step(case, compiled(case.function, arguments.side))
    before = process.since_start()
    # On standard error, which the parent reads where this process is cut off.
    display.progress(f"the first call begins {before:.2f} s after the start")
    step()
    torch.cuda.synchronize()
    first_s = process.since_start() - before
    first_stages = _stages(arguments.side)
    samples: list[float] = []
    ends = time.perf_counter() + arguments.seconds
    for _ in range(3):
        step()
    while time.perf_counter() < ends or len(samples) < 5:
        torch.cuda.synchronize()
        started = time.perf_counter()
        step()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - started) * 1e3)
    counters: dict[str, int] = {}
    if arguments.side.startswith("fusec"):
        from fusec.api import snapshot

        counters = dict(snapshot().counters)
    display.result(
        {
            "before_s": before,
            "first_s": first_s,
            "step_ms": sorted(samples)[len(samples) // 2],
            "samples": len(samples),
            "counters": counters,
            "first_stages": first_stages,
        }
    )
    return 0


def _stages(side: str) -> dict[str, float]:
    """Seconds by stage so far; a peer tells none."""
    if not side.startswith("fusec"):
        return {}
    from fusec.api import snapshot

    return dict(snapshot().stages)


if __name__ == "__main__":
    raise SystemExit(main())
