"""The farm signs what it publishes, believes nothing that is not signed, and takes few at their
word."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from cache import revocation
from cache.artifacts import lookup, publish
from cache.auth import Grant, hash_token
from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.config import ServiceConfig
from cache.embedded import serve_app_in_thread, serve_in_thread
from cache.manifest import Manifest
from cache.memory import MemoryStore
from cache.revocation import Revocations
from cache.signing import SigningKey, write_trusted
from cache.store import Store
from cache.trust import signed_by
from farm import shelf
from farm.config import FarmConfig
from farm.embedded import embedded_farm
from farm.memory_pool import MemoryPool
from farm.open_farm import compiler_name, open_app
from farm.workers import run
from fusec.options import Options
from fusec.remote.farm import FarmClient
from fusec.remote.jobs import FrontRecord, parts_of
from fusec.remote.protocol import JobState
from fusec.remote.tiers import Source
from tests.farm.clients import Client, NewClient
from tests.farm.tiny_stages import TinyStages, farm_job, graph_job, operators

TOKENS = tuple(Grant(role, hash_token(role)) for role in ("submit", "write", "admin"))


@pytest.fixture
def stages(tmp_path: Path) -> TinyStages:
    return TinyStages(str(tmp_path))


def _compile(here: Client, *names: str) -> Source | None:
    ticket = here.resolver.submit(graph_job(*names))
    assert operators(ticket.result()) == list(names)
    return ticket.source


def test_graphs_kernels_and_fronts_are_signed(client: NewClient, stages: TinyStages) -> None:
    with embedded_farm(stages=stages, workers=2) as farm:
        trust = signed_by([farm.public_key])
        here = client(farm.url, stages.compile_local, trust=trust)
        assert _compile(here, "t.a") is Source.FARM
        job = graph_job("t.a")
        record = FrontRecord(
            job.fingerprint.entries, parts_of({"fw": job.fingerprint.hex}), b"recipe"
        )
        here.resolver.publish_front(record)
        planned = stages.plan(job.graph_bytes, job.target, Options())
        kernels = [kernel.key for kernel in planned]
        for key in (job.key, record.key, *kernels):
            found = lookup(farm.store, key, trust=trust)
            assert found is not None, key
            assert found.seal is not None
            assert found.seal.compiler == compiler_name()
        fresh = client(farm.url, stages.compile_local, trust=trust)
        assert fresh.resolver.lookup_front(record.key) is not None


def test_a_planted_kernel_never_gets_into_a_signed_artifact(
    client: NewClient, stages: TinyStages
) -> None:
    store, job = MemoryStore(), graph_job("t.a")
    (kernel,) = stages.plan(job.graph_bytes, job.target, Options())
    blobs = {"binary": b"planted"}
    publish(store, kernel.key, Manifest.of("kernel", blobs), blobs)
    with embedded_farm(stages=stages, workers=2, store=store) as farm:
        trust = signed_by([farm.public_key])
        here = client(farm.url, stages.compile_local, trust=trust)
        assert _compile(here, "t.a") is Source.FARM
        found = lookup(store, job.key, trust=trust)
        assert found is not None
        assert b"planted" not in found.blobs.values()


def test_a_planted_artifact_is_compiled_again_and_replaced(
    client: NewClient, stages: TinyStages
) -> None:
    store, job = MemoryStore(), graph_job("t.a")
    blobs = {"program": b"planted"}
    publish(store, job.key, Manifest.of("graph", blobs), blobs)
    with embedded_farm(stages=stages, workers=2, store=store) as farm:
        here = client(farm.url, stages.compile_local, trust=signed_by([farm.public_key]))
        assert _compile(here, "t.a") is Source.FARM
        assert here.counters()["unsigned"] == 1


def test_a_revoked_artifact_is_compiled_again_with_the_new_key(
    client: NewClient, stages: TinyStages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "REVOKED_S", -1.0)
    store = MemoryStore()
    with embedded_farm(stages=stages, workers=2, store=store) as farm:
        old = farm.public_key
        here = client(farm.url, stages.compile_local, trust=signed_by([old]))
        assert _compile(here, "t.a") is Source.FARM
    revocation.change(store, add=[Revocations(signers=frozenset({old.signer}))])
    with embedded_farm(stages=stages, workers=2, store=store) as farm:
        here = client(farm.url, stages.compile_local, trust=signed_by([old, farm.public_key]))
        assert _compile(here, "t.a") is Source.FARM
        found = lookup(store, graph_job("t.a").key)
        assert found is not None
        assert found.seal is not None
        assert found.seal.signer == farm.public_key.signer


class _Served:
    """A gateway behind a cache service with tokens, as a cluster has them."""

    def __init__(self, stack: ExitStack, stages: TinyStages, store: Store, **more: str) -> None:
        pool = MemoryPool(partial(run, stages=stages), 2)
        stack.callback(pool.close)
        key = more.pop("key_file", "")
        config = FarmConfig(token="farm", signing_key=key, **more)  # type: ignore[arg-type]
        spaces: dict[str, Store] = {}
        self.spaces = spaces

        def open_namespace(name: str) -> Store:
            client = CacheClient(self.url, token="w-a", namespace=name, budget=DelayBudget(10.0))
            stack.callback(client.close)
            spaces[name] = client
            return client

        app = open_app(config, pool, store, stages=stages, open_namespace=open_namespace)
        gateway = stack.enter_context(serve_app_in_thread(app))
        grants = (
            *TOKENS,
            Grant("submit", hash_token("s-a"), "team-a"),
            Grant("write", hash_token("w-a"), "team-a"),
        )
        service = ServiceConfig(port=0, farm_url=gateway.url, farm_token="farm", tokens=grants)
        self.url = stack.enter_context(serve_in_thread(service, store=store)).url
        self._stack = stack

    def farm(self, token: str, namespace: str = "") -> FarmClient:
        made = CacheClient(self.url, token=token, namespace=namespace, budget=DelayBudget(10.0))
        self._stack.callback(made.close)
        return FarmClient(made)


def test_front_records_are_taken_from_those_who_may_write(stages: TinyStages) -> None:
    """Nobody can check a recipe, so a rank's word is not signed."""
    store, job = MemoryStore(), graph_job("t.a")
    record = FrontRecord(job.fingerprint.entries, parts_of({"fw": job.fingerprint.hex}), b"lies")
    with ExitStack() as stack:
        served = _Served(stack, stages, store)
        rank = served.farm("submit")
        assert rank.wait(farm_job("t.a"), timeout_s=10.0).state is JobState.DONE
        assert not rank.publish_front(record)
        assert store.get_entry(record.key) is None
        assert served.farm("write").publish_front(record)
        assert store.get_entry(record.key) is not None


