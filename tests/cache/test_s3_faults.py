"""Faults of S3: each an error with a hint, a miss or another try; never a wrong byte."""

import json
import sys
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from cache.config import ServiceConfig
from cache.counters import Counters
from cache.embedded import serve_in_thread
from cache.errors import NotReachable, Refused
from cache.s3 import S3Store
from tests.cache.mini_s3 import mini_s3
from tests.cache.samples import key, manifest, noise, put


@pytest.fixture
def s3():
    with mini_s3() as server:
        yield server


def s3_store(server, **more):
    return S3Store(
        "bucket", "p", endpoint=server.url, timeout_s=2.0,
        **{"access_key": "k", "secret_key": "s", **more},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "error", "hint"),
    [
        ((503, "SlowDown"), NotReachable, ""),
        ((503, "ServiceUnavailable"), NotReachable, ""),
        ((500, "InternalError"), NotReachable, ""),
        ((403, "ExpiredToken"), Refused, "expiry"),
        ((403, "RequestTimeTooSkewed"), Refused, "clock"),
        ((400, "AuthorizationHeaderMalformed"), NotReachable, "region"),
        ((301, "PermanentRedirect"), NotReachable, "region"),
    ],
)
def test_an_s3_fault_is_an_error_with_a_hint_and_never_a_wrong_byte(s3, fault, error, hint):
    with s3_store(s3, attempts=1) as store:
        name = put(store, b"x")
        s3.fault = lambda method, path: fault
        for ask in (
            lambda: store.get_blob(name),
            lambda: store.get_entry(key()),
            lambda: store.put_entry(key(), manifest({}).encode()),
            lambda: store.has_blobs([name]),
        ):
            with pytest.raises(error) as caught:
                ask()
            assert hint in caught.value.hint
        s3.fault = None
        assert store.get_blob(name) == b"x"
        assert store.get_entry(key()) is None


def test_an_s3_that_slows_us_down_is_tried_again(s3):
    with s3_store(s3) as store:
        name = put(store, b"x")
        left = [2]

        def sometimes(method, path):
            left[0] -= 1
            return (503, "SlowDown") if left[0] >= 0 else None

        s3.fault = sometimes
        assert store.get_blob(name) == b"x"


PROCESS = """
import json, pathlib, sys
print(pathlib.Path(sys.argv[1]).read_text())
"""


def test_credentials_that_expire_mid_run_are_renewed(s3, tmp_path, monkeypatch):
    """By botocore's own way: a credential process that is asked again when the time is up."""
    program, answer = tmp_path / "program.py", tmp_path / "answer"
    program.write_text(PROCESS)

    def give(access_key, seconds):
        expires = datetime.now(UTC) + timedelta(seconds=seconds)
        made = {
            "Version": 1, "AccessKeyId": access_key, "SecretAccessKey": "s", "SessionToken": "t",
            "Expiration": expires.isoformat(),
        }  # fmt: skip
        answer.write_text(json.dumps(made))

    (tmp_path / "config").write_text(
        f"[default]\ncredential_process = {sys.executable} {program} {answer}\n"
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    give("first", 60.0)  # so little that they are renewed at every use
    s3.valid = {"first"}
    with s3_store(s3, access_key=None, secret_key=None) as store:
        name = put(store, b"x")
        # The old ones end; until the new ones are there it is a refusal, told apart from a miss.
        s3.valid = {"second"}
        with pytest.raises(Refused, match="ExpiredToken"):
            store.get_blob(name)
        give("second", 3600.0)
        assert store.get_blob(name) == b"x"
        assert {"first", "second"} <= set(s3.keys_seen)
    give("third", -60.0)
    with s3_store(s3, access_key=None, secret_key=None) as store:
        with pytest.raises((Refused, NotReachable)) as caught:
            store.get_blob(name)
        assert "expire" in str(caught.value)


def test_a_service_whose_credentials_have_expired_is_alive_not_ready_and_comes_back(s3):
    s3.valid = {"k"}
    with s3_store(s3) as store, serve_in_thread(ServiceConfig(port=0), store=store) as running:
        assert httpx.get(running.url + "/readyz").status_code == 200
        s3.valid = set()
        assert httpx.get(running.url + "/readyz").status_code == 503
        assert httpx.get(f"{running.url}/v1/entries/{key()}").status_code == 503
        assert httpx.get(running.url + "/healthz").status_code == 200
        s3.valid = {"k"}
        assert httpx.get(running.url + "/readyz").status_code == 200


def test_a_name_that_does_not_resolve_is_not_reachable():
    store = S3Store(
        "b", endpoint="http://nowhere.invalid:1", access_key="k", secret_key="s", attempts=1
    )
    with store, pytest.raises(NotReachable):
        store.get_entry(key())


def test_a_body_cut_short_by_s3_is_not_reachable_or_a_miss(s3):
    counters = Counters()
    with s3_store(s3, counters=counters) as store:
        name = put(store, noise(5000))
        (path,) = [path for path in s3.objects if name in path]
        s3.objects[path] = s3.objects[path][:-100]  # an upload that was cut and kept
        assert store.get_blob(name) is None
        assert counters.get("corrupt") == 1
        assert path not in s3.objects
