"""`fusec doctor`: what is installed, reachable, trusted, writable, and what to do about it."""

import argparse
import dataclasses
import json
import sys

from rich.console import Console
from rich.table import Table

from fusec.cli.checks import Check, Level, run_checks
from fusec.options import Options

_HELP = """\
Looks at this machine as a training job would: versions, the backend's registration, a C compiler
that really compiles, the local cache, the cache service in FUSEC_REMOTE. The exit code is 1 when
a line says FAIL. Nothing is changed.
"""
_EXAMPLES = """\
examples:
  fusec doctor
  FUSEC_REMOTE=http://cache:8765 fusec doctor
  fusec doctor --json | jq '.[] | select(.level != "OK")'
"""
_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "doctor",
        help="check this machine and the service; say what to do",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="a list of checks for a program")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run every check; 1 when one fails."""
    checks = run_checks(Options.from_env())
    if arguments.json:
        json.dump([dataclasses.asdict(check) for check in checks], sys.stdout, indent=1)
        print()
    else:
        show(checks, Console())
    return 1 if any(check.level is Level.FAIL for check in checks) else 0


def show(checks: list[Check], console: Console) -> None:
    """Print the checks: a table in a terminal, whole lines elsewhere."""
    if not console.is_terminal:
        for check in checks:
            advice = f" -> {check.advice}" if check.advice else ""
            print(f"{check.level:4} {check.name}: {check.found}{advice}", file=console.file)
        return
    table = Table(box=None, show_header=False)
    for check in checks:
        advice = f"\n[dim]{check.advice}[/]" if check.advice else ""
        style = _STYLES[check.level]
        table.add_row(f"[{style}]{check.level}[/]", check.name, f"{check.found}{advice}")
    console.print(table, highlight=False)
