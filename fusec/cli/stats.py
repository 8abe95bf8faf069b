"""`fusec stats`: what the local store holds, and the service's hits and misses."""

import argparse
import json
import sys
from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from cache.artifacts import open_entry
from cache.errors import CacheError
from cache.quantities import size
from cache.trust import OWN_STORE
from fusec.artifact.quality import Quality, quality_of
from fusec.cli.service import Samples, Service, total
from fusec.errors import RemoteError, WireError
from fusec.options import Options

if TYPE_CHECKING:
    from cache.local import LocalStore

_HELP = """\
What the local cache holds and, with FUSEC_REMOTE set, the service's hits and misses.

Of the graphs it says who chose the variants of their kernels (tuned: a GPU's clock; untuned: the
cost model, until the farm has a GPU; single: there is one way to build each), and what came of the
farm's verification: their results beside eager's and float64's, on random inputs. A graph that this
machine has compiled was not verified.
"""
_EXAMPLES = """\
examples:
  fusec stats
  fusec stats --graphs           each graph of the local cache: tuned? verified, with what error?
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
    parser.add_argument("--graphs", action="store_true", help="list the graphs of the local cache")
    parser.add_argument("--json", action="store_true", help="numbers for a program")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print both parts, or the graphs. Raises RemoteError when the service does not answer."""
    options = Options.from_env()
    if arguments.graphs:
        return _list_graphs(options, as_json=arguments.json)
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
    store = _open(options)
    if store is None:
        return {"where": str(options.store_dir), "bytes": 0, "blobs": 0, "entries": 0}
    try:
        held = dict(store.describe())
        found = graphs(store)
    except CacheError as error:
        raise RemoteError(error.message, where=str(options.store_dir), hint=error.hint) from error
    known = [quality for quality in found.values() if quality is not None]
    checks = [each.verification for each in known if each.verification is not None]
    return {
        **held,
        "graphs": dict(Counter(str(each.tier) for each in known)),
        "verification": dict(Counter(str(each.outcome) for each in checks)),
    }


def _open(options: Options) -> "LocalStore | None":
    """The local store, without making one where none is."""
    from cache.local import LocalStore

    return LocalStore(options.store_dir) if options.store_dir.exists() else None


def graphs(store: "LocalStore") -> dict[str, Quality | None]:
    """How good each graph of a store is known to be, by key; None for what cannot be read."""
    found: dict[str, Quality | None] = {}
    for item in store.list_entries():
        data = store.peek_entry(item.name) if item.name.startswith("graph/") else None
        if data is None:
            continue
        try:
            found[item.name] = quality_of(open_entry(item.name, data, OWN_STORE)[0].meta)
        except (CacheError, WireError):
            found[item.name] = None
    return dict(sorted(found.items()))


def _list_graphs(options: Options, *, as_json: bool) -> int:
    store = _open(options)
    try:
        found = {} if store is None else graphs(store)
    except CacheError as error:
        raise RemoteError(error.message, where=str(options.store_dir), hint=error.hint) from error
    if as_json:
        json.dump(
            {key: each and each.to_wire() for key, each in found.items()}, sys.stdout, indent=1
        )
        print()
        return 0
    for key, quality in found.items():
        print(f"{key}  {_in_words(quality)}")
    if not found:
        print(f"no graph is kept in {options.store_dir}")
    return 0


def _in_words(quality: Quality | None) -> str:
    """Its tier and its verification."""
    if quality is None:
        return "unreadable (fusec cache verify says more)"
    checked = quality.verification
    tier = f"{quality.tier} (a better one follows)" if quality.unfinished else str(quality.tier)
    return f"{tier}, {'not verified: compiled here' if checked is None else checked.text()}"


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
    errors = total(samples, "fusec_cache_errors_total", "where")
    return {
        "hits": hits,
        "misses": misses,
        "hit_rate": sum(hits.values()) / asked if asked else None,
        "bytes": total(samples, "fusec_cache_bytes_total", "direction"),
        "errors": {where: count for where, count in errors.items() if count},
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
    if isinstance(value, dict) and value:
        return [
            row for key, inner in value.items() for row in _flat(inner, f"{name} {key}".strip())
        ]
    if isinstance(value, dict):
        return [(name, "none")]
    if "bytes" in name.split() and isinstance(value, int | float):
        return [(name, size(value))]
    if isinstance(value, float):
        return [(name, f"{value:.3f}" if "rate" in name else f"{value:.0f}")]
    return [(name, "none yet" if value is None else str(value))]
