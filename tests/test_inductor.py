"""Inductor's own caches in the cache service: signed, bounded, apart, and off unless asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.config import ServiceConfig
from cache.embedded import RunningService, serve_in_thread
from cache.seal import Signer
from cache.signing import SigningKey
from cache.trust import signed_by
from fusec import inductor
from fusec.errors import OptionsError
from fusec.inductor import Shelf, key_of, share
from fusec.options import Options
from tests import inductor_jobs

WRITER, OTHER = SigningKey.generate(), SigningKey.generate()
TRUST = signed_by([WRITER.public], "inductor")


@pytest.fixture
def service() -> Iterator[RunningService]:
    with serve_in_thread(ServiceConfig(port=0)) as running:
        yield running


@pytest.fixture
def client(service: RunningService) -> Iterator[CacheClient]:
    with CacheClient(service.url, namespace="inductor", budget=DelayBudget(10.0)) as made:
        yield made


def _writer(client: CacheClient, key: SigningKey = WRITER) -> Shelf:
    return Shelf(client, TRUST, Signer(key, "torch-2", "inductor"))


def test_a_value_is_there_for_the_next_job(client: CacheClient) -> None:
    shelf = _writer(client)
    assert shelf.get("pt2:fx::k:c1") is None
    shelf.put("pt2:fx::k:c1", b"opaque")
    assert Shelf(client, TRUST, None).get("pt2:fx::k:c1") == b"opaque"
    assert shelf.counters.snapshot() == {"misses": 1, "puts": 1}


def test_what_no_trusted_writer_signed_is_a_miss(client: CacheClient) -> None:
    _writer(client, OTHER).put("k", b"planted")
    assert client.get_entry(key_of("k")) is not None
    assert Shelf(client, TRUST, None).get("k") is None


def test_who_holds_no_key_writes_nothing(client: CacheClient) -> None:
    Shelf(client, TRUST, None).put("k", b"v")
    assert client.get_entry(key_of("k")) is None


def test_values_are_bounded(client: CacheClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "MAX_VALUE", 10)
    shelf = _writer(client)
    shelf.put("k", bytes(11))
    assert client.get_entry(key_of("k")) is None
    assert shelf.counters.snapshot() == {"too_large": 1}


def test_they_lie_in_a_namespace_of_their_own(client: CacheClient, service: RunningService) -> None:
    _writer(client).put("k", b"v")
    with CacheClient(service.url, budget=DelayBudget(10.0)) as default:
        assert default.get_entry(key_of("k")) is None


def test_a_dead_service_is_a_miss() -> None:
    with CacheClient("http://127.0.0.1:1", namespace="inductor") as dead:
        shelf = _writer(dead)
        for _ in range(5):
            shelf.put("k", b"v")
            assert shelf.get("k") is None
        assert shelf.counters.snapshot() == {"errors": 10}


def test_it_wants_a_remote_and_keys(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="remote"):
        share(Options())
    with pytest.raises(OptionsError, match="verify"):
        share(Options(remote="http://127.0.0.1:1", unsigned=True))
    with pytest.raises(OptionsError):
        share(Options(remote="http://127.0.0.1:1", inductor_key=tmp_path / "absent"))


def test_it_is_undone(tmp_path: Path) -> None:
    from torch._inductor import config, remote_cache

    WRITER.write(tmp_path / "key")
    before = config.fx_graph_remote_cache
    sharing = share(Options(remote="http://127.0.0.1:1", inductor_key=tmp_path / "key"))
    assert config.fx_graph_remote_cache is True
    assert remote_cache.RemoteFxGraphCache.backend_override_cls is not None
    sharing.stop()
    assert config.fx_graph_remote_cache == before
    assert remote_cache.RemoteFxGraphCache.backend_override_cls is None


@pytest.mark.extended
def test_a_fresh_process_finds_what_stock_inductor_compiled(
    service: RunningService, tmp_path: Path
) -> None:
    cold, warm = inductor_jobs.cold_and_warm(service, tmp_path, "cpu")
    for kind in ("RemoteAOTAutogradCache", "RemoteFxGraphCache"):
        assert cold[kind]["hit"] == 0
        assert cold[kind]["put"] > 0
        assert warm[kind] == {"hit": cold[kind]["put"], "miss": 0, "put": 0}
