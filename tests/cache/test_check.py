"""`python -m cache check`: a round trip through a real service, and what stands in its way."""

import pytest

from cache.__main__ import main
from cache.auth import Grant, hash_token
from cache.config import ServiceConfig
from cache.embedded import serve_in_thread
from cache.memory import MemoryStore


class Forgetful(MemoryStore):
    """Takes blobs and keeps none."""

    def put_blob(self, digest, data):
        pass

    def put_frame(self, digest, frame):
        pass


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text("a-token\n")
    return str(path)


def _config(role):
    grants = (Grant(role, hash_token("a-token")),)
    return ServiceConfig(port=0, tokens=grants, memory_bytes=0)


def test_a_round_trip(token, capsys):
    store = MemoryStore()
    with serve_in_thread(_config("write"), store=store) as service:
        assert main(["check", service.url, "--token-file", token]) == 0
    out = capsys.readouterr().out
    assert "65536 bytes put in" in out
    assert "records change under their condition alone" in out
    assert store.describe()["blobs"] == 1


def test_a_role_that_may_not_write(token, capsys):
    with serve_in_thread(_config("read")) as service:
        assert main(["check", service.url, "--token-file", token]) == 1
    assert "write" in capsys.readouterr().err


def test_a_service_that_does_not_keep_what_it_takes(token, capsys):
    with serve_in_thread(_config("write"), store=Forgetful()) as service:
        assert main(["check", service.url, "--token-file", token]) == 1
    assert "has not got it" in capsys.readouterr().err


def test_nobody_there_and_no_token(tmp_path, capsys):
    assert main(["check", "http://127.0.0.1:9"]) == 1
    assert "127.0.0.1:9" in capsys.readouterr().err
    missing = str(tmp_path / "none")
    assert main(["check", "http://127.0.0.1:9", "--token-file", missing]) == 2
    assert missing in capsys.readouterr().err
