"""What must hold when things go wrong, each behaviour by its name."""

import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from cache.artifacts import lookup, publish
from cache.breaker import FIRST_RETRIES, DelayBudget
from cache.client import CacheClient
from cache.config import ServiceConfig
from cache.embedded import serve_in_thread
from cache.errors import NotReachable
from cache.local import LocalStore
from cache.manifest import Manifest
from cache.memory import MemoryStore
from cache.seal import Signer
from cache.signing import SigningKey
from cache.trust import signed_by
from tests.cache.samples import BLOBS, key, manifest, noise, put
from tests.cache.servers import raw_server

ROOT = Path(__file__).parents[2]


# -- corruption ------------------------------------------------------------------------------------


FARM = SigningKey.generate()


def corruptions(content, rng, wanted):
    """Every byte flipped and every truncation, then random damage until there are enough."""
    for at in range(len(content)):
        yield content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]
        yield content[:at]
    for _ in range(wanted - 2 * len(content)):
        changed = bytearray(content)
        for _ in range(rng.randrange(1, 5)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        if rng.random() < 0.3:
            del changed[rng.randrange(len(changed)) :]
        yield bytes(changed)


def sweep(folder, wanted):
    """Damage each file of a signed artifact in many ways; how many of them were loaded wrongly."""
    rng = random.Random(5)
    store = LocalStore(folder)
    blobs = {"program": b"a plan\n" * 40, "kernel/0": noise(300)}
    made = Manifest.of("graph", blobs, b"meta")
    seal = Signer(FARM, "fusec-1").seal(key(), made.encode())
    publish(store, key(), made, blobs, seal=seal)
    trust = signed_by([FARM.public])
    paths = [path for path in (folder / "v1").rglob("*") if path.is_file() and path.name != "lock"]
    assert len(paths) == 3
    done = loaded = 0
    for path in paths:
        content = path.read_bytes()
        for bad in corruptions(content, rng, wanted // 3):
            if bad == content:
                continue
            path.write_bytes(bad)
            found = lookup(store, key(), trust=trust)
            loaded += found is not None and found.blobs != blobs
            # A byte that says nothing, as a flag of the frame, may give the same blob.
            done += 1
        path.write_bytes(content)
    assert lookup(store, key(), trust=trust).blobs == blobs
    return done, loaded


def test_no_corruption_of_a_blob_a_manifest_or_an_entry_is_loaded(tmp_path):
    done, loaded = sweep(tmp_path, 2400)
    assert done > 2000
    assert loaded == 0


@pytest.mark.extended
def test_none_of_100000_corruptions_is_loaded(tmp_path):
    done, loaded = sweep(tmp_path, 100_500)
    assert done >= 100_000
    assert loaded == 0


# -- crashes ---------------------------------------------------------------------------------------


CRASH = """
import os, sys
from cache.artifacts import lookup, publish
from cache.local import LocalStore
from cache.manifest import Manifest

root = sys.argv[1]
blobs = {"a": b"a" * 5000, "b": os.urandom(2000)}
calls = ("open", "write", "fsync", "close", "link", "replace", "utime", "unlink", "mkdir")
real = {name: getattr(os, name) for name in calls}
step = 0
while True:
    step += 1
    root_of_step = f"{root}/{step}"
    pid = os.fork()
    if not pid:
        left = [step]

        def dies(name):
            def call(*arguments, **more):
                left[0] -= 1
                if not left[0]:
                    if name == "write":
                        real["write"](arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                    os.kill(os.getpid(), 9)
                return real[name](*arguments, **more)

            return call

        for name in calls:
            setattr(os, name, dies(name))
        store = LocalStore(root_of_step)
        publish(store, "graph/" + "0" * 64, Manifest.of("graph", blobs), blobs)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    store = LocalStore(root_of_step)
    key = "graph/" + "0" * 64
    if store.get_entry(key) is not None:
        assert lookup(store, key).blobs == blobs, f"half an artifact after step {step}"
    publish(store, key, Manifest.of("graph", blobs), blobs)
    assert lookup(store, key).blobs == blobs, f"no healing after step {step}"
    assert not store.counters.snapshot(), store.counters.snapshot()
    if status == 0:
        break
print(step)
"""


def test_a_kill_at_every_step_of_a_put_leaves_nothing_visible(tmp_path):
    """Killed before each system call in turn (a write: in its middle); the next writer heals it."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CRASH, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20, "there are that many steps"


FORKS = """
import os, sys
from cache.artifacts import lookup, publish
from cache.local import LocalStore
from cache.manifest import Manifest

root, processes, rounds = sys.argv[1], 64, 4
gate, opened = os.pipe()
children = []
for me in range(processes):
    pid = os.fork()
    if not pid:
        os.close(opened)
        os.read(gate, 1)  # until the parent closes its end
        store = LocalStore(root)
        won = []
        for i in range(rounds):
            blobs = {"shared": b"the same %d" % i * 500, "own": b"%d of %d" % (me, i)}
            key = "graph/%064x" % i
            stands = publish(store, key, Manifest.of("graph", blobs, b"%d" % me), blobs)
            found = lookup(store, key)
            if found is None or found.manifest != stands or store.counters.snapshot():
                os._exit(1)
            won.append(stands.meta.decode())
        os.write(1, (" ".join(won) + "\\n").encode())
        os._exit(0)
    children.append(pid)
os.close(opened)
print([os.waitpid(pid, 0)[1] for pid in children].count(0))
"""


def test_64_processes_on_one_local_directory_agree(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKS, str(tmp_path / "s")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *decided, good = done.stdout.splitlines()
    assert int(good) == len(decided) == 64
    assert len(set(decided)) == 1, "one decision a key"
    assert list((tmp_path / "s/v1/tmp").iterdir()) == []


def test_conflicting_bytes_under_one_key_are_refused_and_recorded(caplog):
    store = MemoryStore()
    with (
        serve_in_thread(ServiceConfig(port=0), store=store) as running,
        CacheClient(running.url, budget=DelayBudget(30.0)) as client,
        caplog.at_level("WARNING", logger="fusec.cache"),
    ):
        for data in BLOBS.values():
            put(client, data)
        assert client.put_entry(key(), manifest(meta=b"first").encode())
        assert not client.put_entry(key(), manifest(meta=b"second").encode())
        assert client.get_entry(key()) == manifest(meta=b"first").encode()
        text = httpx.get(running.url + "/metrics").text
    assert 'fusec_cache_conflicts_total{kind="graph"} 1.0' in text
    assert f"another value stands under {key()}" in caplog.text


def test_a_remote_that_drops_half_of_all_connections_is_asked_a_fifth_more():
    asked = []

    def drops_every_other(connection):
        connection.recv(65536)
        asked.append(connection)
        if len(asked) % 2 == 0:
            connection.sendall(
                b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok"
            )

    with raw_server(drops_every_other) as url:
        calls = 60
        with CacheClient(url) as made:
            for _ in range(calls):
                with suppress(NotReachable):
                    made.get_entry(key())
    assert made.metrics.get("retries") > 3
    assert len(asked) <= 1.2 * calls + FIRST_RETRIES