def test_a_caller_cannot_claim_a_role(stages: TinyStages) -> None:
    store, job = MemoryStore(), graph_job("t.a")
    record = FrontRecord(job.fingerprint.entries, parts_of({"fw": job.fingerprint.hex}), b"lies")
    with ExitStack() as stack:
        served = _Served(stack, stages, store)
        rank = served.farm("submit")
        assert rank.wait(farm_job("t.a"), timeout_s=10.0).state is JobState.DONE
        rank._transport._transport._headers["x-fusec-role"] = "admin"  # type: ignore[attr-defined]
        assert not rank.publish_front(record)


def test_the_role_for_front_records_can_be_lowered(stages: TinyStages) -> None:
    store, job = MemoryStore(), graph_job("t.a")
    record = FrontRecord(job.fingerprint.entries, parts_of({"fw": job.fingerprint.hex}), b"r")
    with ExitStack() as stack:
        rank = _Served(stack, stages, store, front_role="submit").farm("submit")
        assert rank.wait(farm_job("t.a"), timeout_s=10.0).state is JobState.DONE
        assert rank.publish_front(record)


def test_a_namespaces_artifacts_stay_in_it_and_are_signed_for_it(
    stages: TinyStages, tmp_path: Path
) -> None:
    key, store = SigningKey.generate(), MemoryStore()
    key.write(tmp_path / "farm.key")
    with ExitStack() as stack:
        served = _Served(stack, stages, store, key_file=str(tmp_path / "farm.key"))
        status = served.farm("s-a", "team-a").wait(farm_job("t.a"), timeout_s=10.0)
        assert status.state is JobState.DONE
        name = graph_job("t.a").key
        assert store.get_entry(name) is None, "not in the default namespace"
        inside = served.spaces["team-a"]
        assert lookup(inside, name, trust=signed_by([key.public], "team-a")) is not None
        assert lookup(inside, name, trust=signed_by([key.public])) is None


def test_keys_are_rotated_without_a_miss(
    client: NewClient, stages: TinyStages, tmp_path: Path
) -> None:
    old, new, store = SigningKey.generate(), SigningKey.generate(), MemoryStore()
    old.write(tmp_path / "old")
    new.write(tmp_path / "new")
    write_trusted(tmp_path / "both", [old.public, new.public])
    both = signed_by([old.public, new.public])
    with embedded_farm(
        stages=stages, workers=2, store=store, signing_key=str(tmp_path / "old")
    ) as farm:
        assert _compile(client(farm.url, stages.compile_local, trust=both), "t.a") is Source.FARM
    config = FarmConfig(signing_key=str(tmp_path / "new"), trusted_keys=str(tmp_path / "both"))
    with embedded_farm(
        stages=stages, workers=2, store=store, farm=config, signing_key=str(tmp_path / "new")
    ) as farm:
        here = client(farm.url, stages.compile_local, trust=both)
        assert _compile(here, "t.a") is Source.REMOTE_STORE
        assert _compile(here, "t.a", "t.b") is Source.FARM
        assert stages.count("build t.a") == 1, "the old key's kernel was used"
        assert not {"unknown_signer", "unsigned", "bad_signature"} & set(here.counters())
