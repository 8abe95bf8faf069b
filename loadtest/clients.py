"""Real clients in a process: the resolver that `torch.compile` uses, over a remote with faults.

    python -m loadtest.clients URL MODELS TURNS STOP

Each turn is a new start of a job: an empty local store, a model's graphs resolved in turn, by the
compiler here where the remote does not help. A line of JSON in the file TURNS says how each went,
until there is a file STOP. The delay budget is the process's, as in a training job. The settings
come from the environment (FUSEC_TOKEN_FILE, FUSEC_TRUSTED_KEYS, …).
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from cache.errors import CacheError
from cache.memory import MemoryStore
from fusec.errors import FusecError
from fusec.options import Options
from fusec.remote.resolve import Resolver, open_client, trust_of
from fusec.trace import Recorder
from loadtest.models import model

PAUSE_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Turn:
    """One start of a job: when, how long it took; graphs that came from the remote, from a compile
    here; the error that reached the job, which must not be."""

    at: float
    seconds: float
    remote: int
    local: int
    error: str


def run(url: str, models: int, turns: Path, stop: Path) -> None:
    """Start models until there is a file `stop`; each start is a line of `turns`."""
    options = Options.from_env(overrides={"remote": url, "progress": False})
    trust = trust_of(options)
    with open_client(options, url) as client, turns.open("w") as file:
        for number in itertools.count():
            if stop.exists():
                return
            recorder = Recorder()
            resolver = Resolver(MemoryStore(), client, options, recorder, trust=trust)
            at, begun, error = time.time(), time.perf_counter(), ""
            try:
                for job in model(number % models).jobs:
                    resolver.submit(job).result()
            except (FusecError, CacheError, OSError) as failure:
                error = f"{type(failure).__name__}: {failure}"
            taken = time.perf_counter() - begun
            local = recorder.counters.get("local_compiles", 0)
            made = Turn(at, taken, 2 - local, local, error)
            file.write(json.dumps(asdict(made)) + "\n")
            file.flush()
            time.sleep(PAUSE_S)


def main() -> None:
    url, models, turns, stop = sys.argv[1:5]
    run(url, int(models), Path(turns), Path(stop))


if __name__ == "__main__":
    main()
