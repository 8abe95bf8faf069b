"""Verification before publication, through a whole farm with a memory pool: by tiny stages, then by
the real compiler and the real verification."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.memory import MemoryStore
from cache.trust import OWN_STORE
from farm.config import FarmConfig
from farm.workers import FusecStages
from fusec.artifact.quality import Outcome, Tier, quality_of
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
from tests.farm.gpu_farm import running, submit, tier, until
from tests.farm.real_jobs import TARGET, real_job
from tests.farm.tiny_stages import TinyStages, farm_job


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyStages:
    # Kernels of the tiny stages are for a CPU: let a GPU of that name run them.
    monkeypatch.setattr(
        "farm.verifier.Verifier.device_for",
        lambda self, target: next(iter(self.attempts.pool.gpu_classes()), None),
    )
    return TinyStages(str(tmp_path), variants=True)


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
