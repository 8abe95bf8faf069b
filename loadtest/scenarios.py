"""The scenarios. Each plays something that a fleet does, and says what must hold meanwhile."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from cache.artifacts import open_entry, publish
from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.manifest import Manifest
from cache.trust import OWN_STORE
from fusec.options import Options
from fusec.pipeline import plan
from fusec.remote.jobs import GraphJob
from fusec.trace import Recorder
from loadtest.faults import flapping, rolling
from loadtest.loading import Load, default_tenant, one_tenant, play
from loadtest.models import Model, model
from loadtest.plan import RankModel
from loadtest.samples import Samples, percentile
from loadtest.scenario import Objective, Outcome, Scale, no_errors
from loadtest.servers import TENANTS, WRITER, Stand, tenant_token

LOOKUP_P50_S: Final = 0.05
LOOKUP_P99_S: Final = 1.0
BIG_BYTES: Final = 24 << 20
"""What one blob of the big artifacts holds."""


Play = Callable[[Stand, Scale], Outcome]


def herd(stand: Stand, scale: Scale) -> Outcome:
    """All ranks of a job start at once on a cold model, then again on a service that has just been
    restarted: one compile a key, one read of S3 an object, however many ask."""
    made = model(0)
    before = stand.gateway.metrics()
    cold = play(stand, default_tenant(stand, scale, [made], ranks=scale.ranks))
    after = stand.gateway.metrics()
    kernels = len({digest for job in made.jobs for digest in _kernels(job)})
    built = _grown(before, after, "fusec_farm_kernels_total{source=built}")
    jobs = _grown(before, after, "fusec_farm_jobs_total{state=done}")
    stand.restart_service()
    gets = stand.s3_gets()
    warm = play(stand, default_tenant(stand, scale, [made], ranks=scale.ranks))
    gets = stand.s3_gets() - gets
    # Each graph's entry and its blobs, the runner being one that both share.
    objects = len(made.jobs) + _blobs(stand, made)
    return Outcome(
        "herd",
        herd.__doc__ or "",
        (
            no_errors(cold, warm),
            Objective("compiles a unique kernel", built / kernels, 1.0),
            Objective("jobs a unique graph", jobs / len(made.jobs), 1.0),
            # Beside the objects: the list of what is revoked, which is read again now and then.
            Objective("S3 reads a unique object, service restarted", gets / (objects + 4), 1.0),
            Objective("ranks that did not start", scale.ranks - _ready(cold), 0),
            Objective("p99 of a look-up, warm", _p(warm, "lookup", 0.99), 20.0, "s"),
        ),
        {
            "ranks": str(scale.ranks),
            "last rank ready, cold": f"{_last(cold):.1f} s",
            "last rank ready, warm service": f"{_last(warm):.1f} s",
            "kernels built": f"{built:.0f}",
            "S3 reads after the restart": f"{gets:.0f} for {objects} objects",
        },
        {"cold": cold, "warm, restarted service": warm},
    )


def starts(stand: Stand, scale: Scale) -> Outcome:
    """Jobs start one after another, most of them on models that are known."""
    models = [model(100 + number) for number in range(8)]
    before = stand.gateway.metrics()
    first = play(stand, default_tenant(stand, scale, models, ranks=len(models), each=True))
    steady = play(
        stand,
        replace(default_tenant(stand, scale, models, ranks=40), repeat=True, seconds=scale.seconds),
    )
    after = stand.gateway.metrics()
    graphs = sum(len(each.jobs) for each in models)
    done = _grown(before, after, "fusec_farm_jobs_total{state=done}")
    ceiling = _ceiling(stand, models[0].keys()[0])
    return Outcome(
        "starts",
        starts.__doc__ or "",
        (
            no_errors(first, steady),
            Objective("jobs a unique graph", done / graphs, 1.0),
            Objective("p50 of a look-up", _p(steady, "lookup", 0.5), LOOKUP_P50_S, "s"),
            Objective("p99 of a look-up", _p(steady, "lookup", 0.99), LOOKUP_P99_S, "s"),
        ),
        {
            "warm starts": str(len(steady.ranks)),
            "p50 / p99 of a start": _start_times(steady),
            "requests a second, wrk, one entry": ceiling,
        },
        {"cold": first, "steady": steady},
    )


def tenants(stand: Stand, scale: Scale) -> Outcome:
    """One tenant asks for many cold models at once; another's one model is still served soon."""
    flood, quiet = TENANTS
    alone = play(stand, one_tenant(stand, scale, quiet, [model(200)]))
    heavy = one_tenant(stand, scale, flood, [model(300 + n) for n in range(24)], each=True)
    with Load(stand, heavy) as load:
        load.wait_for_queue()
        beside = play(stand, one_tenant(stand, scale, quiet, [model(201)]))
        behind = load.result()
    ratio = percentile([rank.seconds for rank in beside.ranks], 0.5) / percentile(
        [rank.seconds for rank in alone.ranks], 0.5
    )
    return Outcome(
        "tenants",
        tenants.__doc__ or "",
        (
            no_errors(alone, beside, behind),
            Objective("the quiet tenant's start beside the flood, to alone", ratio, 2.5, "x"),
        ),
        {
            "quiet tenant alone": f"{_last(alone):.1f} s",
            "quiet tenant beside": f"{_last(beside):.1f} s",
            "the flood's last": f"{_last(behind):.1f} s",
        },
        {"alone": alone, "beside": beside, "flood": behind},
    )


