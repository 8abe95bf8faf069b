"""`fusec stats`: what the local store holds, and the service's hits and misses."""

import argparse
import json
import sys

from rich.console import Console
from rich.table import Table

from cache.errors import CacheError
from fusec.cli.service import Samples, Service, total
from fusec.errors import RemoteError
from fusec.options import Options

_HELP = "What the local cache holds and, with FUSEC_REMOTE set, the service's hits and misses."
_EXAMPLES = """\
examples:
  fusec stats
  FUSEC_REMOTE=http://127.0.0.1:8765 fusec stats --json
"""
_REQUEST_S = 10.0


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "stats",
        help="content of the local cache, hits and misses of the service",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="numbers for a program")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print both parts. Raises RemoteError when the service does not answer."""
    options = Options.from_env()
    figures: dict[str, object] = {"local": _local(options)}
    if options.remote:
        figures["remote"] = {"where": options.remote, **_remote(options)}
    if arguments.json:
        json.dump(figures, sys.stdout, indent=1)
        print()
    else:
        show(figures, Console())
    return 0


def _local(options: Options) -> dict[str, object]:
    """The local store, without making one where none is."""
    from cache.local import LocalStore

    if not options.cache_dir.exists():
        return {"where": str(options.cache_dir), "bytes": 0, "blobs": 0, "entries": 0}
    try:
        return dict(LocalStore(options.cache_dir).describe())
    except CacheError as error:
        raise RemoteError(error.message, where=str(options.cache_dir), hint=error.hint) from error


def _remote(options: Options) -> dict[str, object]:
    import httpx

    try:
        with Service(options, _REQUEST_S) as service:
            samples = service.metrics()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RemoteError(
            f"no metrics: {error}", where=options.remote, hint="fusec doctor says more"
        ) from error
    return summary(samples)


def summary(samples: Samples) -> dict[str, object]:
    """The figures of a service's /metrics that a person asks for first."""
    hits = total(samples, "fusec_cache_hits_total", "tier")
    misses = total(samples, "fusec_cache_misses_total", "reason")
    asked = sum(hits.values()) + sum(misses.values())
    return {
        "hits": hits,
        "misses": misses,
        "hit_rate": sum(hits.values()) / asked if asked else None,
        "bytes": total(samples, "fusec_cache_bytes_total", "direction"),
        "errors": total(samples, "fusec_cache_errors_total", "where"),
    }


def show(figures: dict[str, object], console: Console) -> None:
    """Print the figures as a table, one row a number."""
    table = Table(box=None, show_header=False)
    for part, numbers in figures.items():
        table.add_row(f"[bold]{part}[/]", "")
        for name, value in _flat(numbers):
            table.add_row(f"  {name}", value)
    console.print(table, highlight=False)


def _flat(value: object, name: str = "") -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [
            row for key, inner in value.items() for row in _flat(inner, f"{name} {key}".strip())
        ]
    if isinstance(value, float):
        return [(name, f"{value:.3f}" if "rate" in name else f"{value:.0f}")]
    return [(name, "none yet" if value is None else str(value))]
