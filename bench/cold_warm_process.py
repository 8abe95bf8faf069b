"""One process of bench.cold_warm: trains a model for two steps and prints when what was done."""

import time

from bench import display, process

STARTED = process.since_start()


def main() -> int:
    """Run and print one line of JSON, seconds by name."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m bench.cold_warm_process")
    parser.add_argument("--model", required=True)
    parser.add_argument("--side", required=True)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    process.die_with_parent()

    import torch

    from bench import peers
    from fusec.demo import models

    torch.set_num_threads(arguments.threads)
    built = time.perf_counter()
    example = models.build(arguments.model, layers=arguments.layers)
    build_s = time.perf_counter() - built
    peers.load(arguments.side)
    imports = process.since_start() - build_s
    step = peers.compiled(example.model, arguments.side)

    def train() -> tuple[float, float]:
        """Seconds to the loss and to the gradients."""
        start = time.perf_counter()
        loss, _ = step(*example.inputs)
        middle = time.perf_counter()
        loss.backward()
        example.model.zero_grad()
        return middle - start, time.perf_counter() - start

    first_forward, first_step = train()
    cpu = time.process_time()
    stages: dict[str, float] = {}
    counters: dict[str, int] = {}
    if arguments.side == "fusec":
        from fusec.api import snapshot

        stages, counters = dict(snapshot().stages), dict(snapshot().counters)
    later = sorted(train()[1] for _ in range(5))[2]
    display.result(
        {
            "interpreter_s": STARTED,
            "imports_s": imports,
            "build_s": build_s,
            "first_forward_s": first_forward,
            "first_step_s": first_step,
            "cpu_step_s": cpu,
            "later_step_s": later,
            "compile_s": first_step - later,
            "start_to_forward_s": imports + first_forward,
            "start_to_step_s": imports + first_step,
            "stages": stages,
            "counters": counters,
        }
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
