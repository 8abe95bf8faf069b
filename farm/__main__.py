"""`python -m farm`: run a farm's gateway, or a whole farm on this machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence

from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.errors import CacheError, ConfigError
from cache.settings import add_flags
from cache.tracing import SETTING_HELP
from farm.config import ENV_PREFIX, POOLS, FarmConfig

WRITE_PATIENCE_S = 60.0

_SERVE = """\
examples:
  python -m farm serve --cache-url http://127.0.0.1:8700
        a gateway for the cache service on this machine, with a Ray of its own
  python -m farm serve --cache-url http://cache:8700 --ray-address auto --host 0.0.0.0
        a cluster's gateway (needs FUSEC_FARM_TOKEN and FUSEC_FARM_CACHE_TOKEN)

Start the cache service with --farm-url http://this-host:8701, so that misses come here.
Every flag is also an environment variable: --pool is FUSEC_FARM_POOL. Flags win.
"""

_EMBEDDED = """\
Runs a cache service, a gateway and a pool in one process, on loopback, for development. Prints one
line of JSON when it is ready and serves until SIGTERM, SIGINT or the end of its standard input.

example:
  python -m farm embedded --pool memory --store file:///tmp/fusec-store
"""

_RESOURCES = """\
A farm leases GPUs by class, so that what was timed on one model is not taken for another. Start
each node of the cluster with:

  ray start --address=HEAD:6379 --resources="$(python -m farm resources)"

A node with no NVIDIA GPU prints {}: it compiles, for every target.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status: 2 for wrong settings."""
    arguments = vars(_parser().parse_args(argv))
    command = arguments.pop("command")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        if command == "resources":
            return _resources()
        if command == "serve":
            flags = {name: str(value) for name, value in arguments.items() if value is not None}
            return _serve(FarmConfig.load(os.environ, flags))
        return _embedded(arguments)
    except CacheError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m farm", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    raw = argparse.RawDescriptionHelpFormatter
    serve = commands.add_parser(
        "serve", help="run a farm's gateway", epilog=_SERVE, formatter_class=raw
    )
    add_flags(serve, FarmConfig, ENV_PREFIX)
    embedded = commands.add_parser(
        "embedded", help="run a whole farm on this machine", epilog=_EMBEDDED, formatter_class=raw
    )
    embedded.add_argument("--pool", choices=POOLS, default="ray", help="what runs the tasks")
    embedded.add_argument("--store", default="memory:", help="memory:, file:///dir or s3://b/p")
    embedded.add_argument("--s3-endpoint", default="", help="an S3-compatible server, if not AWS")
    embedded.add_argument("--host", default="127.0.0.1", help="interface of the cache service")
    embedded.add_argument("--port", type=int, default=0, help="its port; 0 takes a free one")
    embedded.add_argument(
        "--signing-key", default="", metavar="FILE", help="the key that signs; made if it is absent"
    )
    embedded.add_argument("--tracing", default="", help=SETTING_HELP)
    embedded.add_argument("--workers", type=int, default=0, help="tasks at once; 0 is one a core")
    commands.add_parser(
        "resources",
        help="name this node's GPUs for Ray, as JSON",
        epilog=_RESOURCES,
        formatter_class=raw,
    )
    return parser


def _resources() -> int:
    from farm.devices import detected, ray_resources

    classes = [needs for needs, ordinals in detected().items() for _ in ordinals]
    print(json.dumps(ray_resources(classes)))
    return 0


def _serve(config: FarmConfig) -> int:
    import uvicorn

    from cache.http_server import server_config
    from farm.open_farm import open_app, open_pool

    if not config.cache_url:
        raise ConfigError(
            "cache_url is not set", hint="give the cache service's address: --cache-url"
        )
    stores: list[CacheClient] = []

    def open_store(namespace: str) -> CacheClient:
        store = CacheClient(
            config.cache_url,
            token=config.cache_token or None,
            namespace=namespace,
            tls=config.cache_tls(),
            # A writer would rather wait than lose what it has compiled.
            budget=DelayBudget(WRITE_PATIENCE_S),
        )
        stores.append(store)
        return store

    if not config.signing_key:
        print(
            "warning: without FUSEC_FARM_SIGNING_KEY artifacts are unsigned, and clients pass them "
            "over unless they are told not to",
            file=sys.stderr,
        )
    app_store = open_store("")
    pool = open_pool(config)
    try:
        print(
            f"fusec farm: {pool.kind} pool, {pool.workers} workers, "
            f"at {config.tls().scheme}://{config.host}:{config.port}",
            file=sys.stderr,
        )
        server = uvicorn.Server(
            server_config(
                open_app(config, pool, app_store, open_namespace=open_store),
                config.tls(),
                drain_s=30,
                host=config.host,
                port=config.port,
                log_level="warning",
            )
        )
        # Once it has drained, uvicorn raises again the signal that told it to stop.
        with contextlib.suppress(KeyboardInterrupt):
            server.run()
    finally:
        pool.close()
        for store in stores:
            store.close()
    return 0 if server.started else 1


def _embedded(arguments: dict[str, object]) -> int:
    from farm.embedded import embedded_farm

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with embedded_farm(**arguments) as farm:  # type: ignore[arg-type]
        # Ray installs handlers of its own when it starts.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        threading.Thread(target=_watch_parent, args=(stop,), daemon=True).start()
        ready = {
            "url": farm.url,
            "gateway_url": farm.gateway_url,
            "pool": arguments["pool"],
            "store": arguments["store"],
            "public_key": farm.public_key.text(),
        }
        print(json.dumps(ready), flush=True)
        stop.wait()
    return 0


def _watch_parent(stop: threading.Event) -> None:
    """Standard input ends when the process that started this one has died."""
    # Not sys.stdin: this thread would hold its lock while the interpreter ends, which aborts.
    while os.read(0, 4096):
        pass
    stop.set()


if __name__ == "__main__":
    sys.exit(main())
