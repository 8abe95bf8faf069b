"""Load and faults together, and the account of it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from cache.config import ServiceConfig
from cache.embedded import serve_in_thread
from fusec.remote.protocol import FarmJob
from loadtest.chaos.clients import Clients
from loadtest.chaos.cluster import Nodes, orphans
from loadtest.chaos.ledger import Ledger
from loadtest.servers import Server, free_port, wait_ready

FAULTS: Final = ("worker", "compiler", "node", "gateway")
_LOOK_S: Final = 0.02
_PATIENCE_S: Final = 60.0
_ORPHANS_S: Final = 60.0


@dataclass(slots=True)
class Account:
    """What happened. ``faults``: those that hit something, by kind; ``clients``: see `Clients`;
    ``published``: entries; ``twice``: keys that began to stand more than once, or whose bytes were
    not the same; ``orphans``: compilers that outlived their worker."""

    faults: Counter[str] = field(default_factory=Counter)
    clients: Counter[str] = field(default_factory=Counter)
    why: list[str] = field(default_factory=list)
    published: int = 0
    repeated: int = 0
    twice: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    orphans: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def broken(self) -> list[str]:
        """What should never be, in words; empty when all is well."""
        told = [f"{n} jobs {what}" for what, n in self.clients.items() if what.startswith("lost")]
        told += [f"{key} was published twice" for key in self.twice]
        told += [f"{key} is done and not in the store" for key in self.missing]
        told += [f"process {pid} outlived its worker" for pid in self.orphans]
        return told

    def lines(self) -> list[str]:
        """For people."""
        counts = ", ".join(f"{n} {what}" for what, n in sorted(self.clients.items()))
        faults = ", ".join(f"{n} {what}" for what, n in sorted(self.faults.items()))
        return [
            f"killed: {faults or 'nothing'}, in {self.seconds:.0f} s",
            f"jobs: {counts}",
            f"published: {self.published} entries, {len(self.twice)} twice",
            f"published again, the same bytes: {self.repeated}",
            f"left behind: {len(self.orphans)} processes",
        ]


class Gateway:
    """A gateway's process, on one port through all its lives."""

    def __init__(self, address: str, cache_url: str, port: int, log: Path) -> None:
        self._command = [
            sys.executable, "-m", "farm", "serve", "--pool", "ray", "--ray-address", address,
            "--cache-url", cache_url, "--port", str(port),
        ]  # fmt: skip
        self._log = log
        self._url = f"http://127.0.0.1:{port}"
        self.start()

    def start(self) -> None:
        """Raises RuntimeError if it does not become ready."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_ready(Server(self._url, self.process))

    def kill(self) -> None:
        """SIGKILL: it says goodbye to nobody."""
        self.process.kill()
        self.process.wait()


def storm(
    nodes: Nodes,
    address: str,
    folder: Path,
    jobs: Sequence[FarmJob],
    faults: Sequence[str],
    *,
    threads: int = 8,
    seconds: float = 300.0,
    say: Callable[[str], None] = print,
) -> Account:
    """Have ``jobs`` done while ``faults`` happen one after the other, spread over the jobs.

    seconds: bound for all of it; what is not done by then is lost.
    """
    account, ledger = Account(), Ledger()
    began = time.monotonic()
    with ExitStack() as stack:
        port = free_port()
        service = stack.enter_context(
            serve_in_thread(
                ServiceConfig(port=0, farm_url=f"http://127.0.0.1:{port}"), store=ledger
            )
        )
        gateway = Gateway(address, service.url, port, folder / "gateway.log")
        stack.callback(gateway.kill)
        clients = Clients(service.url, jobs, threads=threads, seconds=seconds)
        for number, fault in enumerate(faults, 1):
            # In the first half: what is killed must be missed by somebody.
            _await(partial(_some_ended, clients, len(jobs) * number // (2 * len(faults))))
            if clients.ended == len(jobs):
                break
            say(f"{clients.ended} of {len(jobs)} jobs are over: kill a {fault}")
            if _strike(fault, nodes, gateway, clients):
                account.faults[fault] += 1
        clients.wait()
        account.clients, account.why = clients.counts, clients.why
        _settle(account, ledger, jobs)
    account.seconds = time.monotonic() - began
    return account


def _strike(fault: str, nodes: Nodes, gateway: Gateway, clients: Clients) -> bool:
    """Let a fault happen; False if there was nothing to hit before the jobs were over."""

    def until_hit(kill: Callable[[], bool]) -> bool:
        hit = False

        def strike() -> bool:
            nonlocal hit
            hit = hit or kill()
            return hit or clients.ended == len(clients.jobs)

        _await(strike)
        return hit

    match fault:
        case "worker":
            return until_hit(nodes.kill_worker)
        case "compiler":
            return until_hit(nodes.kill_compiler)
        case "node":
            nodes.kill()
            nodes.add()
            return True
        case "gateway":
            gateway.kill()
            gateway.start()
            return True
    raise ValueError(f"no fault {fault!r}; known are {', '.join(FAULTS)}")


def _some_ended(clients: Clients, number: int) -> bool:
    return clients.ended >= number


def _settle(account: Account, ledger: Ledger, jobs: Sequence[FarmJob]) -> None:
    """Wait for what ends by itself, and write the account of what was published."""
    deadline = time.monotonic() + _ORPHANS_S
    while (left := orphans()) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    account.orphans = left
    account.published = len(ledger.created)
    account.repeated = sum(ledger.repeated.values())
    account.twice = sorted(k for k, n in ledger.created.items() if n > 1) + sorted(ledger.replaced)
    if not any(what.startswith("failed") for what in account.clients):
        keys = [f"graph/{job.fingerprint}" for job in jobs]
        account.missing = [key for key in keys if key not in ledger.created]


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
