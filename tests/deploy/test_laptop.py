"""The laptop's chart for real: what it renders is run as processes, and its `helm test` passes.

Each container's own command and variables; only addresses and folders are this machine's.
"""

import json
import os
import subprocess
import sys

import pytest

from cache.signing import SigningKey, public_path
from tests.cache.servers import free_port
from tests.deploy.image import DOCKER, instructions, ready, started
from tests.deploy.manifests import environment, load, program
from tests.deploy.tools import CHART, ROOT, run

PYTHON = sys.executable
COMPILE_S = 600


@pytest.fixture
def documents(tmp_path):
    key = tmp_path / "farm.key"
    SigningKey.generate("laptop").write(key)
    files = [f"signing.key={key}", f"signing.trustedKeys={public_path(key)}"]
    given = [part for text in files for part in ("--set-file", text)]
    values = CHART / "values-laptop.yaml"
    return load(run("helm", "template", "fusec", CHART, "-n", "fusec", "--values", values, *given))


class Machine:
    """Where the pods' containers run: ports and folders of this machine for theirs."""

    def __init__(self, folder, documents):
        self._folder = folder
        self._documents = documents
        self.cache, self.gateway = free_port(), free_port()
        self._names = {
            "http://fusec-cache.fusec.svc:8700": f"http://127.0.0.1:{self.cache}",
            "http://fusec-gateway.fusec.svc:8701": f"http://127.0.0.1:{self.gateway}",
            "/var/lib/fusec": str(folder / "store"),
            "0.0.0.0": "127.0.0.1",
        }

    def command(self, where, name):
        """A container's command line and variables."""
        found = program(self._documents, where, name)
        root = self._folder / name
        root.mkdir()
        env = environment(found, self._documents, {}, root)
        ports = {"FUSEC_CACHE_PORT": self.cache, "FUSEC_FARM_PORT": self.gateway}
        env = {n: str(ports.get(n, self._here(value))) for n, value in env.items()}
        env |= {"HOME": str(root), "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
        if "FUSEC_CACHE_DIR" in env:
            env["FUSEC_CACHE_DIR"] = str(root / "store")
        args = [self._here(text) for text in found.container.get("args", [])]
        for mount in found.container["volumeMounts"]:
            args = [
                text.replace(mount["mountPath"], f"{root}{mount['mountPath']}") for text in args
            ]
        image = "cache" if "fusec-cache" in found.container["image"] else "farm"
        words = dict(instructions(DOCKER / f"{image}.Dockerfile"))
        command = found.container.get("command", json.loads(words["ENTRYPOINT"]))
        known = {"python": [PYTHON], "fusec": [PYTHON, "-m", "fusec"]}
        return [*known[command[0]], *command[1:], *args], env

    def run(self, where, name):
        """Run a container to its end; what it printed. Fails the test where it fails."""
        command, env = self.command(where, name)
        done = subprocess.run(
            command, env=env, cwd=self._folder, capture_output=True, text=True, timeout=COMPILE_S
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _here(self, text):
        for name, value in self._names.items():
            text = text.replace(name, value)
        return text


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_put_get_compile_and_hit(documents, tmp_path):
    machine = Machine(tmp_path, documents)
    cache, cache_env = machine.command("Deployment/fusec-cache", "cache")
    gateway, gateway_env = machine.command("Deployment/fusec-gateway", "gateway")
    service_ready = f"http://127.0.0.1:{machine.cache}/readyz"
    farm_ready = f"http://127.0.0.1:{machine.gateway}/readyz"
    test = "Pod/fusec-test"
    with (
        started(cache, cache_env, tmp_path) as service,
        started(gateway, gateway_env, tmp_path) as farm,
    ):
        ready(service, service_ready)
        assert "bytes put in" in machine.run(test, "put-and-get")
        ready(farm, farm_ready)
        first = machine.run(test, "compile")
        second = machine.run(test, "hit")
    assert "farm" in first
    assert "farm" not in second
    assert "remote" in second
