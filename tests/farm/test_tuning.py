"""Tuning behind the clients, through a whole farm with a memory pool: tuned artifacts in the place
of untuned ones, what a restart leaves, descents, and `fusec farm retune`."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from cache.artifacts import lookup
from cache.digest import digest
from cache.memory import MemoryStore
from farm.attempts import Attempts
from farm.config import FarmConfig
from farm.memory_pool import MemoryPool
from farm.metrics import FarmMetrics
from farm.shelf import Shelf
from farm.untuned import UntunedIndex
from fusec.artifact.quality import Outcome, Tier, quality_of
from fusec.cli.parser import run as command
from fusec.errors import CompileError
from fusec.options import Options, Target
from fusec.remote.farm import FarmClient
from fusec.remote.protocol import FarmJob, JobState
from tests.farm.clients import NewClient
from tests.farm.gpu_farm import GPU, Farm, join, running, submit, tier, until
from tests.farm.tiny_stages import TinyStages, farm_job


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyStages:
    # Kernels of the tiny stages are for a CPU: let a GPU of that name run them.
    monkeypatch.setattr(
        "farm.verifier.Verifier.device_for",
        lambda self, target: next(iter(self.attempts.pool.gpu_classes()), None),
    )
    return TinyStages(str(tmp_path), variants=True)


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
    for event in ("build t.shared", "variants t.shared 0", "race t.shared"):
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
        join(farm.pool)
        until(lambda: tier(farm, job) is Tier.TUNED)


# -- from what the store has ----------------------------------------------------------------


@pytest.fixture
def left(client: NewClient, stages: TinyStages) -> tuple[MemoryStore, FarmJob]:
    """A store with an untuned graph, whose gateway has ended before a GPU joined."""
    store, job = MemoryStore(), farm_job("t.a", "t.b")
    with running(stages, gpu=False, store=store) as farm:
        assert submit(client, farm, job) is JobState.DONE
        until(lambda: farm.metric("fusec_farm_tuning_waiting") == 1)
    return store, job


def test_what_a_gateway_left_untuned_the_next_one_tunes_when_a_gpu_joins(
    left: tuple[MemoryStore, FarmJob], stages: TinyStages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farm.tuning.RECHECK_S", 0.05)
    store, job = left
    with running(stages, gpu=False, store=store) as farm:
        until(lambda: farm.metric("fusec_farm_tuning_waiting") == 1)
        join(farm.pool)
        until(lambda: tier(farm, job) is Tier.TUNED)
        until(lambda: waits_by_the_index(store) == {})
    for event in ("build t.a", "race t.a"):
        assert stages.count(event) == 1, event
    with running(stages, gpu=True, store=store) as farm:
        read = farm.metric("fusec_farm_tuning_waiting")
        assert read == 0


def waits_by_the_index(store: MemoryStore) -> dict[str, Target]:
    attempts = Attempts(MemoryPool(lambda task: b"", 1), FarmMetrics(CollectorRegistry()), 60.0)
    with closing(Shelf(store, attempts)) as shelf:
        return asyncio.run(UntunedIndex(shelf).read())


def test_the_index_holds_many_and_says_when_it_is_full() -> None:
    store = MemoryStore()
    attempts = Attempts(MemoryPool(lambda task: b"", 1), FarmMetrics(CollectorRegistry()), 60.0)
    target = Target("cuda", "sm_90")
    graphs = [digest(str(number).encode()) for number in range(200)]
    alike = [f"00{graph[2:]}" for graph in graphs]

    async def fill() -> None:
        with closing(Shelf(store, attempts)) as shelf:
            one, two = UntunedIndex(shelf), UntunedIndex(shelf)  # as of two gateways
            added = await asyncio.gather(
                *((one, two)[n % 2].add(graph, target) for n, graph in enumerate(graphs))
            )
            assert all(added)
            assert await one.read() == dict.fromkeys(graphs, target)
            await asyncio.gather(*(two.remove(graph) for graph in graphs[1:]))
            assert await one.read() == {graphs[0]: target}
            fits = [await one.add(graph, target) for graph in alike]
            assert 70 < fits.count(True) < len(alike), "one record's room"

    asyncio.run(fill())


def test_a_graph_that_cannot_be_restored_is_given_up(
    left: tuple[MemoryStore, FarmJob], stages: TinyStages
) -> None:
    store, job = left
    for planned in stages.plan(job.graph, job.target, job.options):
        store.delete_entry(planned.key)
    with running(stages, gpu=True, store=store) as farm:
        until(lambda: farm.metric('fusec_farm_tuned_total{outcome="failed"}') == 1)
        until(lambda: waits_by_the_index(store) == {})
        assert tier(farm, job) is Tier.UNTUNED


def test_of_two_gateways_one_tunes_a_graph(
    left: tuple[MemoryStore, FarmJob], stages: TinyStages
) -> None:
    store, job = left
    config = FarmConfig(pool="memory", lease_s=3.0)
    with (
        running(replace(stages, slow_s=1.0), gpu=True, store=store, config=config) as farm,
        running(stages, gpu=True, store=store, config=config) as other,
    ):
        until(lambda: tier(farm, job) is Tier.TUNED)
        until(lambda: waits_by_the_index(store) == {})
        replaced = 'fusec_farm_tuned_total{outcome="replaced"}'
        until(lambda: farm.metric(replaced) + other.metric(replaced) == 1)
    assert stages.count("race t.a") == 1


# -- descents -------------------------------------------------------------------------------


def deep(*names: str) -> FarmJob:
    return farm_job(*names, options=Options(mode="max-autotune"))


def test_a_descent_follows_the_first_race_of_all_graphs(
    client: NewClient, stages: TinyStages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farm.tuning.RECHECK_S", 0.05)
    jobs = [deep(f"t.deep{number}") for number in range(3)] + [farm_job("t.plain")]
    with running(stages, gpu=False) as farm:
        for job in jobs:
            assert submit(client, farm, job) is JobState.DONE
        until(lambda: farm.metric("fusec_farm_tuning_waiting") == len(jobs))
        join(farm.pool)
        until(lambda: all(is_final(farm, job) for job in jobs))
        found = farm.graph(jobs[0])
        assert found is not None
        assert b"variant 2 of t.deep0>1" in found.blobs.values(), "the first step's winner"
        until(lambda: waits_by_the_index(farm.store) == {})
    races = [event for event in stages.events() if event.startswith("race ")]
    assert not any(">" in event for event in races[:4])
    steps = [f"race t.deep{number}>{step}" for step in (1, 2) for number in range(3)]
    assert sorted(races[4:]) == sorted(steps)


def is_final(farm: Farm, job: FarmJob) -> bool:
    found = farm.graph(job)
    return found is not None and found.manifest.is_final


def test_a_descent_goes_on_after_a_restart_and_is_done_once_a_kernel(
    client: NewClient, stages: TinyStages
) -> None:
    """The gateway ends between the first race, whose artifact is served, and the descent."""
    store, job = MemoryStore(), deep("t.a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("farm.descent.Descent.step", _never)
        with running(stages, gpu=True, store=store) as farm:
            assert submit(client, farm, job) is JobState.DONE
            until(lambda: tier(farm, job) is Tier.TUNED)
            assert not is_final(farm, job)
    with running(stages, gpu=True, store=store) as farm:
        until(lambda: is_final(farm, job))
        other = deep("t.a", "t.b")  # which shares a kernel
        assert submit(client, farm, other) is JobState.DONE
        until(lambda: is_final(farm, other))
    for event in ("race t.a", "race t.a>1", "race t.a>2", "race t.b>2"):
        assert stages.count(event) == 1, event


def test_a_descent_that_fails_ends_with_what_it_has(
    client: NewClient, stages: TinyStages, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object, history: object, record: bytes) -> bytes:
        raise CompileError("no steps today")

    monkeypatch.setattr("tests.farm.tiny_stages.TinyQuality.step", broken)
    job = deep("t.a")
    with running(stages, gpu=True) as farm:
        assert submit(client, farm, job) is JobState.DONE
        until(lambda: is_final(farm, job))
        assert tier(farm, job) is Tier.TUNED
        until(lambda: waits_by_the_index(farm.store) == {})


async def _never(self: object, device: str) -> bool:
    await asyncio.Event().wait()
    raise AssertionError("it is cancelled")


# -- `fusec farm retune` --------------------------------------------------------------------


def retune(farm: Farm, key: str, *more: str) -> int:
    return command(["farm", "retune", key, *more, "--remote", farm.url])


def test_what_is_tuned_is_timed_anew_by_force_and_replaced_where_it_is_beaten(
    client: NewClient, stages: TinyStages, capsys: pytest.CaptureFixture[str]
) -> None:
    job, other = farm_job("t.drifts", "t.same"), farm_job("t.same")
    with running(stages, gpu=True) as farm:
        for each in (job, other):
            assert submit(client, farm, each) is JobState.DONE
            until(lambda each=each: tier(farm, each) is Tier.TUNED)  # type: ignore[misc]
        before = farm.graph(job), farm.graph(other)
        assert retune(farm, job.fingerprint) == 1
        said = capsys.readouterr().err
        assert f"tuned already: {GPU} has timed 2" in said
        assert "--force" in said

        assert retune(farm, other.fingerprint, "--force") == 0
        until(lambda: stages.count("race t.same") == 2)
        until(lambda: farm.metric('fusec_farm_tuned_total{outcome="kept"}') == 1)
        assert farm.graph(other) == before[1], "nothing was faster"

        assert retune(farm, job.fingerprint, "--force") == 0
        until(lambda: farm.graph(job) != before[0])
        found = farm.graph(job)
        assert found is not None
        chosen = {data for data in found.blobs.values() if data.startswith(b"variant")}
        assert chosen == {b"variant 1 of t.drifts", b"variant 2 of t.same"}
        assert tier(farm, job) is Tier.TUNED
        # The record says so too: the next graph with this kernel begins with it.
        until(lambda: farm.metric('fusec_farm_tuned_total{outcome="replaced"}') == 3)
        late = farm_job("t.drifts")
        until(lambda: _recorded(farm, b"variant 1 of t.drifts"))
        assert submit(client, farm, late) is JobState.DONE
        until(lambda: tier(farm, late) is Tier.TUNED)
        found = farm.graph(late)
        assert found is not None
        assert b"variant 1 of t.drifts" in found.blobs.values()


def _recorded(farm: Farm, binary: bytes) -> bool:
    """Whether the tuning record of `t.drifts` holds this binary."""
    key = f"tuning/{digest(b't.drifts' + GPU.encode())}"
    found = lookup(farm.store, key)
    return found is not None and binary in found.blobs.values()


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
        join(farm.pool)
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

    with running(replace(stages, variants=False), gpu=False, store=store) as farm:
        single = farm_job("t.single")
        assert submit(client, farm, single) is JobState.DONE
        refused(farm, single.fingerprint, "nothing to tune")
        refused(farm, "0" * 64, "no graph 0000")
        refused(farm, job.fingerprint[:12], "64 hex digits")
        assert command(["farm", "drain", "--remote", farm.url]) == 0
        refused(farm, job.fingerprint, "being drained")
        assert command(["farm", "undrain", "--remote", farm.url]) == 0
    with running(replace(stages, toolchain="u" * 64), gpu=False, store=store) as farm:
        refused(farm, job.fingerprint, "another release")
    with running(stages, gpu=True, store=store, config=FarmConfig(tune=False)) as farm:
        refused(farm, job.fingerprint, "tunes nothing")
        unkept = farm_job("t.unkept")
        assert submit(client, farm, unkept) is JobState.DONE
    with running(stages, gpu=False, store=store) as farm:
        refused(farm, unkept.fingerprint, "its submit is not kept")
        assert tier(farm, job) is Tier.UNTUNED
