"""The directory store: many processes, kills, full disks, damage, and directories of others."""

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from cache.artifacts import Miss, lookup, publish
from cache.counters import Counters
from cache.digest import digest
from cache.errors import NotReachable, Refused, StoreFull
from cache.frames import compress
from cache.local import STALE_TMP_SECONDS, LocalStore
from tests.cache.samples import BLOBS, key, manifest, noise, put

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store")


def files(store, part=""):
    found = (store.root / "v1" / part).rglob("*")
    return sorted(path for path in found if path.is_file() and path.name != "lock")


@contextmanager
def python(code, *arguments):
    """A child process that runs `code` with this project importable."""
    child = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def test_directory_is_the_users_alone(store):
    put(store, b"x")
    store.put_entry(key(), manifest({}).encode())
    for path in [store.root, *store.root.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_blobs_are_compressed_at_rest(store):
    put(store, bytes(100_000))
    (path,) = files(store)
    assert path.stat().st_size < 1000


@pytest.mark.parametrize("cut", [0, 1, 10, 0.5, -1])
def test_truncated_blob_is_a_miss_and_is_removed(store, cut):
    name = put(store, noise(5000))
    (path,) = files(store)
    content = path.read_bytes()
    path.write_bytes(content[: int(cut * len(content)) if isinstance(cut, float) else cut])
    assert store.get_blob(name) is None
    assert files(store) == []
    assert store.counters.get("corrupt") == 1
    put(store, noise(5000))
    assert store.get_blob(name) == noise(5000)


def test_flipped_byte_of_a_blob_is_a_corrupt_miss_and_heals(store):
    publish(store, key(), manifest(), BLOBS)
    path = next(path for path in files(store, "blobs") if digest(BLOBS["program"]) in path.name)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)
    reasons = []
    assert lookup(store, key(), on_miss=lambda _, why: reasons.append(why)) is None
    assert reasons == [Miss.CORRUPT]
    publish(store, key(), manifest(), BLOBS)
    assert lookup(store, key()).blobs == BLOBS


def test_flipped_byte_of_an_entry_is_a_corrupt_miss_and_heals(store):
    publish(store, key(), manifest(), BLOBS)
    (path,) = files(store, "entries")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    reasons = []
    assert lookup(store, key(), on_miss=lambda _, why: reasons.append(why)) is None
    assert reasons == [Miss.CORRUPT]
    publish(store, key(), manifest(), BLOBS)
    assert lookup(store, key()).blobs == BLOBS


def test_other_blob_under_the_name_is_a_miss(store):
    name = put(store, b"mine")
    (path,) = files(store)
    path.write_bytes(compress(b"planted"))
    assert store.get_blob(name) is None


def test_absurdly_large_files_are_not_read(store):
    name = put(store, b"x")
    store.put_entry(key(), manifest({}).encode())
    for path in files(store):
        with path.open("r+b") as file:
            file.truncate(1 << 40)
    assert store.get_blob(name) is None
    assert store.get_entry(key()) is None
    assert files(store) == []
    assert store.counters.get("corrupt") == 2


def test_what_is_read_takes_no_more_memory_than_it_has_bytes(store):
    """A buffer as large as the limit would be a mapping of its own, also once it is cut down."""
    names = [put(store, noise(600 + number)) for number in range(500)]

    def mappings():
        return len(Path("/proc/self/maps").read_text().splitlines())

    before = mappings()
    kept = [store.get_frame(name) for name in names]
    assert all(kept)
    assert mappings() - before < 100


def test_directory_removed_under_a_running_process(store):
    put(store, b"x")
    shutil.rmtree(store.root)
    assert store.get_blob(digest(b"x")) is None
    assert store.put_entry(key(), manifest({}).encode())
    put(store, b"y")
    assert store.get_blob(digest(b"y")) == b"y"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_directory_of_another_user_is_refused(tmp_path):
    LocalStore(tmp_path / "store")
    os.chown(tmp_path / "store" / "v1", 12345, 12345)
    with pytest.raises(Refused, match="belongs to user 12345"):
        LocalStore(tmp_path / "store")


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_directory_that_others_may_write_to_is_refused(tmp_path, mode):
    LocalStore(tmp_path / "store")
    (tmp_path / "store" / "v1").chmod(mode)
    with pytest.raises(Refused, match="others may write") as caught:
        LocalStore(tmp_path / "store")
    assert "chmod 700" in caught.value.hint


def test_file_in_the_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "store").write_text("a file")
    with pytest.raises((Refused, NotReachable), match="store"):
        LocalStore(tmp_path / "store")


def test_stale_temporary_files_are_removed_and_fresh_ones_kept(store):
    old, fresh = store.root / "v1/tmp/old", store.root / "v1/tmp/fresh"
    for path in (old, fresh):
        path.write_bytes(b"x")
    at = time.time() - STALE_TMP_SECONDS - 10
    os.utime(old, (at, at))
    LocalStore(store.root)
    assert not old.exists()
    assert fresh.exists()


def test_file_system_without_hard_links(store, monkeypatch):
    def no_links(*_args, **_more):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    first, second = manifest(meta=b"1").encode(), manifest(meta=b"2").encode()
    assert store.put_entry(key(), first)
    assert store.put_entry(key(), first)
    assert not store.put_entry(key(), second)
    assert store.get_entry(key()) == first


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EBUSY])
def test_stale_handle_is_read_again(store, monkeypatch, code):
    name = put(store, b"x")
    faults = [code, code]
    real_open = open

    def flaky(path, *args, **more):
        if faults and str(path).endswith(".zst"):
            raise OSError(faults.pop(), "injected")
        return real_open(path, *args, **more)

    monkeypatch.setattr("builtins.open", flaky)
    assert store.get_blob(name) == b"x"
    assert faults == []


