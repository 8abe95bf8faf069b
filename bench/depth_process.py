"""One process of bench.depth: compiles a model of so many layers and prints what that took."""

import argparse

from bench import display, process


def main() -> int:
    """Capture, compile into an empty store, print one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.depth_process")
    parser.add_argument("--model", required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    process.die_with_parent()

    import time

    import torch
    import zstandard

    from bench.captured import capture
    from cache.memory import MemoryStore
    from fusec.codegen.isa import host_target
    from fusec.demo import models
    from fusec.options import Options
    from fusec.pipeline import compile_local
    from fusec.runtime.report import report_of
    from fusec.trace import Recorder

    torch.set_num_threads(arguments.threads)
    example = models.build(
        arguments.model,
        layers=arguments.layers,
        hidden=32 if arguments.model == "convnet" else 128,
        length=32,
        batch=2,
    )
    found = capture(example)
    store, recorder = MemoryStore(), Recorder()
    target, options = host_target(), Options()
    start = time.perf_counter()
    made = [
        compile_local(graph, target, options, store, recorder=recorder) for _, graph in found.graphs
    ]
    compile_s = time.perf_counter() - start
    counts: dict[str, int] = {}
    for artifact in made:
        for name, value in report_of(artifact.manifest.meta).items():
            counts[name] = counts.get(name, 0) + value
    names = {name for artifact in made for name in artifact.blobs if name.startswith("kernel/")}
    counts["distinct_kernels"] = len(names)  # over forward and backward together
    # A blob that both artifacts name is stored once.
    distinct = {
        digest: artifact.blobs[name]
        for artifact in made
        for name, digest, _ in artifact.manifest.blobs
    }
    squeeze = zstandard.ZstdCompressor()
    passes = ("lower", "schedule", "codegen", "build")
    stages = {f"{name}_s": recorder.stages.get(name, 0.0) for name in passes}
    display.result(
        {
            **{n: v for n, v in counts.items() if not n.startswith("fallback:")},
            "fallbacks": {n[9:]: v for n, v in counts.items() if n.startswith("fallback:")},
            "nodes": sum(len(graph.nodes) for _, graph in found.graphs),
            "graphs": len(found.graphs),
            "trace_s": found.trace_s,
            "compile_s": compile_s,
            **stages,
            "bytes": sum(len(data) for data in distinct.values()),
            "zstd_bytes": sum(len(squeeze.compress(data)) for data in distinct.values()),
            "blobs": len(distinct),
        }
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
