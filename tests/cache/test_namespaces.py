"""Namespaces, tokens and revocations of a service: who may do and learn what, and where."""

import time

import httpx
import pytest

from cache import service_state
from cache.artifacts import lookup, publish
from cache.auth import EVERYWHERE, Grant, hash_token
from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.config import ServiceConfig
from cache.digest import digest
from cache.embedded import serve_in_thread
from cache.errors import ConfigError, ProtocolError, Refused
from cache.memory import MemoryStore
from cache.revocation import Revocations, change, read
from cache.seal import Signer
from cache.signing import SigningKey, write_trusted
from tests.cache.samples import BLOBS, key, manifest, put

FARM = SigningKey.generate()
TOKENS = {
    "a-write": Grant("write", hash_token("a-write"), "team-a"),
    "a-read": Grant("read", hash_token("a-read"), "team-a"),
    "b-write": Grant("write", hash_token("b-write"), "team-b"),
    "default": Grant("write", hash_token("default")),
    "admin": Grant("admin", hash_token("admin"), EVERYWHERE),
}


@pytest.fixture(params=["memory", "file"])
def service(request, tmp_path):
    store = "memory:" if request.param == "memory" else f"file://{tmp_path / 'store'}"
    config = ServiceConfig(port=0, store=store, tokens=tuple(TOKENS.values()))
    with serve_in_thread(config) as running:
        yield running


_MADE: list[CacheClient] = []


@pytest.fixture(autouse=True)
def _closed():
    yield
    while _MADE:
        _MADE.pop().close()


def client(service, token, namespace=""):
    made = CacheClient(service.url, token=token, namespace=namespace, budget=DelayBudget(30.0))
    _MADE.append(made)
    return made


def test_a_namespace_keeps_its_artifacts_to_itself(service):
    publish(client(service, "a-write", "team-a"), key(), manifest(), BLOBS)
    assert lookup(client(service, "a-read", "team-a"), key()) is not None
    with client(service, "b-write", "team-b") as other:
        assert other.get_entry(key()) is None
        assert other.lookup_many([key()]) == {}
        assert other.has_blobs(manifest().digests()) == set(), "nor learns which blobs exist"
        assert other.get_blob(digest(BLOBS["program"])) is None
        assert other.get_blobs(manifest().digests()).found == {}
    with client(service, "default") as default:
        assert default.get_entry(key()) is None
        assert default.has_blobs(manifest().digests()) == set()


def test_a_token_counts_in_its_namespace_only(service):
    publish(client(service, "a-write", "team-a"), key(), manifest(), BLOBS)
    for token, namespace in (
        ("a-write", "team-b"), ("a-write", ""), ("b-write", "team-a"), ("default", "team-a"),
    ):  # fmt: skip
        with client(service, token, namespace) as made:
            for ask in (
                lambda made=made: made.get_entry(key()),
                lambda made=made: made.has_blobs([digest(b"x")]),
                lambda made=made: put(made, b"x"),
                lambda made=made: made.describe(),
                lambda made=made: read(made),
            ):
                with pytest.raises(Refused, match="403"):
                    ask()
    for namespace in ("team-a", "team-b", ""):
        assert put(client(service, "admin", namespace), b"x")


def test_a_ranks_token_cannot_write(service):
    with client(service, "a-read", "team-a") as rank:
        with pytest.raises(Refused, match="the role write is needed"):
            put(rank, b"x")
        with pytest.raises(Refused, match="403"):
            rank.replace_entry(key(), manifest({}).encode())
        with pytest.raises(Refused, match="403"):
            change(rank, add=[Revocations(keys=frozenset({key()}))])
    with client(service, "a-write", "team-a") as writer, pytest.raises(Refused, match="admin"):
        change(writer, add=[Revocations(keys=frozenset({key()}))])


def test_refusals_of_a_namespace_are_alike_whether_it_holds_anything(service):
    publish(client(service, "a-write", "team-a"), key(), manifest(), BLOBS)
    headers = {"authorization": "Bearer b-write"}
    replies = [
        httpx.get(
            f"{service.url}/v1/entries/{name}", headers={**headers, "x-fusec-namespace": space}
        )
        for name in (key(), key(1))
        for space in ("team-a", "nobodys")
    ]
    assert {(reply.status_code, reply.content) for reply in replies} == {(403, replies[0].content)}


@pytest.mark.parametrize("name", ["UPPER", "a/b", "..", "a" * 40, "-a", "a\n"])
def test_odd_namespaces_are_refused(name):
    with pytest.raises(ProtocolError):
        CacheClient("http://127.0.0.1:1", namespace=name)
    with pytest.raises(ConfigError):
        Grant("read", "0" * 64, name)
    with serve_in_thread(ServiceConfig(port=0)) as open_service:
        header = {"x-fusec-namespace": name.strip()}
        reply = httpx.get(f"{open_service.url}/v1/entries/{key()}", headers=header)
        assert reply.status_code == (404 if name.strip() == "a" else 400)


