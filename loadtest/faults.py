"""Scenarios in which the remote comes and goes, played by real clients behind a balancer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from loadtest.balancer import balancer
from loadtest.clients import Turn
from loadtest.samples import RankTimes, Samples, percentile
from loadtest.scenario import Objective, Outcome, Scale
from loadtest.servers import Stand, free_port, tenant_token

CLIENTS: Final = 3
MODELS: Final = 4
OUTAGE_S: Final = 4.0
RECOVER_S: Final = 30.0
START_S: Final = 15.0  # until the clients have loaded what they need


def flapping(stand: Stand, scale: Scale) -> Outcome:
    """The remote goes away and comes back, again and again: a job never sees an error, loses no
    more than its budget at a time, and uses the remote again once it is back."""
    with balancer(stand.port) as front, _clients(stand, front.url, scale.seconds) as clients:
        time.sleep(START_S)
        ends = time.monotonic() + scale.seconds - OUTAGE_S
        while time.monotonic() < ends:
            front.direct(None)
            time.sleep(OUTAGE_S)
            front.direct(stand.port)
            time.sleep(OUTAGE_S)
        back = time.time()
        turns = clients.result()
    local = [turn.seconds for turn in turns if turn.local]
    recovered = [min((t.at - back for t in one if t.remote and t.at > back), default=float("nan"))
                 for one in clients.by_client]  # fmt: skip
    return Outcome(
        "flapping",
        flapping.__doc__ or "",
        (
            Objective("errors that reached a job", sum(1 for t in turns if t.error), 0),
            Objective("last client on the remote again after", max(recovered), RECOVER_S, "s"),
            Objective("longest start", max(t.seconds for t in turns), 30.0, "s"),
        ),
        {
            "starts": str(len(turns)),
            "of them with a compile here": str(len(local)),
            "p50 of a start from the remote": _p50([t.seconds for t in turns if not t.local]),
            "p50 of one with a compile here": _p50(local),
        },
        {"clients": _as_samples(turns)},
    )


def rolling(stand: Stand, scale: Scale) -> Outcome:
    """The service's replicas are replaced one after another: no request fails, nothing is compiled
    a second time."""
    with balancer(stand.port) as front, _clients(stand, front.url, scale.seconds) as clients:
        time.sleep(START_S)
        replaced = 0
        ends = time.monotonic() + scale.seconds
        while time.monotonic() < ends and replaced < 4:
            old, port = stand.service, free_port()
            stand.service, stand.port = stand.replica(port), port
            front.direct(port)
            old.stop()
            replaced += 1
            time.sleep(2.0)
        turns = clients.result()
    return Outcome(
        "rolling",
        rolling.__doc__ or "",
        (
            Objective("errors that reached a job", sum(1 for t in turns if t.error), 0),
            # The first starts of all fill the store; they may meet while the farm compiles.
            Objective("graphs compiled by a client", sum(t.local for t in turns), 0),
        ),
        {"starts": str(len(turns)), "replicas replaced": str(replaced)},
        {"clients": _as_samples(turns)},
    )


class _Clients:
    """Processes of `loadtest.clients`."""

    def __init__(self, stand: Stand, url: str, seconds: float) -> None:
        token = stand.folder / "rank.token"
        token.write_text(tenant_token(""))
        environ = {
            **{n: value for n, value in os.environ.items() if not n.startswith("FUSEC_")},
            "FUSEC_TOKEN_FILE": str(token),
            "FUSEC_TRUSTED_KEYS": str(stand.public_keys),
            "FUSEC_CACHE_DIR": str(stand.folder / "unused"),
        }
        self.by_client: list[list[Turn]] = []
        self._results = [stand.folder / f"clients-{n}-{time.time_ns()}" for n in range(CLIENTS)]
        self._children = [_start(url, seconds + START_S, path, environ) for path in self._results]

    def result(self) -> list[Turn]:
        """Every start of every client, once all have ended. Raises RuntimeError if one failed."""
        for child, path in zip(self._children, self._results):
            if child.wait() != 0:
                log = path.with_suffix(".log").read_text()[-2000:]
                raise RuntimeError(f"a client process failed: {log}")
            self.by_client.append([Turn(**turn) for turn in json.loads(Path(path).read_text())])
        return [turn for one in self.by_client for turn in one]

    def kill(self) -> None:
        for child in self._children:
            child.kill()
            child.wait()


def _start(
    url: str, seconds: float, result: Path, environ: dict[str, str]
) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "loadtest.clients",
        url,
        str(MODELS),
        str(seconds),
        str(result),
    ]
    with result.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(command, env=environ, stderr=log)


@contextmanager
def _clients(stand: Stand, url: str, seconds: float) -> Iterator[_Clients]:
    made = _Clients(stand, url, seconds)
    try:
        yield made
    finally:
        made.kill()


def _p50(values: list[float]) -> str:
    return f"{percentile(values, 0.5):.2f} s" if values else "none"


def _as_samples(turns: list[Turn]) -> Samples:
    ranks = (RankTimes("default", t.at, t.at + t.seconds, t.error) for t in turns)
    return Samples(ranks=tuple(ranks))
