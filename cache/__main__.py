"""`python -m cache`: run the cache service, or make a token for it."""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import fields

from cache.auth import ROLES, Grant, hash_token
from cache.config import ENV_PREFIX, ServiceConfig
from cache.errors import CacheError

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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status: 2 for wrong settings."""
    arguments = vars(_parser().parse_args(argv))
    command = arguments.pop("command")
    if command == "token":
        return _token(arguments["role"], arguments["namespace"])
    flags = {name: str(value) for name, value in arguments.items() if value is not None}
    try:
        return _serve(ServiceConfig.load(os.environ, flags))
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
    for item in fields(ServiceConfig):
        flag = f"--{item.name.replace('_', '-')}"
        text = str(item.metadata["help"])
        if isinstance(item.default, bool):
            serve.add_argument(flag, action="store_const", const="1", help=text)
        elif item.name in ("tokens", "farm_token"):
            # Secrets on a command line are seen by every user of the machine.
            text = f"{text}; environment {ENV_PREFIX}{item.name.upper()} only"
            serve.description = f"{serve.description or ''}{item.name}: {text}\n"
        else:
            shown = f" (default {item.default})" if item.default != "" else ""
            serve.add_argument(flag, metavar="X", help=text + shown)
    token = commands.add_parser("token", help="make a token and the setting that grants it a role")
    token.add_argument("--role", choices=ROLES, default="read")
    token.add_argument("--namespace", default="", help="where it counts; * is everywhere")
    return parser


def _token(role: str, namespace: str) -> int:
    token = secrets.token_urlsafe(32)
    grant = Grant(role, hash_token(token), namespace)
    setting = ":".join(filter(None, (grant.role, grant.sha256, grant.namespace)))
    print(f"token, for whoever is to hold it (shown once):  {token}")
    print(f"add to FUSEC_CACHE_TOKENS of the service:        {setting}")
    return 0


def _serve(config: ServiceConfig) -> int:
    # With the extra only: `token` and `--help` work without it.
    import uvicorn

    from cache.embedded import address_of, listen
    from cache.service import create_app

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(config),
            log_level="warning",
            access_log=False,
            ws="none",
            lifespan="on",
            timeout_graceful_shutdown=30,
            **config.tls().uvicorn(),
        )
    )
    with listen(config.host, config.port) as listener:
        address = address_of(config.host, listener, config.tls().scheme)
        print(f"fusec cache: {config.store} at {address}", file=sys.stderr, flush=True)
        server.run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())
