"""`fusec doctor`: each fault is found and comes with advice; the service is a real one."""

import json
import socket

import pytest

from cache.auth import Grant, hash_token
from cache.config import ServiceConfig
from cache.embedded import serve_in_thread
from cache.signing import SigningKey
from fusec.cli import checks
from fusec.cli.checks import Level
from fusec.cli.parser import run
from fusec.options import Options
from tests.cache.certificates import Authority


@pytest.fixture
def options(tmp_path):
    def make(**changes):
        values = {"FUSEC_CACHE_DIR": str(tmp_path / "cache"), **changes}
        return Options.from_env(values)

    return make


def test_this_machine_passes(options):
    levels = {check.name: check.level for check in checks.run_checks(options())}
    assert levels.pop("remote") == Level.WARN
    assert set(levels.values()) == {Level.OK}
    assert len(levels) == len(checks.CHECKS) - 1


def test_every_line_that_is_not_ok_says_what_to_do(options, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(checks, "_installed", lambda package: None)
    found = checks.run_checks(options(FUSEC_REMOTE="http://127.0.0.1:1"))
    bad = {check.name: check for check in found if check.level is not Level.OK}
    assert {"torch", "compiler", "remote"} <= set(bad)
    assert all(check.advice for check in bad.values())


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("2.10.1", Level.WARN),
        ("2.11.0", Level.OK),
        ("2.14.1+cpu", Level.OK),
        ("2.15.0", Level.WARN),
    ],
)
def test_torch_versions(options, monkeypatch, version, level):
    monkeypatch.setattr(checks, "_installed", lambda package: version)
    assert checks.torch(options()).level is level


def test_a_cache_that_others_may_write_fails(options, tmp_path):
    (tmp_path / "cache").mkdir(mode=0o700)
    assert checks.cache_dir(options()).level is Level.OK
    (tmp_path / "cache").chmod(0o777)
    check = checks.cache_dir(options())
    assert check.level is Level.FAIL
    assert "chmod 700" in check.advice


def test_a_file_in_the_place_of_the_cache_fails(options, tmp_path):
    (tmp_path / "cache").write_text("")
    assert checks.cache_dir(options()).level is Level.FAIL


def test_a_running_service_is_ok(options):
    with serve_in_thread(ServiceConfig(port=0)) as service:
        check = checks.remote(options(FUSEC_REMOTE=service.url))
    assert (check.level, check.advice) == (Level.OK, "")


def test_a_token_is_asked_for_and_accepted(options, tmp_path):
    secret = "a-token-for-this-test"
    grant = Grant("read", hash_token(secret))
    (tmp_path / "token").write_text(secret + "\n")
    with serve_in_thread(ServiceConfig(port=0, tokens=(grant,))) as service:
        without = checks.remote(options(FUSEC_REMOTE=service.url))
        wrong = checks.remote(options(FUSEC_REMOTE=service.url, FUSEC_TOKEN="wrong"))
        token = {"FUSEC_TOKEN_FILE": str(tmp_path / "token")}
        right = checks.remote(options(FUSEC_REMOTE=service.url, **token))
    assert without.level is wrong.level is Level.FAIL
    assert "FUSEC_TOKEN_FILE" in without.advice
    assert right.level is Level.OK


def test_a_missing_token_file_is_a_fail_not_a_crash(options, tmp_path):
    faulty = options(FUSEC_REMOTE="http://127.0.0.1:1", FUSEC_TOKEN_FILE=str(tmp_path / "no"))
    assert checks.run_checks(faulty)[-1].level is Level.FAIL


def test_a_service_without_keys_to_verify_it_fails(options, tmp_path):
    url = {"FUSEC_REMOTE": "http://127.0.0.1:1"}
    without = checks.trust(options(**url))
    assert without.level is Level.FAIL
    assert "FUSEC_TRUSTED_KEYS" in without.advice
    assert checks.trust(options(FUSEC_UNSIGNED="1", **url)).level is Level.WARN
    key = SigningKey.generate()
    (tmp_path / "farm.key.pub").write_text(f"{key.public.text()}\n")
    trusting = options(FUSEC_TRUSTED_KEYS=str(tmp_path / "farm.key.pub"), **url)
    assert checks.trust(trusting).level is Level.OK


def test_misspelt_variables_are_named(options, monkeypatch):
    for name in ("FUSEC_REMOTTE", "FUSEC_FARM_PORT", "FUSEC_POLICY"):
        monkeypatch.setenv(name, "")
    check = checks.variables(options())
    assert check.level is Level.WARN
    assert (check.found, check.advice) == (
        "nobody reads FUSEC_REMOTTE",
        "did you mean FUSEC_REMOTE?",
    )


def test_a_service_is_asked_with_the_certificates_of_the_options(options, tmp_path):
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    config = ServiceConfig(port=0, tls_cert=str(pair.cert), tls_key=str(pair.key))
    with serve_in_thread(config) as service:
        url = {"FUSEC_REMOTE": service.url}
        assert checks.remote(options(**url)).level is Level.FAIL
        assert checks.remote(options(FUSEC_TLS_CA=str(authority.cert), **url)).level is Level.OK
    missing = checks.run_checks(options(FUSEC_TLS_CA=str(tmp_path / "none"), **url))
    assert missing[-1].level is Level.FAIL


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://[bad"])
def test_an_address_with_nothing_behind_it_fails(options, url):
    assert checks.remote(options(FUSEC_REMOTE=url)).level is Level.FAIL


def test_a_silent_server_does_not_hang_the_doctor(options, monkeypatch):
    monkeypatch.setattr(checks, "PROBE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert checks.remote(options(FUSEC_REMOTE=url)).level is Level.FAIL


def test_exit_code_and_json(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("FUSEC_REMOTE", raising=False)
    assert run(["doctor", "--json"]) == 0
    assert {line["name"] for line in json.loads(capsys.readouterr().out)} >= {"torch", "cache"}
    monkeypatch.setenv("FUSEC_REMOTE", "http://127.0.0.1:1")
    assert run(["doctor"]) == 1
    assert "FAIL remote" in capsys.readouterr().out
