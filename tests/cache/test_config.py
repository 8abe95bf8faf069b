"""Settings: known names only, sense checked, secrets not shown; the command line."""

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from cache.artifacts import lookup, publish
from cache.auth import Grant, hash_token
from cache.client import CacheClient
from cache.config import ServiceConfig, is_loopback
from cache.counters import Counters
from cache.errors import ConfigError, NotReachable
from cache.local import LocalStore
from cache.open_store import open_store
from tests.cache.samples import key, manifest, noise
from tests.cache.servers import fixed, free_port, head, raw_server

ROOT = Path(__file__).parents[2]
HASH = hash_token("secret")


def command(*arguments, **env):
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "cache", *arguments],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_defaults_are_safe():
    config = ServiceConfig.load({})
    assert config == ServiceConfig()
    assert is_loopback(config.host)


def test_environment_and_flags():
    env = {
        "FUSEC_CACHE_PORT": "9000",
        "FUSEC_CACHE_STORE": "file:///tmp/x",
        "FUSEC_CACHE_ENTRY_TTL_S": "0.5",
        "FUSEC_CACHE_TOKENS": f"read:{HASH}, write:{HASH}",
        "FUSEC_CACHE_INSECURE": "true",
        "FUSEC_CACHE_DIR": "/the/clients",
        "FUSEC_REMOTE": "http://x",
        "HOME": "/root",
    }
    config = ServiceConfig.load(env, {"port": "9001"})
    assert config.port == 9001
    assert config.store == "file:///tmp/x"
    assert config.entry_ttl_s == 0.5
    assert config.tokens == (Grant("read", HASH), Grant("write", HASH))
    assert config.insecure


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("FUSEC_CACHE_PROT", "1", "unknown setting FUSEC_CACHE_PROT"),
        ("FUSEC_CACHE_PORT", "many", "FUSEC_CACHE_PORT: 'many' is not a int"),
        ("FUSEC_CACHE_PORT", "70000", "port 70000"),
        ("FUSEC_CACHE_GC_GRACE_S", "nan", "FUSEC_CACHE_GC_GRACE_S: 'nan' is not a float"),
        ("FUSEC_CACHE_STORE", "ftp://x", "of no known kind"),
        ("FUSEC_CACHE_STORE", "file:relative", "of no known kind"),
        ("FUSEC_CACHE_INSECURE", "perhaps", "is not a bool"),
        ("FUSEC_CACHE_MEMORY_BYTES", "-1", "cannot be negative"),
        ("FUSEC_CACHE_HOST", "0.0.0.0", "without tokens"),
        ("FUSEC_CACHE_HOST", "cache.example", "without tokens"),
        ("FUSEC_CACHE_DISK", "/tmp/x", "the store is not s3"),
        ("FUSEC_CACHE_FARM_URL", "ray://x", "not an http address"),
        ("FUSEC_CACHE_TOKENS", "boss:" + HASH, "role 'boss'"),
        ("FUSEC_CACHE_TOKENS", "read:the-token-itself", "not a SHA-256"),
        ("FUSEC_CACHE_TOKENS", "the-token-itself", "role:sha256"),
    ],
)
def test_senseless_settings_are_refused(name, text, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        ServiceConfig.load({name: text})
    assert "the-token-itself" not in str(caught.value)


def test_other_interfaces_with_tokens_or_on_request():
    ServiceConfig(host="0.0.0.0", tokens=(Grant("read", HASH),))
    ServiceConfig(host="0.0.0.0", insecure=True)


def test_secrets_are_not_shown():
    config = ServiceConfig(farm_token="hunter2", tokens=(Grant("read", HASH),))
    assert "hunter2" not in repr(config)
    assert HASH not in repr(config)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "::1", "[::1]"])
def test_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "localhost.evil.example"])
def test_not_loopback(host):
    assert not is_loopback(host)


def test_file_store_is_opened(tmp_path):
    store = open_store(ServiceConfig(store=f"file://{tmp_path}/with%20space"), Counters())
    assert isinstance(store, LocalStore)
    assert (tmp_path / "with space").is_dir()


def test_help_teaches():
    text = command("serve", "--help").stdout
    for word in ("--store", "s3://bucket", "FUSEC_REMOTE", "FUSEC_CACHE_TOKENS", "AWS_"):
        assert word in text
    assert "--tokens" not in text


def test_token_command_gives_what_the_service_takes():
    lines = command("token", "--role", "write").stdout.splitlines()
    token, grant = (line.split()[-1] for line in lines)
    assert Grant.parse(grant) == Grant("write", hash_token(token))


def test_wrong_settings_exit_with_2():
    done = command("serve", FUSEC_CACHE_PROT="1")
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown setting FUSEC_CACHE_PROT")
    done = command("serve", "--host", "0.0.0.0")
    assert done.returncode == 2
    assert "without tokens" in done.stderr


@contextmanager
def served(store, *flags):
    """A service in a process of its own: (process, address)."""
    port = free_port()
    child = subprocess.Popen(
        [
            *(sys.executable, "-W", "error", "-m", "cache", "serve"),
            *("--port", str(port), "--store", f"file://{store}", *flags),
        ],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                assert httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
                break
            except httpx.ConnectError:
                assert time.monotonic() < deadline
                assert child.poll() is None
                time.sleep(0.05)
        yield child, f"http://127.0.0.1:{port}"
    finally:
        child.kill()
        child.communicate()


def test_serve_runs_and_ends_on_sigterm(tmp_path):
    with served(tmp_path) as (child, _):
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(timeout=10)
    assert child.returncode in (0, -signal.SIGTERM)
    assert "Traceback" not in errors


def test_requests_to_the_farm_are_not_logged_one_by_one(tmp_path):
    with (
        raw_server(fixed(head("404 Not Found", 0))) as farm,
        served(tmp_path, "--farm-url", farm) as (child, url),
    ):
        assert httpx.get(f"{url}/v1/compile/{'a' * 64}").status_code == 404
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(timeout=60)
    assert farm not in errors


def test_free_port_is_told(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "cache", "serve", "--port", "0"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        address = child.stderr.readline().split()[-1]
        assert httpx.get(address + "/healthz").status_code == 200
    finally:
        child.kill()
        child.communicate()


def test_service_killed_in_the_middle_of_puts_leaves_only_whole_artifacts(tmp_path):
    published = []

    def write(url):
        with suppress(NotReachable), CacheClient(url) as client:
            for i in itertools.count():
                blobs = {"a": noise(100_000, i), "b": b"%d" % i}
                publish(client, key(i), manifest(blobs), blobs)
                published.append(i)

    with served(tmp_path) as (child, url):
        writer = threading.Thread(target=write, args=(url,))
        writer.start()
        while len(published) < 10:
            assert writer.is_alive()
            time.sleep(0.005)
        child.send_signal(signal.SIGKILL)
        writer.join(20)
        assert not writer.is_alive()
    store = LocalStore(tmp_path)
    assert store.describe()["entries"] - len(published) in (0, 1)
    for i in range(store.describe()["entries"]):
        assert lookup(store, key(i)) is not None
