"""What must hold when things go wrong, each behaviour by its name."""

import asyncio
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from cache.artifacts import lookup, publish
from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.config import ServiceConfig
from cache.counters import Counters
from cache.embedded import serve_in_thread
from cache.errors import CacheError, NotReachable, Refused
from cache.local import LocalStore
from cache.manifest import Manifest
from cache.memory import MemoryStore
from cache.s3 import S3Store
from cache.seal import Signer
from cache.service import create_app
from cache.signing import SigningKey
from cache.trust import signed_by
from tests.cache.mini_s3 import mini_s3
from tests.cache.samples import BLOBS, key, manifest, noise, put
from tests.cache.servers import free_port

ROOT = Path(__file__).parents[2]


# -- one read for many -----------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["blob", "entry"])
def test_4096_concurrent_requests_for_one_cold_key_are_one_store_read(what):
    class Counted(MemoryStore):
        reads = 0

        def get_blob(self, digest):
            type(self).reads += 1
            time.sleep(0.3)
            return super().get_blob(digest)

        def get_entry(self, name):
            if name == key():
                type(self).reads += 1
                time.sleep(0.3)
            return super().get_entry(name)

    store = Counted()
    name = put(store, noise(1000))
    store.put_entry(key(), manifest({}).encode())
    Counted.reads = 0
    path = f"/v1/blobs/{name}" if what == "blob" else f"/v1/entries/{key()}"
    app = create_app(ServiceConfig(), store=store)
    statuses: list[int] = []

    async def ask():
        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "query_string": b"",
            "headers": [(b"host", b"127.0.0.1")],
        }
        await asyncio.gather(*(app(dict(scope), receive, send) for _ in range(4096)))

    asyncio.run(ask())
    assert statuses == [200] * 4096
    assert Counted.reads == 1


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


# -- S3 --------------------------------------------------------------------------------------------


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
    with s3_store(s3) as store:
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


# -- restarts --------------------------------------------------------------------------------------


@contextmanager
def balancer(backend):
    """A TCP proxy; new connections go to `backend[0]`, open ones stay where they are."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)

    def pump(source, sink):
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept():
        while True:
            try:
                front, _ = listener.accept()
            except OSError:
                return
            back = socket.create_connection(("127.0.0.1", backend[0]))
            for pair in ((front, back), (back, front)):
                threading.Thread(target=pump, args=pair, daemon=True).start()
            sockets.extend((front, back))

    sockets: list[socket.socket] = []
    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)
        for end in sockets:
            end.close()


@contextmanager
def replica(folder):
    """A service as a process of its own; gives the process and its port, once it is ready."""
    port = free_port()
    command = [sys.executable, "-m", "cache", "serve", "--port", str(port)]
    child = subprocess.Popen(
        [*command, "--store", f"file://{folder}"], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            with suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                    break
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield child, port
    finally:
        child.kill()
        child.wait()


def test_a_rolling_restart_is_without_a_failed_request(tmp_path):
    stop, failed, done = threading.Event(), [], []

    def ask(url, number):
        with CacheClient(url, budget=DelayBudget(30.0)) as client:
            turn = 0
            while not stop.is_set():
                turn += 1
                blobs = {"b": b"%d" % turn}
                name = key(1000 * number + turn % 50)
                try:
                    publish(client, name, Manifest.of("graph", blobs), blobs)
                    assert lookup(client, name) is not None
                    done.append(name)
                except CacheError as error:
                    failed.append(error)

    with ExitStack() as stack:
        old, port = stack.enter_context(replica(tmp_path))
        backend = [port]
        url = stack.enter_context(balancer(backend))
        pool = stack.enter_context(ThreadPoolExecutor(4))
        stack.callback(stop.set)
        workers = [pool.submit(ask, url, number) for number in range(4)]
        for _ in range(2):
            before = len(done)
            new, backend[0] = stack.enter_context(replica(tmp_path))
            old.send_signal(signal.SIGTERM)
            # Some servers end by the signal that they have handled.
            assert old.wait(60) in (0, -signal.SIGTERM)
            old = new
            deadline = time.monotonic() + 30
            while len(done) < before + 20:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        stop.set()
        for worker in workers:
            worker.result(30)
    assert failed == []
