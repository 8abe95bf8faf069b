"""`fusec cache` and `fusec gc`: look after a store on this machine or in a bucket."""

import argparse
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO, Literal
from urllib.parse import quote

from cache import archive, gc, revocation
from cache.config import ServiceConfig
from cache.counters import Counters
from cache.errors import ConfigError
from cache.gc import MIN_GRACE_S, Collectable, Policy
from cache.open_store import collected_part, open_store
from cache.resign import resign
from cache.signing import SigningKey
from cache.trust import OWN_STORE, Trust
from fusec.errors import OptionsError
from fusec.options import Options
from fusec.remote.resolve import trust_of

_HELP = """\
verify reads every byte of a store. export writes its artifacts to one tar file, import puts them
into another store: for clusters that no network joins. Import takes what the keys in
FUSEC_TRUSTED_KEYS have signed; FUSEC_UNSIGNED=1 takes all, for a file that you made yourself.
resign signs what those keys have signed with a new key, so that an old one can be retired at once.
"""
_EXAMPLES = """\
examples:
  fusec cache verify                                         the local store
  fusec cache export artifacts.tar --store file:///var/cache/fusec
  fusec cache import artifacts.tar --store s3://bucket/fusec
  fusec cache resign --key new.key --store s3://bucket/fusec

The default store is FUSEC_CACHE_DIR. S3 credentials come from the usual AWS_* variables.
"""


_GC_HELP = """\
Removes artifacts by age and use, and what no artifact names any more. Safe beside jobs that use the
store. A local store keeps itself under FUSEC_CACHE_BYTES: this is for more than that.
"""
_GC_EXAMPLES = """\
examples:
  fusec gc --max-bytes 10000000000 --dry-run    what would go
  fusec gc --max-age-days 30                    what nobody has used for a month
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommands."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser(
        "cache",
        help="verify, export, import or sign a store anew",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=raw,
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    for name, text, run in (
        ("verify", "read every byte; exit code 1 when something is damaged", _verify),
        ("export", "write all artifacts to a tar file (- is standard output)", _export),
        ("import", "put the artifacts of a tar file into a store (- is standard input)", _import),
    ):
        action = actions.add_parser(name, help=text)
        if name != "verify":
            action.add_argument("file")
        _store_flags(action)
        action.set_defaults(run=run)
    again = actions.add_parser("resign", help="sign what is trusted with a new key")
    again.add_argument("--key", type=Path, required=True, metavar="FILE", help="the new key")
    _store_flags(again)
    again.set_defaults(run=_resign)
    collect = commands.add_parser(
        "gc",
        help="remove what is old or too much from the local store",
        description=_GC_HELP,
        epilog=_GC_EXAMPLES,
        formatter_class=raw,
    )
    collect.add_argument(
        "--max-bytes", type=int, metavar="N", help="what was used longest ago goes above this"
    )
    collect.add_argument(
        "--max-age-days", type=float, metavar="N", help="what was not used for so long goes"
    )
    collect.add_argument("--dry-run", action="store_true", help="print the plan, remove nothing")
    _store_flags(collect)
    collect.set_defaults(run=_gc)


def _store_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", help="file:///dir or s3://bucket/prefix, if not the local store")
    parser.add_argument("--s3-endpoint", default="", help="an S3-compatible server, if not AWS")
    parser.add_argument("--namespace", help="a namespace of the store")


def _open(arguments: argparse.Namespace, options: Options) -> Collectable:
    address = arguments.store or f"file://{quote(str(options.cache_dir.absolute()))}"
    config = ServiceConfig(store=address, s3_endpoint=arguments.s3_endpoint)
    namespace = options.namespace if arguments.namespace is None else arguments.namespace
    store = collected_part(open_store(config, Counters(), namespace))
    if store is None:
        raise ConfigError("a store in memory ends with its process", hint="name another: --store")
    return store


def _verify(arguments: argparse.Namespace) -> int:
    options = Options.from_env()
    found = archive.audit(_open(arguments, options))
    for line in found.damaged:
        print(line)
    print(f"{found.entries} entries and {found.blobs} blobs, {len(found.damaged)} damaged")
    return 1 if found.damaged else 0


def _export(arguments: argparse.Namespace) -> int:
    store = _open(arguments, Options.from_env())
    with ExitStack() as stack:
        out: IO[bytes] = sys.stdout.buffer
        if arguments.file != "-":
            out = stack.enter_context(_open_file(arguments.file, "wb"))
        moved = archive.write(store, out)
    return _told(moved)


def _import(arguments: argparse.Namespace) -> int:
    options = Options.from_env()
    trust = _trust(arguments, options)
    if not trust.keys and not trust.unsigned:
        raise OptionsError(
            "no keys to verify the archive with",
            hint="set FUSEC_TRUSTED_KEYS, or FUSEC_UNSIGNED=1 for a file that you made yourself",
        )
    store = _open(arguments, options)
    with ExitStack() as stack:
        source: IO[bytes] = sys.stdin.buffer
        if arguments.file != "-":
            source = stack.enter_context(_open_file(arguments.file, "rb"))
        moved = archive.read(store, source, trust if trust.keys else OWN_STORE)
    return _told(moved)


def _resign(arguments: argparse.Namespace) -> int:
    options = Options.from_env()
    trust = _trust(arguments, options)
    if not trust.keys:
        raise OptionsError(
            "no keys to verify the store with",
            hint="set FUSEC_TRUSTED_KEYS to the file of the keys that have signed until now",
        )
    key = SigningKey.read(arguments.key)
    believed = replace(trust, keys=(*trust.keys, key.public), unsigned=False)
    store = _open(arguments, options)
    made = resign(store, replace(believed, revoked=revocation.read(store)), key)
    for line in made.left_out:
        print(f"left as it is: {line}", file=sys.stderr)
    print(f"{made.signed} entries signed, {made.already} were", file=sys.stderr)
    return 1 if made.left_out else 0


def _trust(arguments: argparse.Namespace, options: Options) -> Trust:
    """Whom the user trusts, in the namespace of the store."""
    trust = trust_of(options)
    return trust if arguments.namespace is None else replace(trust, namespace=arguments.namespace)


def _open_file(name: str, mode: Literal["rb", "wb"]) -> IO[bytes]:
    try:
        return Path(name).open(mode)
    except OSError as error:
        raise OptionsError(f"cannot open it: {error.strerror}", where=name) from error


def _told(moved: archive.Moved) -> int:
    for line in moved.left_out:
        print(f"left out: {line}", file=sys.stderr)
    print(f"{moved.entries} entries, {moved.blobs} blobs", file=sys.stderr)
    return 1 if moved.left_out else 0


def _gc(arguments: argparse.Namespace) -> int:
    age = arguments.max_age_days
    policy = Policy(
        max_age_s=None if age is None else age * 86_400.0,
        max_bytes=arguments.max_bytes,
        # The writers of a local store are done within seconds.
        grace_s=MIN_GRACE_S,
    )
    store = _open(arguments, Options.from_env())
    made = gc.plan(store, policy, time.time()) if arguments.dry_run else gc.collect(store, policy)
    for line in made.lines():
        print(line)
    return 0
