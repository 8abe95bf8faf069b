"""`fusec why-miss`: for a key that was not found, the nearest earlier key and what differs."""

import argparse
import json
import sys
import time

from fusec.errors import OptionsError
from fusec.options import Options
from fusec.remote import journal
from fusec.remote.journal import Explained

_HELP = """\
A key is a list of named entries. For every miss of the last job here, this names the key before it
that is most like it, and the entries that differ.
"""
_EXAMPLES = """\
examples:
  fusec why-miss                 the misses of the last job that had any
  fusec why-miss graph/3f9a      one key; the first digits do
"""
# What usually lies behind an entry that differs; the names are those of the fingerprints.
_MEANING = {
    "graph": "the model, a shape, a dtype or a constant in it",
    "target": "another kind of machine: its instruction set, or its GPU",
    "toolchain": "another release of fusec's compiler, or of torch",
    "options": "an option that changes results: " + ", ".join(Options().key_entries()),
    "inputs": "a shape, stride, dtype or device of an input",
    "aliasing": "which inputs share memory",
    "symbols": "the range of a size that varies, or a guard on one",
    "state": "a global setting of torch: grad mode, autocast, deterministic algorithms",
    "functorch": "a setting of AOTAutograd or of dynamic shapes",
    "decompositions": "another release of fusec or torch",
    "capture": "another release of fusec's capture, or of torch",
}


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "why-miss",
        help="which entry of a key made the cache miss",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("key", nargs="?", help="graph/… or front/…, or how it begins")
    parser.add_argument("--last", type=int, default=20, help="most misses shown (default 20)")
    parser.add_argument("--json", action="store_true", help="for a program")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Explain; 1 when there is no such key."""
    options = Options.from_env()
    folder = options.store_dir
    asked = journal.read(folder)
    if arguments.key is None:
        chosen = journal.last_misses(asked, arguments.last)
    else:
        chosen = [each for each in asked if each.key.startswith(arguments.key)][-1:]
        if not chosen:
            raise OptionsError(
                f"no key {arguments.key} was asked for here", where=str(folder / journal.FILE)
            )
    explained = [journal.explain(asked, each) for each in chosen]
    if arguments.json:
        json.dump([_plain(each) for each in explained], sys.stdout, indent=1)
        print()
        return 0
    for each in explained:
        print("\n".join(_lines(each)))
    if not explained:
        print("no miss is noted here")
    return 0


def _lines(explained: Explained) -> list[str]:
    missed, nearest = explained.missed, explained.nearest
    state = "was found" if missed.hit else "was not found"
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(missed.at))
    lines = [f"{missed.key} ({missed.label}) {state} at {at}"]
    if nearest is None:
        return [*lines, "  no key of its kind was asked for here before"]
    lines.append(f"  nearest before: {nearest.key} ({nearest.label})")
    width = max(len(name) for name in explained.differs)
    return lines + [
        f"  differs: {name:{width}}  {_MEANING.get(name, '')}".rstrip()
        for name in explained.differs
    ]


def _plain(explained: Explained) -> dict[str, object]:
    return {
        "key": explained.missed.key,
        "label": explained.missed.label,
        "hit": explained.missed.hit,
        "nearest": None if explained.nearest is None else explained.nearest.key,
        "differs": list(explained.differs),
    }
