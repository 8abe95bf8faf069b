"""`fusec farm`: what the compile farm does, and the few things to tell it."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from contextlib import closing

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from cache.client import CacheClient
from cache.errors import CacheError
from cache.protocol import Value
from fusec.errors import OptionsError, RemoteError
from fusec.options import Options
from fusec.remote.farm_status import (
    CANCEL_PATH,
    DRAIN_PATH,
    RETUNE_PATH,
    STATUS_PATH,
    UNDRAIN_PATH,
    FarmStatus,
    Retuned,
    RetuneState,
)
from fusec.remote.farm_view import Listed, summary, tables
from fusec.remote.protocol import Refusal
from fusec.remote.resolve import open_client

_HELP = """\
What the compile farm behind FUSEC_REMOTE does, and the few things to tell it. All of it takes a
token with the role admin (FUSEC_TOKEN_FILE). An admin of the default namespace looks after the
whole farm; with FUSEC_NAMESPACE set, one sees and cancels that namespace's jobs and has its graphs
tuned.
"""
_EXAMPLES = """\
examples:
  fusec farm status              queue, workers, jobs in work, recent compiles, slowest graphs
  fusec farm status --watch      the same, kept up to date until Ctrl-C
  fusec farm status --json | jq '.queue[] | select(.oldest_s > 60)'
  fusec farm cancel 5f0c1a2b     give up the job whose key begins so; its clients compile themselves
  fusec farm retune 5f0c1a2b…    tune a graph, with --force once more; all 64 digits
  fusec farm drain               begin nothing new (before an upgrade); jobs in work end
  fusec farm undrain             go on

A drain is that of all gateways, also of those that start later, until `undrain`; all else is about
the gateway that answers.
The same as a page for a browser: /farm at the cache service, with the token as the password.
"""
_STATUS = """\
queue    jobs that wait, by tenant (a namespace) and priority: a client that waits goes before a
         prewarm, and that before what the farm does by itself. Tenants take turns.
tasks    pieces of jobs (a plan, some kernels) that wait for a worker, by class of worker
left     from the mean of each stage; empty where nothing is measured or it takes longer than that
poisoned graphs whose failure is known: who asks gets the reason at once and compiles itself
"""
_RETUNE = """\
Have a graph tuned that was published untuned, behind all other work: a GPU times the variants of
its kernels, and the artifact with the winners, once verified, takes the place of the untuned one.
The farm does this by itself, also after the restart of a gateway. It gives up where tuning fails
for a lasting reason (fusec_farm_tuned_total, outcome "failed"): this tries it again.

What is tuned already is refused, unless --force is given. Then its kernels are timed anew, each in
one race with what was chosen for it, and only what is faster there takes its place: nothing becomes
worse. Clients that have the artifact keep theirs; others get the new one. What has nothing to tune
is always refused.