def test_broken_disk_is_not_reachable_and_counted(store, monkeypatch):
    name = put(store, b"x")

    def broken(*_args, **_more):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("builtins.open", broken)
    with pytest.raises(NotReachable, match="Input/output error"):
        store.get_blob(name)
    assert store.counters.get("io_errors") == 1


FILL = """
import os, sys
from cache.artifacts import lookup, publish
from cache.digest import digest
from cache.errors import StoreFull
from cache.local import LocalStore
from cache.manifest import Manifest

store = LocalStore(sys.argv[1])
small = {"a": b"small"}
key = "graph/" + "0" * 64
publish(store, key, Manifest.of("graph", small), small)
data = os.urandom(int(sys.argv[2]))
try:
    store.put_blob(digest(data), data)
except StoreFull as error:
    print("full:", error)
else:
    print("no error")
print(store.counters.snapshot())
print("absent" if store.get_blob(digest(data)) is None else "there")
print("tmp", len(os.listdir(os.path.join(sys.argv[1], "v1/tmp"))))
print("old", lookup(store, key).blobs == small)
"""


def check_full(output):
    lines = output.splitlines()
    assert lines[0].startswith("full: cannot write blob")
    assert lines[1:] == ["{'store_full': 1}", "absent", "tmp 0", "old True"]


def test_full_disk_is_store_full_and_leaves_nothing(tmp_path):
    """On a file system of 256 kB, in a mount namespace of its own."""
    script = 'mount -t tmpfs -o size=256k none "$1" && exec "$2" -W error -c "$3" "$1/s" 1000000'
    unshare = ["unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",))]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here")
    done = subprocess.run(
        [*unshare, "sh", "-c", script, "sh", tmp_path, sys.executable, FILL],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if "mount:" in done.stderr:
        pytest.skip("mounting is not allowed here")
    assert done.returncode == 0, done.stderr
    check_full(done.stdout)


def test_file_size_limit_is_store_full_and_leaves_nothing(tmp_path):
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n" + FILL
    with python(code, tmp_path / "s", 1_000_000) as child:
        output, errors = child.communicate(timeout=30)
    assert child.returncode == 0, errors
    check_full(output)


def test_full_disk_is_an_error_with_a_hint(store, monkeypatch):
    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreFull, match="No space left on device") as caught:
        put(store, b"x")
    assert "free some space" in caught.value.hint
    assert files(store) == []


RACE = """
import sys, time
from cache.artifacts import lookup, publish
from cache.local import LocalStore
from cache.manifest import Manifest

root, me, rounds, start = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
store = LocalStore(root)
while time.time() < start:
    time.sleep(0.001)
for i in range(rounds):
    blobs = {"shared": b"the same %d" % i * 500, "own": b"writer %d of %d" % (me, i)}
    key = "graph/%064x" % i
    won = publish(store, key, Manifest.of("graph", blobs, b"%d" % me), blobs)
    found = lookup(store, key)
    assert found is not None and found.manifest == won
    print(won.meta.decode())
"""


def test_many_processes_write_the_same_keys_and_agree(tmp_path):
    writers, rounds = 8, 12
    start = time.time() + 1.0
    children = [
        subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error",
                "-c",
                RACE,
                *map(str, (tmp_path / "s", me, rounds, start)),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for me in range(writers)
    ]
    results = [child.communicate(timeout=60) for child in children]
    assert [child.returncode for child in children] == [0] * writers, results
    decisions = [output.split() for output, _ in results]
    assert all(decided == decisions[0] for decided in decisions)
    store = LocalStore(tmp_path / "s")
    assert files(store, "tmp") == []
    assert store.describe()["entries"] == rounds
    for i in range(rounds):
        assert lookup(store, key(i)).manifest.meta.decode() == decisions[0][i]


KILLED = """
import itertools, os, sys
from cache.artifacts import publish
from cache.local import LocalStore
from cache.manifest import Manifest

store = LocalStore(sys.argv[1])
for i in itertools.count(int(sys.argv[2])):
    blobs = {"a": os.urandom(200_000), "b": b"%d" % i}
    publish(store, "graph/%064x" % i, Manifest.of("graph", blobs), blobs)
    print(i, flush=True)
"""


def test_kill_in_the_middle_of_puts_leaves_only_whole_artifacts(tmp_path):
    """Killed at many moments: every entry that is visible has all its blobs."""
    published = 0
    for round_ in range(8):
        with python(KILLED, tmp_path / "s", round_ * 1000) as child:
            assert child.stdout.readline()
            time.sleep(0.004 * round_ + 0.001)
            child.send_signal(signal.SIGKILL)
            done = 1 + len(child.stdout.read().splitlines())
        store = LocalStore(tmp_path / "s")
        for i in range(round_ * 1000, round_ * 1000 + done):
            assert lookup(store, key(i)) is not None
        published += done
    entries = files(store, "entries")
    assert len(entries) >= published
    for path in entries:
        assert lookup(store, f"graph/{path.name}") is not None
    assert store.counters.snapshot() == {}
    for path in files(store, "tmp"):
        os.utime(path, (0, 0))
    LocalStore(tmp_path / "s")
    assert files(store, "tmp") == []


def test_counters_can_be_shared(tmp_path):
    counters = Counters()
    store = LocalStore(tmp_path, counters=counters)
    name = put(store, b"x")
    files(store)[0].write_bytes(b"")
    store.get_blob(name)
    assert counters.snapshot() == {"corrupt": 1}
