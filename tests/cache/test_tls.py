"""TLS and mutual TLS between client and service."""

import pytest

from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.config import ServiceConfig
from cache.embedded import serve_in_thread
from cache.errors import ConfigError, NotReachable
from cache.tls import ClientTls, ServerTls
from tests.cache.certificates import Authority
from tests.cache.samples import put


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server(authority):
    pair = authority.issue("server")
    return {"tls_cert": str(pair.cert), "tls_key": str(pair.key)}


def client(url, tls):
    return CacheClient(url, tls=tls, budget=DelayBudget(5.0))


def test_blobs_travel_over_tls(authority, server):
    with serve_in_thread(ServiceConfig(port=0, **server)) as running:
        assert running.url.startswith("https://")
        with client(running.url, ClientTls(ca=authority.cert)) as made:
            assert made.get_blob(put(made, b"x")) == b"x"


def test_server_of_another_authority_is_not_reachable(server, tmp_path):
    other = Authority(tmp_path, "other")
    with serve_in_thread(ServiceConfig(port=0, **server)) as running:
        for tls in (None, ClientTls(ca=other.cert)):
            with client(running.url, tls) as made, pytest.raises(NotReachable, match="certificate"):
                made.get_entry("graph/" + "0" * 64)


def test_mutual_tls_asks_for_a_certificate_of_its_authority(authority, server, tmp_path):
    config = ServiceConfig(port=0, **server, tls_client_ca=str(authority.cert))
    mine, other = authority.issue("client"), Authority(tmp_path, "other").issue("stranger")
    with serve_in_thread(config) as running:
        with client(running.url, ClientTls(authority.cert, mine.cert, mine.key)) as made:
            assert made.get_blob(put(made, b"x")) == b"x"
        for tls in (
            ClientTls(authority.cert),
            ClientTls(authority.cert, other.cert, other.key),
        ):
            with client(running.url, tls) as made, pytest.raises(NotReachable):
                made.get_entry("graph/" + "0" * 64)


@pytest.mark.parametrize(
    "made",
    [
        lambda path: ClientTls(cert=path).context(),
        lambda path: ClientTls(ca=path / "none").context(),
        lambda path: ServerTls(cert=str(path)),
        lambda path: ServerTls(client_ca=str(path)),
        lambda path: ServerTls(str(path / "none"), str(path / "none")),
    ],
)
def test_incomplete_settings_are_refused(made, tmp_path):
    with pytest.raises(ConfigError):
        made(tmp_path)
