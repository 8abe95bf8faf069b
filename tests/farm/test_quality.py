"""Verification before publication, and tuned artifacts in the place of untuned ones, through a
whole farm with a memory pool; then the real compiler and the real verification."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import httpx
import pytest
import torch

from cache.artifacts import Found, lookup
from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.config import ServiceConfig
from cache.embedded import serve_app_in_thread, serve_in_thread
from cache.memory import MemoryStore
from cache.trust import OWN_STORE
from farm.config import FarmConfig
from farm.memory_pool import MemoryPool
from farm.open_farm import open_app
from farm.workers import FusecStages, run
from fusec.artifact.quality import Outcome, Tier, quality_of
from fusec.cli.parser import run as command
from fusec.codegen.c_toolchain import compile_shared
from fusec.codegen.kernel_source import KernelSource
from fusec.errors import FarmFailed
from fusec.options import Options, Target
from fusec.pipeline import source_from_bytes
from fusec.remote.farm import FarmClient
from fusec.remote.jobs import GraphJob
from fusec.remote.protocol import FarmJob, JobState
from fusec.remote.resolve import Resolver
from fusec.runtime.loader import load
from fusec.session import Session
from fusec.trace import Recorder
from tests.farm.clients import NewClient
from tests.farm.real_jobs import TARGET, real_job
from tests.farm.tiny_stages import TinyStages, farm_job

GPU = "gpu:x86-64-v3:paper-tiger"  # serves the tiny stages' target, which is a CPU's


@dataclass(frozen=True)
class Farm:
    """A farm that runs: its service, its gateway's numbers, its store."""

    url: str
    gateway: str
    store: MemoryStore
    pool: MemoryPool

    def metric(self, line: str) -> float:
        for text in httpx.get(self.gateway + "/metrics", timeout=60).text.splitlines():
            if text.startswith(line + " "):
                return float(text.rsplit(" ", 1)[1])
        return 0.0

    def graph(self, job: FarmJob) -> Found | None:
        return lookup(self.store, f"graph/{job.fingerprint}")


@contextmanager
def running(
    stages: object,
    *,
    gpu: bool,
    config: FarmConfig | None = None,
    store: MemoryStore | None = None,
) -> Iterator[Farm]:
    store = store or MemoryStore()
    pool = MemoryPool(partial(run, stages=stages), 2, gpus={GPU: (0,)} if gpu else {})  # type: ignore[arg-type]
    app = open_app(config or FarmConfig(pool="memory"), pool, store, stages=stages)  # type: ignore[arg-type]
    try:
        with (
            serve_app_in_thread(app) as gateway,
            serve_in_thread(ServiceConfig(port=0, farm_url=gateway.url), store=store) as service,
        ):
            yield Farm(service.url, gateway.url, store, pool)
    finally:
        pool.close()


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyStages:
    # Kernels of the tiny stages are for a CPU: let a GPU of that name run them.
    monkeypatch.setattr(
        "farm.verifier.Verifier.device_for",
        lambda self, target: next(iter(self.attempts.pool.gpu_classes()), None),
    )
    return TinyStages(str(tmp_path), variants=True)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def submit(client: NewClient, farm: Farm, job: FarmJob) -> JobState:
    here = client(farm.url, TinyStages("unused").compile_local, budget_s=60.0)
    assert here.remote is not None
    return FarmClient(here.remote, outage_s=60.0).wait(job, timeout_s=170.0).state


def tier(farm: Farm, job: FarmJob) -> Tier:
    found = farm.graph(job)
    assert found is not None
    return quality_of(found.manifest.meta).tier


def test_a_tuned_artifact_takes_the_place_of_the_untuned_one(
    client: NewClient, stages: TinyStages
) -> None:
    job = farm_job("t.a", "t.b")
    with running(stages, gpu=True) as farm:
        assert submit(client, farm, job) is JobState.DONE
        until(lambda: tier(farm, job) is Tier.TUNED)
        found = farm.graph(job)
        assert found is not None
        quality = quality_of(found.manifest.meta)
        assert (quality.device, quality.tuned) == (GPU, 2)
        assert quality.verification is not None
        assert quality.verification.outcome is Outcome.PASSED
        assert found.manifest.is_final
        winners = [data for data in found.blobs.values() if data.startswith(b"variant 2")]
        assert len(winners) == 2
        until(lambda: farm.metric('fusec_farm_tuned_total{outcome="replaced"}') == 1)
        assert farm.metric('fusec_farm_published_total{tier="untuned"}') == 1
        assert farm.metric('fusec_farm_tuned_kernels_total{source="timed"}') == 2


