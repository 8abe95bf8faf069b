"""`fusec serve`: a farm and a cache service on this machine, to develop against."""

import argparse
import tempfile
from pathlib import Path

from rich.console import Console

from cache.signing import public_path

_HELP = """\
Runs a gateway, workers and a cache service on loopback until you press Ctrl-C, and prints the
settings for clients. For one person on one machine: no tokens. Artifacts are signed with a key
that is made on the first run.
"""
_EXAMPLES = """\
examples:
  fusec serve                                   Ray pool, store in ~/.cache/fusec-serve
  fusec serve --pool memory --port 8765         without Ray, on a fixed port
  fusec serve --store s3://bucket/prefix --s3-endpoint http://127.0.0.1:9000
      S3 credentials come from the usual AWS_* variables.
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "serve",
        help="run a farm on this machine to develop against",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pool", choices=("ray", "memory"), default="ray", help="default: ray")
    parser.add_argument(
        "--store",
        default="~/.cache/fusec-serve",
        metavar="STORE",
        help="a folder, memory: or s3://bucket/prefix (default: ~/.cache/fusec-serve)",
    )
    parser.add_argument("--s3-endpoint", metavar="URL", help="where S3 is not AWS")
    parser.add_argument(
        "--signing-key",
        type=Path,
        default=Path("~/.cache/fusec-serve.key"),
        metavar="FILE",
        help="the key that signs artifacts, made if it is absent (default: %(default)s)",
    )
    parser.add_argument("--port", type=int, default=8765, help="0 takes a free one (default: 8765)")
    parser.set_defaults(run=run)


def store_url(text: str) -> str:
    """A store as the service names it: a folder becomes a file:// address."""
    if text.startswith(("s3://", "file://", "memory:")):
        return text
    return f"file://{Path(text).expanduser().resolve()}"


def run(arguments: argparse.Namespace) -> int:
    """Serve until interrupted; the farm's exit code when it ends by itself."""
    from fusec.demo.farm_process import farm_process

    console = Console(highlight=False, soft_wrap=True)
    key = arguments.signing_key.expanduser()
    with tempfile.NamedTemporaryFile(prefix="fusec-serve-", suffix=".log") as log:
        console.print(f"starting the farm ({arguments.pool} pool), log in {log.name}")
        with farm_process(
            pool=arguments.pool,
            store=store_url(arguments.store),
            s3_endpoint=arguments.s3_endpoint,
            port=arguments.port,
            signing_key=key,
            log=Path(log.name),
        ) as farm:
            console.print(f"ready; status page at {farm.url}\n\n  export FUSEC_REMOTE={farm.url}")
            console.print(f"  export FUSEC_TRUSTED_KEYS={public_path(key)}\n")
            console.print('then  torch.compile(model, backend="fusec");  Ctrl-C ends it')
            try:
                return farm.wait()
            except KeyboardInterrupt:
                console.print("\nstopping")
                return 0
