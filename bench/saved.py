"""What the forward pass of a training step saves for the backward: fusec's cut and torch's."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from bench import display, machine
from fusec.capture import decompositions, seams, seams_joint
from fusec.capture.partition import partition
from fusec.capture.rewrite import rewrite

_HELP = """\
Traces a training step of each small model of tests/models twice, its joint graph cut by fusec and
by torch's min cut (which Inductor uses), and compares: bytes held from the forward to the backward
pass (inputs and parameters, which live anyway, apart), saved values, operations of both passes
(views count too), seconds of the cut.
"""
_EXAMPLES = """\
examples:
  python -m bench.saved                            all models
  python -m bench.saved --only llama,bert --json saved.json
"""
Cut = Callable[..., tuple[torch.fx.GraphModule, torch.fx.GraphModule]]
_CUTS: dict[str, Cut] = {"fusec": partition, "torch": seams_joint.torch_partition}


def main(argv: list[str] | None = None) -> int:
    """0 when fusec holds nowhere 5 % more than torch."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.saved",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="NAMES", help="models, by commas")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    arguments = parser.parse_args(argv)
    makers = _zoo()
    names = arguments.only.split(",") if arguments.only else list(makers)
    if unknown := set(names) - set(makers):
        parser.error(f"--only: no model {min(unknown)}; there are {', '.join(makers)}")
    out = display.console()
    about = machine.describe(torch.get_num_threads())
    out.print(machine.line(about), soft_wrap=True)
    models: dict[str, dict[str, dict[str, float]]] = {}
    for name in names:
        display.progress(name)
        models[name] = {side: _measure(makers[name](), cut) for side, cut in _CUTS.items()}
    display.write_json(arguments.json, {"machine": about, "models": models})
    columns = [
        "held KiB",
        "fusec",
        "torch",
        "ratio",
        "saved",
        "torch",
        "ops",
        "torch",
        "s",
        "torch",
    ]
    display.table(out, "Saved for the backward pass", columns, [_row(*m) for m in models.items()])
    worse = [n for n, m in models.items() if m["fusec"]["held"] > 1.05 * m["torch"]["held"]]
    for name in worse:
        out.print(f"[bold red]more than torch[/] {name}")
    return 1 if worse else 0


def _zoo() -> dict[str, Callable[[], Any]]:
    """The models of the tests, by name."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from models import torch_zoo, transformers_zoo

    made = {}
    for zoo, names in (
        (torch_zoo, torch_zoo.MODELS),
        (transformers_zoo, transformers_zoo.FAMILIES),
    ):
        made.update({name: lambda zoo=zoo, name=name: zoo.example(name) for name in names})
    for name in ("llama", "gpt2", "bert"):
        made[name] = lambda name=name: transformers_zoo.example(name)
    return made


def _measure(example: Any, cut: Cut) -> dict[str, float]:
    """Of all graphs of a model's training step. held: bytes; saved: values; ops: of both passes;
    cut_s: seconds of the cuts."""
    found = {"held": 0.0, "saved": 0.0, "ops": 0.0, "cut_s": 0.0}

    def measured(joint: torch.fx.GraphModule, inputs: Any, **how: Any) -> Any:
        start = time.perf_counter()
        forward, backward = cut(joint, inputs, **how)
        found["cut_s"] += time.perf_counter() - start
        (output,) = forward.graph.find_nodes(op="output")
        saved = output.args[0][how["num_fwd_outputs"] :]
        found["saved"] += len(saved)
        found["held"] += _held(forward.graph, saved)
        for graph in (forward.graph, backward.graph):
            found["ops"] += sum(n.op == "call_function" for n in graph.nodes)
        return forward, backward

    def boxed(gm: torch.fx.GraphModule, _: Any) -> Any:
        def call(arguments: list[Any]) -> Any:
            return gm(*arguments)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return seams.aot_module(
            rewrite(gm),
            inputs,
            forward=boxed,
            backward=boxed,
            inference=boxed,
            partition=measured,
            decompositions=decompositions.table(),
        )

    torch._dynamo.reset()
    example.model.train()
    torch.compile(example.model, backend=backend)(*example.inputs)
    return found


def _held(graph: torch.fx.Graph, saved: Sequence[Any]) -> int:
    """Bytes that these values keep alive, the inputs' own apart; views keep their base."""
    inputs = {
        seams.storage_of(n.meta["val"])
        for n in graph.find_nodes(op="placeholder")
        if isinstance(n.meta.get("val"), torch.Tensor)
    }
    held: dict[int, int] = {}
    for node in saved:
        value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        if isinstance(value, torch.Tensor) and seams.storage_of(value) not in inputs:
            held[seams.storage_of(value)] = int(value.untyped_storage().nbytes())
    return sum(held.values())


def _row(name: str, sides: dict[str, dict[str, float]]) -> list[str]:
    ours, theirs = sides["fusec"], sides["torch"]
    ratio = ours["held"] / theirs["held"] if theirs["held"] else 1.0
    return [
        name,
        f"{ours['held'] / 1024:.0f}",
        f"{theirs['held'] / 1024:.0f}",
        f"{ratio:.2f}",
        *(f"{side[key]:.0f}" for key in ("saved", "ops") for side in (ours, theirs)),
        *(f"{side['cut_s']:.2f}" for side in (ours, theirs)),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
