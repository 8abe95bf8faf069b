"""One process of the demo: trains a model for a few steps, infers once or twice, writes a result.

    python -m fusec.demo.worker --model llama --run fusec --out FOLDER

Prints one line a phase on standard output, for whoever shows the progress.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

START = time.perf_counter()

RUNS = ("eager", "float64", "fusec", "inductor")
TRAIN_STEPS = 3
INFERENCES = 2
LEARNING_RATE = 0.02


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fusec.demo.worker", description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--run", required=True, choices=RUNS)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int)
    return parser.parse_args(argv)


def _phase(text: str) -> None:
    print(text, flush=True)


def main(argv: list[str] | None = None) -> int:
    """Run and write the result; errors propagate as tracebacks for the parent to show."""
    arguments = _arguments(argv)
    _phase("importing torch")
    import contextlib

    import torch
    from torch import Tensor

    from fusec.demo import models, results
    from fusec.demo.float64 import Float64

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    _phase("building the model")
    example = models.build(
        arguments.model, layers=arguments.layers, dtype=getattr(torch, arguments.dtype)
    )
    model, inputs = example.model, example.inputs
    precision: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if arguments.run == "float64":
        model = model.double()
        inputs = tuple(x.double() if x.is_floating_point() else x for x in inputs)
        precision = Float64()
    compiled: Callable[..., tuple[Tensor, Tensor]] = model
    if arguments.run in ("fusec", "inductor"):
        compiled = torch.compile(model, backend=arguments.run)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    imports = time.perf_counter() - START

    tensors: dict[str, Tensor] = {}
    train, infer = [], []
    with precision:
        for step in range(TRAIN_STEPS):
            _phase(f"training step {step + 1} of {TRAIN_STEPS}")
            start = time.perf_counter()
            loss, output = compiled(*inputs)
            loss.backward()
            train.append(time.perf_counter() - start)
            tensors[f"loss {step + 1}"] = loss.detach().clone()
            if step == 0:
                tensors["output"] = output.detach().clone()
                for name, parameter in model.named_parameters():
                    if parameter.grad is not None:
                        tensors[f"gradient of {name}"] = parameter.grad.clone()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        for number in range(INFERENCES):
            _phase(f"inference {number + 1} of {INFERENCES}")
            start = time.perf_counter()
            with torch.no_grad():
                _, output = compiled(*inputs)
            infer.append(time.perf_counter() - start)
        tensors["inference"] = output.clone()
        for name, buffer in model.named_buffers():
            if buffer.is_floating_point():
                tensors[f"buffer {name}"] = buffer.clone()

    stages: dict[str, float] = {}
    counters: dict[str, int] = {}
    if arguments.run == "fusec":
        from fusec import api

        snapshot = api.snapshot()
        stages, counters = dict(snapshot.stages), dict(snapshot.counters)
    _phase("writing the result")
    times = results.Times(train, infer, imports)
    results.write(results.Result(times, stages, counters, tensors), arguments.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
