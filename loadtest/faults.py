"""Scenarios in which the remote comes and goes, played by real clients behind a balancer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from loadtest.balancer import balancer
from loadtest.clients import Turn
from loadtest.loading import default_tenant, play
from loadtest.models import model
from loadtest.samples import RankTimes, Samples, percentile
from loadtest.scenario import Objective, Outcome, Scale, no_errors
from loadtest.servers import Stand, free_port, tenant_token

CLIENTS: Final = 3
MODELS: Final = 4
OUTAGE_S: Final = 4.0
RECOVER_S: Final = 30.0
PATIENCE_S: Final = 180.0  # until the clients have loaded what they need, and have started once


def flapping(stand: Stand, scale: Scale) -> Outcome:
    """The remote goes away and comes back, again and again: a job never sees an error, loses no
    more than its budget at a time, and uses the remote again once it is back."""
    first = _publish(stand, scale)
    away: list[tuple[float, float]] = []
    with balancer(stand.port) as front, _clients(stand, front.url) as clients:
        clients.wait(lambda turns: all(turns), PATIENCE_S)
        ends = time.monotonic() + scale.seconds
        while not away or time.monotonic() < ends:
            begun = time.time()
            front.direct(None)
            time.sleep(OUTAGE_S)
            front.direct(stand.port)
            away.append((begun, time.time()))
            time.sleep(OUTAGE_S)
        back = away[-1][1]
        clients.wait(lambda turns: all(_recovered(one, back) for one in turns), 3 * RECOVER_S)
        by_client = clients.end()
    turns = [turn for one in by_client for turn in one]
    local = [turn.seconds for turn in turns if turn.local]
    recovered = [min(_recovered(one, back), default=float("nan")) for one in by_client]
    return Outcome(
        "flapping",
        flapping.__doc__ or "",
        (
            no_errors(first),
            Objective("errors that reached a job", sum(1 for t in turns if t.error), 0),
            Objective("last client on the remote again after", max(recovered), RECOVER_S, "s"),
            Objective("longest start", max(t.seconds for t in turns), 30.0, "s"),
        ),
        {
            "starts": str(len(turns)),
            "of them with a compile here": str(len(local)),
            "times away": str(len(away)),
            "p50 of a start from the remote": _p50([t.seconds for t in turns if not t.local]),
            "p50 of one with a compile here": _p50(local),
        },
        {"clients": _as_samples(turns)},
        tuple(away),
    )


def rolling(stand: Stand, scale: Scale) -> Outcome:
    """The service's replicas are replaced one after another: no request fails, nothing is compiled
    a second time."""
    first = _publish(stand, scale)
    with balancer(stand.port) as front, _clients(stand, front.url) as clients:
        clients.wait(lambda turns: all(turns), PATIENCE_S)
        replaced = 0
        ends = time.monotonic() + scale.seconds
        while time.monotonic() < ends and replaced < 4:
            old, port = stand.service, free_port()
            stand.service, stand.port = stand.replica(port), port
            front.direct(port)
            old.stop()
            replaced += 1
            time.sleep(2.0)
        turns = [turn for one in clients.end() for turn in one]
    return Outcome(
        "rolling",
        rolling.__doc__ or "",
        (
            no_errors(first),
            Objective("errors that reached a job", sum(1 for t in turns if t.error), 0),
            Objective("graphs compiled by a client", sum(t.local for t in turns), 0),
        ),
        {"starts": str(len(turns)), "replicas replaced": str(replaced)},
        {"clients": _as_samples(turns)},
    )


def _publish(stand: Stand, scale: Scale) -> Samples:
    """Have the farm compile all that the clients start: what they miss later the remote has."""
    models = [model(number) for number in range(MODELS)]
    return play(stand, default_tenant(stand, scale, models, ranks=MODELS, each=True))


def _recovered(turns: list[Turn], back: float) -> list[float]:
    """How long after `back` starts began that the remote served."""
    return [turn.at - back for turn in turns if turn.remote and turn.at > back]


class _Clients:
    """Processes of `loadtest.clients`."""

    def __init__(self, stand: Stand, url: str) -> None:
        token = stand.folder / "rank.token"
        token.write_text(tenant_token(""))
        environ = {
            **{n: value for n, value in os.environ.items() if not n.startswith("FUSEC_")},
            "FUSEC_TOKEN_FILE": str(token),
            "FUSEC_TRUSTED_KEYS": str(stand.public_keys),
            "FUSEC_CACHE_DIR": str(stand.folder / "unused"),
        }
        self._files = [stand.folder / f"clients-{number}.turns" for number in range(CLIENTS)]
        self._stop = stand.folder / "clients.stop"
        self._children = [_start(url, path, self._stop, environ) for path in self._files]

    def wait(self, done: Callable[[list[list[Turn]]], bool], seconds: float) -> None:
        """Return once `done` holds for what each client has done so far, or after so long.

        Raises RuntimeError if a client ends meanwhile.
        """
        give_up = time.monotonic() + seconds
        while not done(self._turns()) and time.monotonic() < give_up:
            for child, path in zip(self._children, self._files):
                if child.poll() is not None:
                    log = path.with_suffix(".log").read_text()[-2000:]
                    raise RuntimeError(f"a client process failed: {log}")
            time.sleep(0.1)

    def end(self) -> list[list[Turn]]:
        """Every start of every client, once all have ended."""
        self._stop.touch()
        for child in self._children:
            child.wait(PATIENCE_S)
        return self._turns()

    def kill(self) -> None:
        for child in self._children:
            child.kill()
            child.wait()

    def _turns(self) -> list[list[Turn]]:
        texts = [path.read_text() if path.exists() else "" for path in self._files]
        # A line that is being written has no end yet.
        return [
            [Turn(**json.loads(line)) for line in text.splitlines(keepends=True) if "\n" in line]
            for text in texts
        ]


def _start(url: str, turns: Path, stop: Path, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "loadtest.clients", url, str(MODELS), str(turns), str(stop)]
    with turns.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(command, env=environ, stderr=log)


@contextmanager
def _clients(stand: Stand, url: str) -> Iterator[_Clients]:
    made = _Clients(stand, url)
    try:
        yield made
    finally:
        made.kill()


def _p50(values: list[float]) -> str:
    return f"{percentile(values, 0.5):.2f} s" if values else "none"


def _as_samples(turns: list[Turn]) -> Samples:
    """Starts, under whence their graphs came."""
    return Samples(ranks=tuple(_as_rank(turn) for turn in turns))


def _as_rank(turn: Turn) -> RankTimes:
    whence = "with a compile here" if turn.local else "from the remote"
    return RankTimes(whence, turn.at, turn.at + turn.seconds, turn.error)
