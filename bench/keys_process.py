"""One process of bench.keys: captures a model and prints its keys."""

import argparse

from bench import display, process


def main() -> int:
    """Capture and print one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.keys_process")
    parser.add_argument("--model", required=True)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--name", required=True, help="of the class of the model")
    arguments = parser.parse_args()
    process.die_with_parent()

    import torch

    from bench.captured import capture
    from fusec.artifact.fingerprint import Fingerprint, graph_fingerprint, toolchain
    from fusec.codegen.isa import host_target
    from fusec.demo import models
    from fusec.ir.wire import graph_to_bytes
    from fusec.options import Options
    from fusec.pipeline import kernel_store_key, plan
    from fusec.trace import Recorder

    torch.set_num_threads(arguments.threads)
    example = models.build(arguments.model, layers=arguments.layers)
    type(example.model).__name__ = arguments.name
    found = capture(example, front_repeats=5)
    target, options = host_target(), Options()
    graphs, kernels = [], []
    for role, graph in found.graphs:
        key = graph_fingerprint(graph_to_bytes(graph), target, options, toolchain())
        graphs.append(f"{role} {key.key('graph')}")
        made = plan(graph, target, options, recorder=Recorder())
        kernels += [kernel_store_key(kernel, target) for kernel in made.kernels]
    display.result(
        {
            "keys": {
                "front": [f.key("front") for f in found.front if isinstance(f, Fingerprint)],
                "graph": graphs,
                "kernel": kernels,
            },
            # For the name of what differs, should the keys do so.
            "entries": [f.to_wire() for f in found.front if isinstance(f, Fingerprint)],
            "ineligible": [f for f in found.front if isinstance(f, str)],
            "first_s": found.front_s[0],
            "later_s": min(found.front_s[1:]),
        }
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
