"""Plays a plan against the stand, in a process of its own."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fusec.options import Options
from fusec.remote.protocol import FarmJob
from loadtest.models import Model
from loadtest.plan import Plan, RankModel
from loadtest.samples import Samples
from loadtest.scenario import Scale
from loadtest.servers import Stand, tenant_token


class Load:
    """A plan that is being played beside something else."""

    def __init__(self, stand: Stand, played: Plan) -> None:
        self._stand = stand
        stem = stand.folder / f"ranks-{secrets.token_hex(4)}"
        self._plan, self._result = stem.with_suffix(".plan"), stem.with_suffix(".json")
        played.write(self._plan)
        self._log = stem.with_suffix(".log")
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "loadtest.ranks", str(self._plan), str(self._result)],
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.wait()

    def wait_for_queue(self) -> None:
        """Return once the farm has more to do than it does at once, or the load is over."""
        while self._child.poll() is None:
            counts = self._stand.gateway.metrics()
            if counts.get("fusec_farm_running_jobs", 0) >= 4:
                return
            time.sleep(0.1)

    def result(self) -> Samples:
        """What was seen, at the end. Raises RuntimeError when the process failed."""
        if self._child.wait() != 0:
            raise RuntimeError(f"the ranks failed: {self._log.read_text()[-2000:]}")
        return Samples.read(self._result)


def play(stand: Stand, played: Plan) -> Samples:
    with Load(stand, played) as load:
        return load.result()


def default_tenant(
    stand: Stand, scale: Scale, models: Sequence[Model], *, ranks: int, each: bool = False
) -> Plan:
    """Ranks of the default tenant. each: one rank a model, in turn; else any model at random."""
    made = tuple(_for_ranks(stand.folder, one) for one in models)
    return Plan(
        stand.service.url,
        tenant_token(""),
        "default",
        "",
        made,
        ranks,
        per_second=max(10.0, ranks / 4),
        seconds=scale.seconds,
        in_turn=each,
    )


def one_tenant(
    stand: Stand, scale: Scale, tenant: str, models: Sequence[Model], *, each: bool = False
) -> Plan:
    ranks = len(models) if each else 4
    made = default_tenant(stand, scale, models, ranks=ranks, each=each)
    return replace(made, token=tenant_token(tenant), tenant=tenant, namespace=tenant)


def _for_ranks(folder: Path, made: Model) -> RankModel:
    files = []
    for number, job in enumerate(made.jobs):
        path = folder / f"{made.name}-{number}.submit"
        submit = FarmJob(
            job.fingerprint.hex,
            job.fingerprint.entries,
            job.graph_bytes,
            job.target,
            Options(),
            "rank",
        )
        path.write_bytes(submit.encode())
        files.append(str(path))
    return RankModel(tuple(made.keys()), tuple(files))
