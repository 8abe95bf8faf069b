"""The images: lint, and their entry points started here from what they install."""

import fnmatch
import importlib.util
import json
import re
import signal
import subprocess

import pytest
import yaml

from cache.auth import hash_token
from cache.config import ServiceConfig
from cache.testing import seaweedfs_server
from farm.config import FarmConfig
from tests.cache.servers import free_port
from tests.deploy.image import DOCKER, cache_environment, instructions, ready, started
from tests.deploy.tools import ROOT, attempt

FILES = sorted(path.name for path in DOCKER.glob("*.Dockerfile"))


@pytest.fixture(scope="module")
def binaries(tmp_path_factory):
    return cache_environment(tmp_path_factory.mktemp("cache-image") / "fusec")


def _compose():
    text = (DOCKER / "compose.yaml").read_text()
    text = re.sub(r"\$\{\w+:[-?]([^}]*)\}", r"\1", text)
    return yaml.safe_load(text)["services"]


def test_the_dockerfiles_are_there():
    assert FILES == ["cache.Dockerfile", "farm.Dockerfile"]


@pytest.mark.parametrize("name", FILES)
def test_lint(name):
    text, error = attempt("hadolint", "--failure-threshold", "style", DOCKER / name)
    assert not error, error + text


@pytest.mark.parametrize("name", FILES)
def test_bases_are_pinned_users_are_not_root_and_sources_exist(name):
    allowed = [
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    ]
    stages, users = [], {}
    for word, rest in instructions(DOCKER / name):
        if word == "FROM":
            base, _, stage = rest.partition(" AS ")
            assert base in stages or base.endswith("@${PYTHON_DIGEST}"), rest
            stages.append(stage)
        elif word == "USER":
            users[stages[-1]] = rest
        elif word == "COPY" and not rest.startswith("--from="):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert any(fnmatch.fnmatch(source.removeprefix("./"), item) for item in allowed)
    finals = {"cache.Dockerfile": [""], "farm.Dockerfile": ["gpu-worker", "farm"]}[name]
    assert {stage: users.get(stage) for stage in finals} == dict.fromkeys(finals, "65532:65532")


def test_the_requirements_are_those_of_the_project():
    spec = importlib.util.spec_from_file_location("requirements", DOCKER / "requirements.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    expected = made.text((ROOT / "pyproject.toml").read_text())
    assert (DOCKER / "cache-requirements.txt").read_text() == expected


def test_the_cache_image_has_no_torch_and_its_commands_answer(binaries, tmp_path):
    entry = json.loads(dict(instructions(DOCKER / "cache.Dockerfile"))["ENTRYPOINT"])
    python = str(binaries / entry[0])
    for command in ("serve", "gc-once", "token", "check"):
        done = subprocess.run(
            [python, *entry[1:], command, "--help"], cwd=tmp_path, capture_output=True, env={}
        )
        assert done.returncode == 0, done.stderr
    for absent in ("torch", "ray", "triton"):
        done = subprocess.run(
            [python, "-c", f"import {absent}"], cwd=tmp_path, capture_output=True, env={}
        )
        assert b"ModuleNotFoundError" in done.stderr


@pytest.mark.s3
def test_the_cache_image_serves_from_s3_and_ends_in_peace(binaries, tmp_path):
    """The compose file's service, with a real S3 server: its entry point, its variables."""
    words = dict(instructions(DOCKER / "cache.Dockerfile"))
    entry, default = json.loads(words["ENTRYPOINT"]), json.loads(words["CMD"])
    token = tmp_path / "token"
    token.write_text("laptop-write")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with seaweedfs_server() as s3:
        environment = {
            **_compose()["cache"]["environment"],
            "PATH": str(binaries),
            "HOME": str(tmp_path),
            "FUSEC_CACHE_HOST": "127.0.0.1",
            "FUSEC_CACHE_PORT": str(port),
            "FUSEC_CACHE_S3_ENDPOINT": s3.endpoint,
            "FUSEC_CACHE_DISK": str(tmp_path / "disk"),
            "AWS_ACCESS_KEY_ID": s3.access_key,
            "AWS_SECRET_ACCESS_KEY": s3.secret_key,
        }
        bucket = _compose()["bucket"]["command"][0].replace("http://s3:8333", s3.endpoint)
        python = str(binaries / entry[0])
        for _ in range(2):  # it is run at every start
            subprocess.run([python, "-c", bucket], env=environment, cwd=tmp_path, check=True)
        command = [python, *entry[1:], *default]
        with started(command, environment, tmp_path) as process:
            ready(process, f"{url}/readyz")
            check = [python, *entry[1:], "check", url, "--token-file", str(token)]
            done = subprocess.run(check, cwd=tmp_path, env={}, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == -signal.SIGTERM  # uvicorn's way to end when it is done
        collect = subprocess.run(
            [python, *entry[1:], "gc-once", "--dry-run"],
            cwd=tmp_path,
            env={k: v for k, v in environment.items() if "HOST" not in k and "TOKENS" not in k},
            capture_output=True,
            text=True,
        )
        assert "namespace (default)" in collect.stdout, collect.stderr


def test_the_compose_file():
    services = _compose()
    service = ServiceConfig.load(services["cache"]["environment"])
    gateway = FarmConfig.load(services["gateway"]["environment"])
    assert service.farm_token == gateway.token
    hashes = {grant.role: grant.sha256 for grant in service.tokens}
    assert hashes["write"] == hash_token(gateway.cache_token)
    assert hashes["submit"] == hash_token("laptop-submit")
    assert "FUSEC_TOKEN=laptop-submit" in (DOCKER / "compose.yaml").read_text()
    assert service.farm_url == f"http://gateway:{gateway.port}"
    assert gateway.cache_url == f"http://cache:{service.port}"
    for name, item in services.items():
        assert item["read_only"], name
        assert item["cap_drop"] == ["ALL"], name
        assert all(port.startswith("127.0.0.1:") for port in item.get("ports", [])), name
        assert not item["image"].endswith(":latest")
        if "build" in item:
            assert (ROOT / item["build"]["dockerfile"]).exists(), name
    for name in ("cache", "gateway"):
        assert int(services[name]["stop_grace_period"].removesuffix("s")) >= 35
