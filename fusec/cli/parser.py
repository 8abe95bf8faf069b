"""Parses the command line and hands over to a subcommand."""

import argparse
import sys
from collections.abc import Sequence

from cache.errors import CacheError
from fusec import __version__
from fusec.cli import demo, doctor, explain, farm, keys, prewarm, serve, stats, store, why_miss
from fusec.errors import FusecError

_EXAMPLES = """\
examples:
  fusec demo                      compile a small Llama cold, then warm, through a farm here
  fusec serve                     a farm on this machine to develop against
  export FUSEC_REMOTE=http://127.0.0.1:8765 FUSEC_TRUSTED_KEYS=~/.cache/fusec-serve.key.pub
  fusec doctor                    what is installed, reachable, writable; what to do about it
  fusec explain mymodel:example   kernels of your model, what they save, what was not fused
  fusec keys generate farm.key    the key that signs a farm's artifacts
  fusec prewarm mymodel:example --target cuda:sm_90   compile for a GPU that is elsewhere
  fusec cache export a.tar        artifacts for a cluster that no network joins
  fusec why-miss                  which entry of its key made the last job miss
  fusec farm status --watch       what the farm does: its queue, jobs in work, slowest graphs
  fusec stats                     what the local cache holds, and the service's hits and misses

In a program:  model = torch.compile(model, backend="fusec")
"""


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="fusec",
        description="A fusing compiler for PyTorch and the farm that shares its kernels.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"fusec {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (demo, serve, doctor, stats, farm, explain, prewarm, keys, store, why_miss):
        module.add(commands)
    return top


def run(argv: Sequence[str]) -> int:
    """Run a command line; gives the exit code. Errors of ours become one message, no traceback."""
    if not argv:
        parser().print_help()
        return 0
    arguments = parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except (FusecError, CacheError) as error:
        print(f"fusec: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