def test_kernels_that_graphs_share_are_timed_once(
    client: NewClient, tmp_path: Path, stages: TinyStages
) -> None:
    jobs = [farm_job("t.shared", "t.x"), farm_job("t.shared", "t.y"), farm_job("t.shared", "t.z")]
    with running(stages, gpu=True) as farm:
        here = client(farm.url, stages.compile_local, budget_s=60.0)
        assert here.remote is not None
        farm_client = FarmClient(here.remote, outage_s=60.0)
        for job in jobs:
            farm_client.submit(job)
        until(lambda: all(farm.graph(j) and tier(farm, j) is Tier.TUNED for j in jobs))
    for event in ("build t.shared", "variants t.shared", "race t.shared"):
        assert stages.count(event) == 1, event


def test_without_a_gpu_it_is_served_untuned_and_tuned_when_one_joins(
    client: NewClient, stages: TinyStages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farm.tuning.RECHECK_S", 0.05)
    job = farm_job("t.a")
    with running(stages, gpu=False) as farm:
        assert submit(client, farm, job) is JobState.DONE
        until(lambda: farm.metric("fusec_farm_tuning_waiting") == 1)
        found = farm.graph(job)
        assert found is not None
        assert not found.manifest.is_final
        quality = quality_of(found.manifest.meta)
        assert quality.tier is Tier.UNTUNED
        assert quality.verification is not None
        assert quality.verification.outcome is Outcome.SKIPPED
        assert stages.count("race t.a") == 0
        _join(farm.pool)
        until(lambda: tier(farm, job) is Tier.TUNED)


def _join(pool: MemoryPool) -> None:
    """A GPU joins: what a memory pool never sees, as it has those of its machine."""
    other = MemoryPool(pool._run, 1, gpus={GPU: (0,)})
    pool._gpus.update(other._gpus)
    pool._count.update(other._count)
    pool._threads.update({GPU: other._threads[GPU]})


def test_a_wrong_artifact_is_never_published(client: NewClient, stages: TinyStages) -> None:
    job = farm_job("t.wrong")
    with running(stages, gpu=True) as farm:
        here = client(farm.url, stages.compile_local, budget_s=60.0)
        assert here.remote is not None
        with pytest.raises(FarmFailed, match="does not compute what eager does") as caught:
            FarmClient(here.remote, outage_s=60.0).wait(job, timeout_s=60.0)
        assert caught.value.kind == "verification"
        assert farm.graph(job) is None
        assert farm.metric('fusec_farm_verifications_total{outcome="failed"}') == 1


def test_a_fast_and_wrong_winner_does_not_replace_what_is_right(
    client: NewClient, stages: TinyStages
) -> None:
    job = farm_job("t.fast")
    with running(stages, gpu=True) as farm:
        assert submit(client, farm, job) is JobState.DONE
        until(lambda: farm.metric('fusec_farm_tuned_total{outcome="wrong"}') == 1)
        assert tier(farm, job) is Tier.UNTUNED


# -- `fusec farm retune` --------------------------------------------------------------------


def retune(farm: Farm, key: str) -> int:
    return command(["farm", "retune", key, "--remote", farm.url])


@pytest.fixture
def left(client: NewClient, stages: TinyStages) -> tuple[MemoryStore, FarmJob]:
    """A store with an untuned graph, whose gateway has ended before a GPU joined."""
    store, job = MemoryStore(), farm_job("t.a", "t.b")
    with running(stages, gpu=False, store=store) as farm:
        assert submit(client, farm, job) is JobState.DONE
        until(lambda: farm.metric("fusec_farm_tuning_waiting") == 1)
    return store, job


def test_what_a_gateway_left_untuned_is_tuned_after_its_restart(
    left: tuple[MemoryStore, FarmJob], stages: TinyStages, capsys: pytest.CaptureFixture[str]
) -> None:
    store, job = left
    with running(stages, gpu=True, store=store) as farm:
        assert tier(farm, job) is Tier.UNTUNED
        assert retune(farm, f"graph/{job.fingerprint}") == 0
        assert f"{job.fingerprint} is tuned on a GPU of x86-64-v3" in capsys.readouterr().out
        until(lambda: tier(farm, job) is Tier.TUNED)
        assert retune(farm, job.fingerprint) == 1
        assert f"tuned already: {GPU} has timed 2" in capsys.readouterr().err
    for event in ("build t.a", "race t.a"):
        assert stages.count(event) == 1, event


def test_retune_without_a_gpu_waits_for_one(
    left: tuple[MemoryStore, FarmJob],
    stages: TinyStages,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("farm.tuning.RECHECK_S", 0.05)
    store, job = left
    with running(stages, gpu=False, store=store) as farm:
        for _ in range(2):
            assert retune(farm, job.fingerprint) == 0
            assert "no worker has a GPU of x86-64-v3" in capsys.readouterr().out
        until(lambda: farm.metric("fusec_farm_tuning_waiting") == 1)
        _join(farm.pool)
        until(lambda: tier(farm, job) is Tier.TUNED)


def test_retune_says_why_it_does_nothing(
    left: tuple[MemoryStore, FarmJob],
    client: NewClient,
    stages: TinyStages,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store, job = left

    def refused(farm: Farm, key: str, why: str) -> None:
        assert retune(farm, key) == 1
        assert why in capsys.readouterr().err

    with running(replace(stages, variants=False), gpu=True, store=store) as farm:
        single = farm_job("t.single")
        assert submit(client, farm, single) is JobState.DONE
        refused(farm, single.fingerprint, "nothing to tune")
        refused(farm, "0" * 64, "no graph 0000")
        refused(farm, job.fingerprint[:12], "64 hex digits")
        assert command(["farm", "drain", "--remote", farm.url]) == 0
        refused(farm, job.fingerprint, "being drained")
    with running(replace(stages, toolchain="u" * 64), gpu=True, store=store) as farm:
        refused(farm, job.fingerprint, "another release")
    with running(stages, gpu=True, store=store, config=FarmConfig(tune=False)) as farm:
        refused(farm, job.fingerprint, "tunes nothing")
        unkept = farm_job("t.unkept")
        assert submit(client, farm, unkept) is JobState.DONE
    with running(stages, gpu=True, store=store) as farm:
        refused(farm, unkept.fingerprint, "its submit is not kept")
        assert tier(farm, job) is Tier.UNTUNED


def test_retune_of_a_graph_whose_kernels_were_collected_is_counted(
    left: tuple[MemoryStore, FarmJob], stages: TinyStages
) -> None:
    store, job = left
    for planned in stages.plan(job.graph, job.target, job.options).kernels:
        store.delete_entry(planned.key)
    with running(stages, gpu=True, store=store) as farm:
        assert retune(farm, job.fingerprint) == 0
        until(lambda: farm.metric('fusec_farm_tuned_total{outcome="failed"}') == 1)
        assert tier(farm, job) is Tier.UNTUNED


# -- the real compiler ----------------------------------------------------------------------


@dataclass(frozen=True)
class Flipped(FusecStages):
    """The real compiler with a fault planted: it multiplies by another value."""

    def build(self, source: bytes, target: Target) -> bytes:
        kernel = source_from_bytes(source)
        assert isinstance(kernel, KernelSource)
        wrong = kernel.source.replace("mul_f32(t2, t1)", "mul_f32(t1, t1)")
        return compile_shared(wrong, kernel.isa, 120.0)


@pytest.fixture
def dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _real(job: GraphJob) -> FarmJob:
    name = job.fingerprint
    return FarmJob(
        name.hex, name.entries, job.graph_bytes, Target(**TARGET.to_wire()), Options(), "w"
    )


def test_a_real_artifact_carries_its_verification(client: NewClient) -> None:
    job = _real(real_job(100))
    with running(
        FusecStages(), gpu=False, config=FarmConfig(pool="memory", verify_s=170.0)
    ) as farm:
        assert submit(client, farm, job) is JobState.DONE
        found = farm.graph(job)
    assert found is not None
    quality = quality_of(found.manifest.meta)
    assert quality.tier is Tier.SINGLE
    record = quality.verification
    assert record is not None
    assert record.outcome is Outcome.PASSED, record
    assert record.compared == 6400
    assert record.device == "cpu"


def test_a_real_kernel_that_is_wrong_is_never_published(client: NewClient) -> None:
    job = _real(real_job(100))
    config = FarmConfig(pool="memory", verify_s=170.0)
    with running(Flipped(), gpu=False, config=config) as farm:
        here = client(farm.url, TinyStages("unused").compile_local, budget_s=60.0)
        assert here.remote is not None
        with pytest.raises(FarmFailed, match="values differ") as caught:
            FarmClient(here.remote, outage_s=60.0).wait(job, timeout_s=170.0)
        assert caught.value.kind == "verification"
        assert farm.graph(job) is None


def test_a_client_runs_eager_what_the_farm_found_wrong(
    dynamo: None, caplog: pytest.LogCaptureFixture
) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.tanh() * x

    recorder, options = Recorder(), Options(progress=False, wait_s=170.0)
    config = FarmConfig(pool="memory", verify_s=170.0)
    with (
        running(Flipped(), gpu=False, config=config) as farm,
        CacheClient(farm.url, budget=DelayBudget(60.0)) as remote,
        closing(Resolver(MemoryStore(), remote, options, recorder, trust=OWN_STORE)) as resolver,
    ):
        session = Session(options, lambda _: TARGET, resolver, load, recorder)
        compiled, x = torch.compile(f, backend=session.backend), torch.randn(100, 64)
        for _ in range(2):
            assert torch.equal(compiled(x), f(x))
        assert farm.metric('fusec_farm_verifications_total{outcome="failed"}') == 1
    counted = [recorder.counters.get(name, 0) for name in ("fallbacks_to_eager", "local_compiles")]
    assert counted == [1, 0], "the compiler here would make the same"
    (told,) = [
        r.getMessage()
        for r in caplog.records
        if r.levelno == logging.WARNING and r.name in ("fusec", "fusec.remote")
    ]
    assert "a graph runs eager" in told
    assert "does not compute what eager does" in told
