"""A client uses what a trusted key has signed, and nothing else of what a remote holds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cache import revocation
from cache.artifacts import lookup, publish
from cache.config import ServiceConfig
from cache.embedded import RunningService, serve_in_thread
from cache.local import LocalStore
from cache.memory import MemoryStore
from cache.revocation import Revocations
from cache.seal import Signer
from cache.signing import SigningKey, write_trusted
from cache.trust import NOBODY, OWN_STORE, signed_by
from fusec.errors import OptionsError
from fusec.options import Options
from fusec.remote import revoked
from fusec.remote.resolve import Resolver
from fusec.remote.tiers import Source
from fusec.trace import Recorder
from tests.farm.clients import Client, NewClient
from tests.farm.tiny_stages import TinyStages, graph_job, operators

FARM, OTHER = SigningKey.generate("farm"), SigningKey.generate("other")
TRUST = signed_by([FARM.public])
JOB = graph_job("t.a", "t.b")


def _compile(here: Client) -> Source | None:
    ticket = here.resolver.submit(JOB)
    assert operators(ticket.result()) == ["t.a", "t.b"]
    return ticket.source


def _sign(store: MemoryStore, stages: TinyStages, client: NewClient, key: SigningKey) -> None:
    """Put the artifact into a store as a farm with this key would."""
    made = client(None, stages.compile_local)
    _compile(made)
    found = lookup(made.local, JOB.key)
    assert found is not None
    seal = Signer(key, "fusec-1/torch-2").seal(JOB.key, found.manifest.encode())
    publish(store, JOB.key, found.manifest, found.blobs, seal=seal, trust=NOBODY)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def service(store: MemoryStore) -> Iterator[RunningService]:
    with serve_in_thread(ServiceConfig(port=0, entry_ttl_s=0.0), store=store) as running:
        yield running


def test_signed_artifacts_are_used_and_kept_with_their_seal(
    client: NewClient, store: MemoryStore, service: RunningService, stages: TinyStages
) -> None:
    _sign(store, stages, client, FARM)
    here = client(service.url, stages.compile_local, trust=TRUST)
    assert _compile(here) is Source.REMOTE_STORE
    here.resolver.close()
    assert here.local.get_entry(JOB.key) == store.get_entry(JOB.key)
    again = client(service.url, stages.compile_local, trust=TRUST, local=here.local)
    assert _compile(again) is Source.LOCAL_STORE


@pytest.mark.parametrize("planted", ["unsigned", "unknown_signer", "bad_signature"])
def test_planted_artifacts_are_a_miss_with_a_counter_of_their_own(
    client: NewClient,
    store: MemoryStore,
    service: RunningService,
    stages: TinyStages,
    caplog: pytest.LogCaptureFixture,
    planted: str,
) -> None:
    if planted == "unsigned":
        _compile(client(None, stages.compile_local, local=store))
    elif planted == "unknown_signer":
        _sign(store, stages, client, OTHER)
    else:
        _sign(store, stages, client, FARM)
        entry = store.get_entry(JOB.key)
        assert entry is not None
        # Valid elsewhere, replanted here with one bit of its signature changed.
        store.replace_entry(JOB.key, entry[:50] + bytes([entry[50] ^ 1]) + entry[51:])
    caplog.set_level(logging.WARNING)
    here = client(service.url, stages.compile_local, trust=TRUST, policy="off")
    assert _compile(here) is Source.COMPILED_HERE
    assert here.counters()[planted] == 1
    assert len([r for r in caplog.records if r.name == "fusec.remote"]) == 1


def test_a_key_taken_out_of_the_file_ends_what_lies_locally(
    client: NewClient, store: MemoryStore, service: RunningService, stages: TinyStages
) -> None:
    _sign(store, stages, client, OTHER)
    both = signed_by([FARM.public, OTHER.public])
    here = client(service.url, stages.compile_local, trust=both)
    assert _compile(here) is Source.REMOTE_STORE
    here.resolver.close()
    later = client(service.url, stages.compile_local, trust=TRUST, local=here.local, policy="off")
    assert _compile(later) is Source.COMPILED_HERE
    assert later.counters()["unknown_signer"] == 2, "here and there"
    later.resolver.close()
    after = client(None, stages.compile_local, trust=TRUST, local=here.local)
    assert _compile(after) is Source.LOCAL_STORE, "what was compiled here has taken its place"


@pytest.mark.parametrize(
    "what",
    [
        Revocations(keys=frozenset({JOB.key})),
        Revocations(signers=frozenset({FARM.public.signer})),
        Revocations(compilers=frozenset({"fusec-1"})),
    ],
)
def test_a_revocation_reaches_the_local_store_of_a_running_process(
    client: NewClient,
    store: MemoryStore,
    service: RunningService,
    stages: TinyStages,
    monkeypatch: pytest.MonkeyPatch,
    what: Revocations,
) -> None:
    monkeypatch.setattr(revoked, "REFRESH_S", 0.0)
    monkeypatch.setattr(revoked, "STALE_S", 0.0)
    _sign(store, stages, client, FARM)
    here = client(service.url, stages.compile_local, trust=TRUST, policy="off")
    assert _compile(here) is Source.REMOTE_STORE
    assert _compile(here) is Source.LOCAL_STORE
    admin = client(service.url, stages.compile_local).remote
    assert admin is not None
    revocation.change(admin, add=[what])
    assert _compile(here) is Source.COMPILED_HERE
    assert here.counters()["revoked"] >= 1 or here.counters()["graph_misses"] >= 1
    here.resolver.close()
    # A process that starts while the service is away knows what was revoked before.
    assert revocation.read(here.local) == what
    offline = client(None, stages.compile_local, trust=TRUST, local=here.local)
    expected = Source.COMPILED_HERE if what.keys else Source.LOCAL_STORE
    assert _compile(offline) is expected


def test_times_of_the_feed_keep_within_a_minute() -> None:
    from cache.service_state import REVOKED_SECONDS

    assert REVOKED_SECONDS + revoked.STALE_S + revoked.WAIT_S < 60.0


def test_a_service_that_does_not_answer_delays_no_local_hit_for_long(
    client: NewClient, store: MemoryStore, stages: TinyStages
) -> None:
    asked = threading.Event()

    class Silent:
        def get_entry(self, key: str) -> bytes | None:
            asked.wait(5.0)
            return None

    feed = revoked.RevocationFeed(Silent(), store)  # type: ignore[arg-type]
    assert feed.current() == revocation.NONE
    asked.set()


def test_a_remote_without_keys_is_not_used(
    tmp_path: Path,
    stages: TinyStages,
    service: RunningService,
    store: MemoryStore,
    client: NewClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _sign(store, stages, client, FARM)
    options = Options(remote=service.url, cache_dir=tmp_path / "none")
    recorder = Recorder()
    resolver = Resolver.open(options, recorder, compile_local=stages.compile_local)
    ticket = resolver.submit(JOB)
    ticket.result()
    assert ticket.source is Source.COMPILED_HERE
    assert recorder.counters["unsigned"] == 1
    assert "FUSEC_TRUSTED_KEYS" in caplog.text
    resolver.close()


def test_options_say_whom_to_trust(
    tmp_path: Path,
    stages: TinyStages,
    service: RunningService,
    store: MemoryStore,
    client: NewClient,
) -> None:
    _sign(store, stages, client, FARM)
    write_trusted(tmp_path / "keys", [FARM.public])
    base = Options(remote=service.url, cache_dir=tmp_path / "one")
    for options, expected in (
        (replace(base, trusted_keys=tmp_path / "keys"), Source.REMOTE_STORE),
        (replace(base, unsigned=True, cache_dir=tmp_path / "two"), Source.REMOTE_STORE),
    ):
        resolver = Resolver.open(options, Recorder(), compile_local=stages.compile_local)
        ticket = resolver.submit(JOB)
        ticket.result()
        assert ticket.source is expected
        resolver.close()
    with pytest.raises(OptionsError, match="trusted keys"):
        Resolver.open(replace(base, trusted_keys=tmp_path / "absent"), Recorder())


def test_a_namespace_has_a_local_store_of_its_own(tmp_path: Path, stages: TinyStages) -> None:
    for namespace in ("", "team-a"):
        options = Options(cache_dir=tmp_path, namespace=namespace)
        resolver = Resolver.open(options, Recorder(), compile_local=stages.compile_local)
        ticket = resolver.submit(JOB)
        ticket.result()
        assert ticket.source is Source.COMPILED_HERE
        resolver.close()
    assert LocalStore(tmp_path / "ns" / "team-a").get_entry(JOB.key) is not None
    assert lookup(LocalStore(tmp_path), JOB.key, trust=OWN_STORE) is not None
