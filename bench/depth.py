"""What depth costs: kernels, compile time and artifact size of a model of 2, 8 and 32 layers."""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import display, machine, process
from bench.cold_warm import MODELS

_HELP = """\
Compiles one training step of a model, forward and backward, for several numbers of layers, each in
a fresh process from an empty store. Distinct kernels must not grow with depth, and so compile time
should hardly do so. `compile` is everything after AOTAutograd: lower, schedule, codegen and the C
compiler, kernels built in parallel; tracing (Dynamo and AOTAutograd) is apart. Sizes are of both
artifacts together, as they are and compressed as they travel. Tensors are small: counts do not
depend on sizes.
"""
_EXAMPLES = """\
examples:
  python -m bench.depth                               Llama of 2, 8 and 32 layers
  python -m bench.depth --model bert --layers 4,32 --json depth.json
"""


def main(argv: list[str] | None = None) -> int:
    """0 when the number of distinct kernels is the same for the two greatest depths."""
    arguments = _arguments(argv)
    out = display.console()
    about = machine.describe(arguments.threads)
    out.print(machine.line(about), soft_wrap=True)
    depths: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="fusec-bench-") as folder:
        for layers in arguments.layers:
            display.progress(f"{arguments.model} of {layers} layers")
            home = Path(folder) / str(layers)
            home.mkdir()
            command = ["--model", arguments.model, "--layers", str(layers)]
            command += ["--threads", str(arguments.threads)]
            depths[layers] = process.run("bench.depth_process", command, folder=home).result
    result = {
        "machine": about,
        "model": arguments.model,
        "depths": depths,
        "growth": growth(depths),
    }
    display.write_json(arguments.json, result)
    rows = [_row(layers, found) for layers, found in depths.items()]
    columns = ["layers", "nodes", "kernels", "distinct", "calls", "fallback", "trace", "compile"]
    columns += ["lower", "schedule", "codegen", "build", "size", "zstd"]
    display.table(out, f"{arguments.model}, one training step", columns, rows)
    for name, value in growth(depths).items():
        out.print(f"{name}: {value:.2f}", markup=False)
    last = [found["distinct_kernels"] for found in depths.values()][-2:]
    return 0 if len(set(last)) == 1 else 1


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.depth",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=MODELS, default="llama", help="default: llama")
    parser.add_argument("--layers", default="2,8,32", help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="default: 2")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    arguments = parser.parse_args(argv)
    try:
        arguments.layers = sorted({int(text) for text in arguments.layers.split(",")})
    except ValueError:
        parser.error("--layers: whole numbers, by commas")
    return arguments


def growth(depths: dict[int, dict[str, Any]]) -> dict[str, float]:
    """From the least deep to the deepest: kernels a layer, and the deepest's cost over the other's.

    Kernels a layer is a slope: what embedding and loss need is not in it.
    """
    if len(depths) < 2:
        return {}
    few, many = min(depths), max(depths)
    shallow, deep = depths[few], depths[many]
    return {
        "kernels a layer": (deep["kernels"] - shallow["kernels"]) / (many - few),
        "library calls a layer": (deep["external_calls"] - shallow["external_calls"])
        / (many - few),
        f"distinct kernels, {many} layers over {few}": deep["distinct_kernels"]
        / shallow["distinct_kernels"],
        f"compile time, {many} layers over {few}": deep["compile_s"] / shallow["compile_s"],
        f"zstd size, {many} layers over {few}": deep["zstd_bytes"] / shallow["zstd_bytes"],
    }


def _row(layers: int, found: dict[str, Any]) -> list[str]:
    counts = ("nodes", "kernels", "distinct_kernels", "external_calls", "fallback_calls")
    times = ("trace_s", "compile_s", "lower_s", "schedule_s", "codegen_s", "build_s")
    return [
        str(layers),
        *(str(found[name]) for name in counts),
        *(display.seconds(found[name]) for name in times),
        *(f"{found[name] / 1024:.0f} KiB" for name in ("bytes", "zstd_bytes")),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
