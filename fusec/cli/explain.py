"""`fusec explain`: which kernels a function becomes, what they save, and what was not fused."""

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fusec.cli import subject
from fusec.cli.demo import MODELS
from fusec.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable

_HELP = """\
Captures a function's graphs as torch.compile would, plans them, and prints for each kernel: its
operations with the line of your code that each comes from, the loops it runs, the bytes it reads
and writes and how many that saves, and why it was not fused with its neighbours. Calls that ATen
runs, and those that have no rule in the compiler, are listed too. Nothing is compiled or stored.
"""
_EXAMPLES = """\
examples:
  fusec explain --demo llama
  fusec explain mymodel:example            example() returns (model, inputs)
  fusec explain mymodel:example --no-grad --json

example() returns a module or function and its inputs: a tuple of arguments, or a dict of keyword
arguments, or one tensor. The current folder is searched for the module.
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "explain",
        help="kernels of a function, the bytes they save, what was not fused and why",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("function", nargs="?", metavar="MODULE:FUNCTION", help="see below")
    what.add_argument("--demo", choices=MODELS, help="one of the demo's models")
    parser.add_argument("--layers", type=int, help="how deep the demo's model is")
    parser.add_argument("--no-grad", action="store_true", help="inference: no gradients")
    parser.add_argument("--dynamic", action="store_true", help="sizes as symbols")
    parser.add_argument("--json", action="store_true", help="everything, for a program")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the explanations. Raises OptionsError for a name that leads to nothing callable."""
    options = Options.from_env()
    from fusec.codegen.isa import host_target
    from fusec.inspect.captured import capture
    from fusec.inspect.explain import explain
    from fusec.inspect.outline import as_json, show

    function, args, kwargs = _subject(arguments)
    parts = capture(
        function,
        args,
        kwargs,
        grad=not arguments.no_grad,
        dynamic=True if arguments.dynamic else None,
    )
    found = [
        explain(part.graph, host_target(), options, traces=part.traces, title=title)
        for title, part in parts
    ]
    if arguments.json:
        json.dump([as_json(explanation) for explanation in found], sys.stdout, indent=1)
        print()
    else:
        show(found, Console())
    return 0


def _subject(
    arguments: argparse.Namespace,
) -> "tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]":
    """What to call, with which arguments."""
    if arguments.demo:
        from fusec.demo.models import build

        example = build(arguments.demo, layers=arguments.layers)
        return example.model, example.inputs, {}
    return subject.example(subject.imported(arguments.function)(), arguments.function)
