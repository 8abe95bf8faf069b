"""`fusec prewarm`: fill the cache for a model and a target before anybody runs it there."""

import argparse
import json
import re
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from fusec.cli import subject
from fusec.cli.demo import MODELS
from fusec.errors import OptionsError
from fusec.options import Options, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fusec.prewarm import Warmed

_HELP = """\
Captures the graphs of a model for a target, compiles them through the farm or here, and publishes
them. For a GPU no GPU is needed: tensors are made without memory and nothing is computed. The
machine that has the GPU asks for the same keys, and compiles nothing.
"""
_EXAMPLES = """\
examples:
  fusec prewarm mymodel:example --target cuda:sm_90
  fusec prewarm mymodel:example --target cuda:sm_90 --remote http://cache:8765
  fusec prewarm mymodel:example --target cpu --no-grad
  fusec prewarm mymodel:example --target cuda:gfx942 --keys-only --json
  fusec prewarm --demo mlp --target cpu        does a compile through the farm work?

example() returns a module or function and its inputs: a tuple of arguments, or a dict of keyword
arguments, or one tensor. Tensors that it makes without a device are on the target's. Return a
function that enters torch.autocast around the model where your program does; what it calls is
compiled as torch.compile(function) would.
"""
_GPU = re.compile(r"sm_\d{2,3}|gfx[0-9a-f]{3,5}")


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "prewarm",
        help="compile a model's graphs for a target that need not be here",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("function", nargs="?", metavar="MODULE:FUNCTION", help="see below")
    what.add_argument("--demo", choices=MODELS, help="one of the demo's models")
    parser.add_argument(
        "--target", required=True, help="cpu: as this machine; cuda:sm_90, cuda:gfx942, …"
    )
    parser.add_argument("--remote", help="address of the cache service, for FUSEC_REMOTE")
    parser.add_argument("--no-grad", action="store_true", help="inference: no gradients")
    parser.add_argument("--dynamic", action="store_true", help="sizes as symbols")
    parser.add_argument("--keys-only", action="store_true", help="compute keys, compile nothing")
    parser.add_argument("--json", action="store_true", help="everything, for a program")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compile and publish; 1 when a graph would run eager. Raises OptionsError."""
    overrides = {"remote": arguments.remote} if arguments.remote else {}
    options = Options.from_env(overrides=overrides)
    target = target_from(arguments.target)
    make = _make(arguments)
    from fusec.prewarm import prewarm
    from fusec.remote.protocol import Priority
    from fusec.remote.resolve import Resolver
    from fusec.trace import Recorder

    recorder = Recorder()
    resolver = None
    if not arguments.keys_only:
        resolver = Resolver.open(options, recorder, priority=Priority.PREWARM)
    console = Console(stderr=True)
    try:
        with console.status("capturing", spinner="line") as status:
            counted: list[Warmed] = []

            def each(graph: "Warmed") -> None:
                counted.append(graph)
                status.update(f"graphs: {len(counted)}")

            found = prewarm(
                lambda: subject.example(make(), arguments.function or arguments.demo),
                target,
                options,
                resolver,
                recorder=recorder,
                grad=not arguments.no_grad,
                dynamic=True if arguments.dynamic else None,
                each=each,
            )
    finally:
        if resolver is not None:
            resolver.close()
    if arguments.json:
        json.dump(as_json(target, found), sys.stdout, indent=1)
        print()
    else:
        show(found, Console())
    return 1 if any(graph.eager for graph in found) else 0


def _make(arguments: argparse.Namespace) -> "Callable[[], object]":
    """What makes the model and its inputs."""
    if not arguments.demo:
        return subject.imported(arguments.function)
    from fusec.demo.models import build

    def make() -> object:
        example = build(arguments.demo)
        return example.model, example.inputs

    return make


def target_from(text: str) -> Target:
    """The target that `cpu` or `cuda:<capability>` names. Raises OptionsError for another text."""
    if text == "cpu":
        from fusec.codegen.isa import host_target

        return host_target()
    device, _, isa = text.partition(":")
    if device != "cuda" or not _GPU.fullmatch(isa):
        raise OptionsError(f"{text!r} is no target", hint="cpu, cuda:sm_90 or cuda:gfx942")
    return Target(device, isa)


def as_json(target: Target, graphs: "Sequence[Warmed]") -> dict[str, object]:
    """All that is known of the graphs, as plain values."""
    return {
        "target": target.to_wire(),
        "graphs": [
            {
                "front": graph.front,
                "known": graph.known,
                "eager": graph.eager,
                "parts": [
                    {"role": p.role, "key": p.key, "source": p.source, "numbers": p.numbers}
                    for p in graph.parts
                ],
            }
            for graph in graphs
        ],
    }


def show(graphs: "Sequence[Warmed]", console: Console) -> None:
    """A table of the graphs for a person."""
    table = Table("graph", "key", "from", "kernels", "calls", "fallbacks", box=None)
    for number, graph in enumerate(graphs):
        name = f"{number} " if len(graphs) > 1 else ""
        if graph.front:
            state = "known" if graph.known else ""
            table.add_row(f"{name}front", _short(graph.front), state, "", "", "")
        for part in graph.parts:
            counts = [str(part.numbers.get(k, "")) for k in _COUNTS]
            table.add_row(f"{name}{part.role}", _short(part.key), part.source or "", *counts)
        if graph.eager:
            table.add_row(f"{name}eager", "", graph.eager, "", "", "")
    console.print(table)


_COUNTS = ("kernels", "external_calls", "fallback_calls")


def _short(key: str) -> str:
    """A key as a person compares it: its kind and the first digits."""
    return key[: key.find("/") + 17]