def big(stand: Stand, scale: Scale) -> Outcome:
    """Artifacts of many megabytes, more together than the service keeps in memory."""
    keys = []
    patient = DelayBudget(60.0)
    with CacheClient(stand.service.url, token=WRITER, budget=patient) as writer:
        for number in range(8):
            blobs = {f"part/{n}": secrets.token_bytes(BIG_BYTES) for n in range(3)}
            keys.append(f"graph/{number + 1:064x}")
            publish(writer, keys[-1], Manifest.of("graph", blobs), blobs)
    stand.restart_service()
    begun = stand.service.resident_bytes()
    made = tuple(RankModel((key,), ("",)) for key in keys)
    seen = play(
        stand,
        replace(
            default_tenant(stand, scale, [], ranks=8),
            models=made,
            repeat=True,
            seconds=scale.seconds / 2,
        ),
    )
    grown = stand.service.resident_bytes() - begun
    seconds = _last(seen)
    moved = len(seen.ranks) * 3 * BIG_BYTES
    return Outcome(
        "big",
        big.__doc__ or "",
        (
            no_errors(seen),
            # 512 MiB are kept in memory by default; the rest is what is on its way.
            Objective("growth of the service's memory", grown / (1 << 20), 1536, "MiB"),
        ),
        {
            "artifacts read": str(len(seen.ranks)),
            "rate": f"{moved / seconds / 1e6:.0f} MB/s",
            "p50 / p99 of a start": _start_times(seen),
        },
        {"big": seen},
    )


SCENARIOS: Final[Mapping[str, Play]] = {
    "herd": herd,
    "starts": starts,
    "tenants": tenants,
    "big": big,
    "flapping": flapping,
    "rolling": rolling,
}


# -- counting -------------------------------------------------------------------------------------


def _kernels(job: GraphJob) -> list[str]:
    made = plan(job.graph, job.target, Options(), recorder=Recorder())
    return [kernel.digest for kernel in made.kernels]


def _blobs(stand: Stand, made: Model) -> int:
    """Distinct blobs that a model's artifacts name."""
    digests: set[str] = set()
    with CacheClient(stand.service.url, token=tenant_token("")) as client:
        for key in (job.key for job in made.jobs):
            data = client.get_entry(key)
            assert data is not None, "the herd has published it"
            digests.update(open_entry(key, data, OWN_STORE)[0].digests())
    return len(digests)


def _grown(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float:
    return after.get(name, 0.0) - before.get(name, 0.0)


def _ready(samples: Samples) -> int:
    return sum(1 for rank in samples.ranks if not rank.error)


def _last(samples: Samples) -> float:
    """Seconds from the first rank's begin to the last one's end."""
    if not samples.ranks:
        return float("nan")
    begun = min(rank.begun for rank in samples.ranks)
    return max(rank.ready for rank in samples.ranks) - begun


def _p(samples: Samples, name: str, share: float) -> float:
    return percentile(samples.seconds(name), share)


def _start_times(samples: Samples) -> str:
    taken = [rank.seconds for rank in samples.ranks]
    return f"{percentile(taken, 0.5):.3f} s / {percentile(taken, 0.99):.3f} s"


def _ceiling(stand: Stand, key: str) -> str:
    """What wrk gets out of the service, asking for one entry over 32 connections."""
    wrk = shutil.which("wrk")
    if wrk is None:
        return "not measured: wrk is not installed"
    url = f"{stand.service.url}/v1/entries/{key}"
    token = f"authorization: Bearer {tenant_token('')}"
    done = subprocess.run(
        [wrk, "-t1", "-c32", "-d3s", "-H", token, url],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    rate = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    if rate is None or "Non-2xx" in done.stdout:
        raise RuntimeError(f"wrk: {done.stdout[-500:]}")
    return rate[1]