def test_namespaces_are_bounded(monkeypatch):
    monkeypatch.setattr(service_state, "MAX_NAMESPACES", 3)
    with serve_in_thread(ServiceConfig(port=0)) as running:
        statuses = [
            httpx.get(
                f"{running.url}/v1/entries/{key()}", headers={"x-fusec-namespace": f"n{i}"}
            ).status_code
            for i in range(4)
        ]
    assert statuses == [404, 404, 400, 400]


def test_a_file_store_keeps_namespaces_in_folders(tmp_path):
    config = ServiceConfig(port=0, store=f"file://{tmp_path}")
    with serve_in_thread(config) as running:
        put(client(running, None, "team-a"), b"x")
    assert [path.name for path in tmp_path.rglob("*.zst")] == [f"{digest(b'x')}.zst"]
    assert (tmp_path / "ns" / "team-a" / "v1").is_dir()


def test_tokens_are_rotated_with_overlap():
    """Old and new are good at the same time; the old one ends when its hash is taken out."""
    old, new = Grant("read", hash_token("old")), Grant("read", hash_token("new"))
    outcomes = []
    for grants in ((old,), (old, new), (new,)):
        with serve_in_thread(ServiceConfig(port=0, tokens=grants)) as running:
            for token in ("old", "new"):
                headers = {"authorization": f"Bearer {token}"}
                outcomes.append(httpx.get(f"{running.url}/v1/stats", headers=headers).status_code)
    assert outcomes == [200, 401, 200, 200, 401, 200]


def test_tokens_with_namespaces_are_parsed():
    assert Grant.parse(f"read:{'0' * 64}:team-a") == Grant("read", "0" * 64, "team-a")
    assert Grant.parse(f"admin:{'0' * 64}:*").reaches("anything")
    assert not Grant.parse(f"admin:{'0' * 64}").reaches("anything")


# -- trust at the service --------------------------------------------------------------------------


def entry(signer=FARM, name=None):
    data = manifest().encode()
    return Signer(signer, "fusec-1").seal(name or key(), data).wrap(data)


def test_a_service_with_keys_takes_signed_entries_only(tmp_path):
    write_trusted(tmp_path / "keys", [FARM.public])
    config = ServiceConfig(port=0, trusted_keys=str(tmp_path / "keys"))
    with serve_in_thread(config) as running, client(running, None) as made:
        for data in BLOBS.values():
            put(made, data)
        for bad in (manifest().encode(), entry(SigningKey.generate()), entry(name=key(1))):
            with pytest.raises(Refused, match="403"):
                made.put_entry(key(), bad)
            with pytest.raises(Refused, match="403"):
                made.replace_entry(key(), bad)
        assert made.get_entry(key()) is None
        assert made.put_entry(key(), entry())
    (tmp_path / "keys").write_text("")
    with pytest.raises(ConfigError), serve_in_thread(config):
        pass


def test_revoked_entries_are_not_served_nor_taken(monkeypatch):
    store = MemoryStore()
    for i in (0, 1):
        data = manifest().encode()
        seal = Signer(FARM, "fusec-1").seal(key(i), data)
        publish(store, key(i), manifest(), BLOBS, seal=seal)
    with serve_in_thread(ServiceConfig(port=0), store=store) as running:
        made = client(running, None)
        assert made.get_entry(key()) is not None
        change(made, add=[Revocations(keys=frozenset({key()}))])
        assert made.get_entry(key()) is None, "in force at once where it was changed"
        assert set(made.lookup_many([key(), key(1)])) == set()  # nobody's keys are trusted here
        assert made.get_entry(key(1)) is not None
        with pytest.raises(Refused, match="revoked"):
            made.replace_entry(key(), entry())
        text = httpx.get(running.url + "/metrics").text
        assert 'fusec_cache_misses_total{kind="graph",reason="revoked"} 2.0' in text
        change(made, remove=[Revocations(keys=frozenset({key()}))])
        assert made.get_entry(key()) is not None


def test_another_replica_learns_of_a_revocation(monkeypatch):
    monkeypatch.setattr(service_state, "REVOKED_SECONDS", 0.2)
    store = MemoryStore()
    publish(store, key(), manifest(), BLOBS)
    with (
        serve_in_thread(ServiceConfig(port=0), store=store) as one,
        serve_in_thread(ServiceConfig(port=0), store=store) as two,
    ):
        assert client(two, None).get_entry(key()) is not None
        change(client(one, None), add=[Revocations(digests=frozenset({manifest().digests()[0]}))])
        time.sleep(0.3)
        assert client(two, None).get_entry(key()) is None


def test_a_list_that_does_not_decode_is_refused_and_the_old_one_counts():
    store = MemoryStore()
    publish(store, key(), manifest(), BLOBS)
    with serve_in_thread(ServiceConfig(port=0), store=store) as running:
        change(client(running, None), add=[Revocations(keys=frozenset({key()}))])
        reply = httpx.put(running.url + "/v1/revoked", content=b"\x01")
        assert reply.status_code == 400
        assert client(running, None).get_entry(key()) is None