Of several gateways the one that answers does it. `fusec farm status --json` has whole keys.
"""
_REQUEST_S = 10.0
_MOST = 12  # rows of a table: what is left out is counted


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser(
        "farm",
        help="what the farm does; drain it, cancel a job, tune a graph",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=raw,
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    status = actions.add_parser(
        "status", help="queue, workers, jobs, hit rates", description=_STATUS, formatter_class=raw
    )
    status.add_argument("--json", action="store_true", help="everything, for a program")
    status.add_argument("--watch", action="store_true", help="again and again, until Ctrl-C")
    status.add_argument("--every", type=float, default=2.0, metavar="S", help="seconds (2)")
    status.set_defaults(run=_status)
    for name, text, run in (
        ("drain", "begin nothing new; what is in work ends", _drain),
        ("undrain", "take work again", _undrain),
        ("cancel", "give up a job; its clients compile themselves", _cancel),
    ):
        action = actions.add_parser(name, help=text, description=text.capitalize() + ".")
        if name == "cancel":
            action.add_argument("key", help="the graph's key or its first 8 digits or more")
        action.set_defaults(run=run)
    retune = actions.add_parser(
        "retune",
        help="tune a graph whose tuning failed, or once more",
        description=_RETUNE,
        formatter_class=raw,
    )
    retune.add_argument("key", help="the graph's whole key, with or without graph/")
    retune.add_argument(
        "--force", action="store_true", help="also one that is tuned: time its kernels anew"
    )
    retune.set_defaults(run=_retune)
    for action in actions.choices.values():
        action.add_argument("--remote", metavar="URL", help="the cache service; FUSEC_REMOTE")


def _status(arguments: argparse.Namespace) -> int:
    with closing(_client(arguments)) as client:
        if arguments.json:
            _watch(arguments, lambda: _print_json(_read(client)))
            return 0
        console = Console()
        if not arguments.watch:
            console.print(show(_read(client)))
        elif console.is_terminal:
            _live(console, client, arguments.every)
        else:
            _watch(arguments, lambda: console.print(show(_read(client)), "", sep="\n"))
    return 0


def _watch(arguments: argparse.Namespace, once: Callable[[], None]) -> None:
    """Once, or until it is interrupted."""
    once()
    while arguments.watch:
        sys.stdout.flush()
        time.sleep(max(0.1, arguments.every))
        once()


def _live(console: Console, client: CacheClient, every: float) -> None:
    from rich.live import Live

    with Live(show(_read(client)), console=console, auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(max(0.1, every))
            live.update(show(_read(client)), refresh=True)


def show(status: FarmStatus) -> RenderableType:
    """Everything of a status that fits a screen; without colours where there are none."""
    parts: list[RenderableType] = []
    if status.draining:
        parts.append(Text("DRAINING: nothing new is begun", style="bold yellow"))
    parts += map(Text, summary(status))
    for listed in tables(status):
        if listed.rows:
            parts += [Text(), Text(listed.title, style="bold"), _table(listed)]
    return Group(*parts)


def _table(listed: Listed) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in listed.columns:
        table.add_column(name, justify="right" if name in listed.numbers else "left")
    for row in listed.rows[:_MOST]:
        table.add_row(*map(Text, row))
    left_out = len(listed.rows) - _MOST
    return Group(table, Text(f"… and {left_out} more", style="dim")) if left_out > 0 else table


def _print_json(status: FarmStatus) -> None:
    json.dump(status.to_wire(), sys.stdout)
    print()


def _drain(arguments: argparse.Namespace) -> int:
    _post(arguments, DRAIN_PATH, {})
    print("the farm begins nothing new; `fusec farm status` shows what is still in work")
    return 0


def _undrain(arguments: argparse.Namespace) -> int:
    _post(arguments, UNDRAIN_PATH, {})
    print("the farm takes work again")
    return 0


def _cancel(arguments: argparse.Namespace) -> int:
    key = _key(arguments)
    reply = _post(arguments, CANCEL_PATH, {"fingerprint": key})
    print("cancelled", reply.get("cancelled", key))
    return 0


def _retune(arguments: argparse.Namespace) -> int:
    body: dict[str, Value] = {"fingerprint": _key(arguments), "force": arguments.force}
    made = Retuned.from_wire(_post(arguments, RETUNE_PATH, body))
    said = {
        RetuneState.BEGUN: f"is tuned on a GPU of {made.isa}, behind all other work",
        RetuneState.KNOWN: "waits for its turn already, or is being tuned",
        RetuneState.WAITS: f"waits: no worker has a GPU of {made.isa}; tuned when one joins",
    }
    print(made.fingerprint, said[RetuneState(made.state)])
    return 0


def _key(arguments: argparse.Namespace) -> str:
    """The digits of a graph's key as they were given."""
    return str(arguments.key).removeprefix("graph/").lower()


def _read(client: CacheClient) -> FarmStatus:
    return FarmStatus.from_wire(_ask(client, "GET", STATUS_PATH))


def _post(arguments: argparse.Namespace, path: str, body: Value) -> dict[str, Value]:
    with closing(_client(arguments)) as client:
        return _ask(client, "POST", path, body)


def _client(arguments: argparse.Namespace) -> CacheClient:
    options = Options.from_env(overrides={"remote": arguments.remote} if arguments.remote else {})
    if not options.remote:
        raise OptionsError(
            "there is no farm without a cache service", hint="set FUSEC_REMOTE or give --remote"
        )
    return open_client(options, options.remote)


def _ask(client: CacheClient, method: str, path: str, body: Value = None) -> dict[str, Value]:
    """The answer of the farm. Raises RemoteError with what it says is wrong."""
    try:
        status, value = client.request(method, path, body=body, timeout=_REQUEST_S)
    except CacheError as error:
        raise RemoteError(error.message, where=path, hint="fusec doctor says more") from error
    if status == 200 and isinstance(value, dict):
        return value
    refusal = Refusal.from_wire(value)
    raise RemoteError(
        f"status {status}: {refusal.message or 'no reason is given'}",
        where=path,
        hint=refusal.hint or _HINTS.get(status),
    )


_HINTS = {
    401: "set FUSEC_TOKEN_FILE to a token with the role admin",
    403: "a token with the role admin is needed",
    404: "is the cache service of this release?",
    503: "is a farm configured at the cache service, and is it running?",
}
