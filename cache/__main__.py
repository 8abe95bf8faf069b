"""`python -m cache`: run the cache service, collect its store, make a token for it, or check it."""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cache import gc
from cache.auth import ROLES, Grant, hash_token
from cache.config import ENV_PREFIX, ServiceConfig
from cache.counters import Counters
from cache.errors import CacheError, ConfigError
from cache.gc import FENCE_S
from cache.open_store import collected_part, namespaces, open_store
from cache.settings import add_flags
from cache.tls import ClientTls

_SERVE = """\
examples:
  python -m cache serve
        try it: artifacts in memory, this machine only
  python -m cache serve --store file:///var/cache/fusec
        keep artifacts on this disk
  python -m cache serve --store s3://bucket/fusec --disk /var/cache/fusec --host 0.0.0.0
        a cluster's service (needs tokens)

Every flag is also an environment variable: --store is FUSEC_CACHE_STORE. Flags win. S3 credentials
come from the usual places (AWS_ACCESS_KEY_ID, profile, instance role).
Clients find the service by FUSEC_REMOTE=http://host:port.
"""


_GC = """\
examples:
  python -m cache gc-once --store s3://bucket/fusec --gc-max-age-s 2592000 --dry-run
        what has not been used for 30 days
  python -m cache gc-once --store file:///var/cache/fusec --gc-max-bytes 100000000000

Safe beside services and farms that use the same store. A service can do the same on a schedule
(--gc-every-s). With S3 it takes ten minutes: blobs are announced before they are removed.
"""

_CHECK = """\
examples:
  python -m cache check http://cache:8700 --token-file /etc/fusec/write-token
        does it keep what it is given? Needs the role write

Puts 64 KiB of random bytes and gets them back, then writes a record and changes it under a
condition, on which leases of the farm and better artifacts rest: not every server that speaks S3
decides If-Match rightly. The collector removes both.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status: 2 for wrong settings."""
    arguments = vars(_parser().parse_args(argv))
    command = arguments.pop("command")
    if command == "token":
        return _token(arguments["role"], arguments["namespace"])
    if command == "check":
        return _check(**arguments)
    dry_run, fence_s = arguments.pop("dry_run", False), arguments.pop("fence_s", FENCE_S)
    flags = {name: str(value) for name, value in arguments.items() if value is not None}
    try:
        config = ServiceConfig.load(os.environ, flags)
        return _gc(config, dry_run, fence_s) if command == "gc-once" else _serve(config)
    except CacheError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cache", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser(
        "serve",
        help="run the cache service",
        epilog=_SERVE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(serve, ServiceConfig, ENV_PREFIX)
    once = commands.add_parser(
        "gc-once",
        help="collect once: remove what the gc_* settings let go, and blobs without an entry",
        epilog=_GC,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(once, ServiceConfig, ENV_PREFIX)
    once.add_argument("--dry-run", action="store_true", help="print the plan, remove nothing")
    once.add_argument(
        "--fence-s",
        type=float,
        default=FENCE_S,
        help="seconds between announcing and removing blobs in S3; 0 only where nobody writes"
        " (default %(default)s)",
    )
    token = commands.add_parser("token", help="make a token and the setting that grants it a role")
    token.add_argument("--role", choices=ROLES, default="read")
    token.add_argument("--namespace", default="", help="where it counts; * is everywhere")
    check = commands.add_parser(
        "check",
        help="put a blob and a record through a service and get them back",
        epilog=_CHECK,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("url", help="address of the service")
    check.add_argument(
        "--token-file", type=Path, metavar="FILE", help="a token with the role write"
    )
    check.add_argument("--namespace", default="", help="the namespace to check")
    check.add_argument("--ca", type=Path, metavar="FILE", help="authority of its certificate, PEM")
    check.add_argument(
        "--timeout-s",
        type=float,
        default=20.0,
        metavar="X",
        help="seconds that it may take in all (default %(default)s)",
    )
    return parser


def _token(role: str, namespace: str) -> int:
    token = secrets.token_urlsafe(32)
    grant = Grant(role, hash_token(token), namespace)
    setting = ":".join(filter(None, (grant.role, grant.sha256, grant.namespace)))
    print(f"token, for whoever is to hold it (shown once):  {token}")
    print(f"add to FUSEC_CACHE_TOKENS of the service:        {setting}")
    return 0


def _check(
    url: str, token_file: Path | None, namespace: str, ca: Path | None, timeout_s: float
) -> int:
    # With what a client needs only: `--help` works without it.
    from cache.breaker import DelayBudget
    from cache.check import compare_and_swap, round_trip
    from cache.client import CacheClient

    try:
        token = None if token_file is None else token_file.read_text(encoding="ascii").strip()
        budget = DelayBudget(timeout_s)
        tls = ClientTls(ca)
        with CacheClient(url, token=token, namespace=namespace, tls=tls, budget=budget) as client:
            made = round_trip(client)
            print(
                f"{url}: {made.size} bytes put in {made.put_s * 1e3:.1f} ms, "
                f"got back in {made.get_s * 1e3:.1f} ms"
            )
            compare_and_swap(client)
    except (OSError, UnicodeError) as error:
        print(f"error: the token cannot be read: {error}", file=sys.stderr)
        return 2
    except CacheError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("records change under their condition alone: leases and better artifacts work")
    return 0


def _gc(config: ServiceConfig, dry_run: bool, fence_s: float) -> int:
    counters = Counters()
    default = open_store(config, counters)
    for namespace in ["", *namespaces(default)]:
        store = open_store(config, counters, namespace) if namespace else default
        part = collected_part(store)
        if part is None:
            raise ConfigError("a store in memory is not collected", hint="name one with --store")
        if dry_run:
            made = gc.plan(part, config.policy(), time.time())
        else:
            made = gc.collect(part, config.policy(), fence_s=fence_s)
        print(f"namespace {namespace or '(default)'}")
        for line in made.lines():
            print(f"  {line}")
    return 0


def _serve(config: ServiceConfig) -> int:
    # With the extra only: `token` and `--help` work without it.
    import uvicorn

    from cache.embedded import address_of, listen
    from cache.http_server import server_config
    from cache.service import create_app

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # else a line a request to the farm
    server = uvicorn.Server(
        server_config(
            create_app(config), config.tls(), drain_s=30, lifespan="on", log_level="warning"
        )
    )
    with listen(config.host, config.port) as listener:
        address = address_of(config.host, listener, config.tls().scheme)
        print(f"fusec cache: {config.store} at {address}", file=sys.stderr, flush=True)
        server.run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())
