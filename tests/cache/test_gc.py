"""The collector: what goes, what stays, and that traffic beside it never misses a blob."""

import asyncio
import os
import random
import threading
import time
from contextlib import ExitStack
from itertools import chain, repeat

import httpx
import pytest

from cache import doomed, gc, revocation, service, service_state
from cache.__main__ import main
from cache.artifacts import Miss, lookup, publish
from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.config import ServiceConfig
from cache.digest import digest
from cache.doomed import Doomed
from cache.embedded import serve_in_thread
from cache.errors import CacheError, ConfigError, MissingBlobs, NotReachable, ProtocolError
from cache.fence import Fence
from cache.gc import Policy
from cache.local import LocalStore
from cache.manifest import Manifest
from cache.memory import MemoryStore
from cache.open_store import collected_part, namespaces
from cache.protocol import pack
from cache.revocation import Revocations
from cache.tiered import TieredStore
from tests.cache.conftest import s3_store
from tests.cache.samples import key, noise, put

DAY = 86_400.0


@pytest.fixture(
    params=[
        "local",
        "s3-moto",
        pytest.param("s3-seaweedfs", marks=[pytest.mark.s3, pytest.mark.extended]),
    ]
)
def store(request, tmp_path):
    with ExitStack() as stack:
        match request.param:
            case "local":
                yield LocalStore(tmp_path / "store")
            case "s3-moto":
                yield stack.enter_context(s3_store(request.getfixturevalue("moto")))
            case "s3-seaweedfs":
                yield request.getfixturevalue("seaweed_store")


def artifact(store, number, *shared, size=1000):
    """Publish an artifact with a blob of its own and the shared ones."""
    blobs = {"own": noise(size, number)} | {f"s{i}": data for i, data in enumerate(shared)}
    publish(store, key(number), Manifest.of("graph", blobs), blobs)
    return blobs


def later(seconds):
    return lambda: time.time() + seconds


def collect(store, policy, seconds=0.0):
    return gc.collect(store, policy, fence_s=0.0, clock=later(seconds), sleep=lambda _: None)


def keys_of(store):
    return {item.name for item in store.list_entries()}


def test_leases_that_nobody_changes_go_and_other_records_stay(store):
    old, young = f"lease/{1:064x}", f"lease/{2:064x}"
    index, drain = f"index/{1:064x}", f"drain/{0:064x}"
    store.swap_record(index, None, b"what is still to be done")
    store.swap_record(old, None, b"old")
    store.swap_record(drain, None, b"on")
    plan = collect(store, Policy(), gc.RECORD_S + 10)
    assert [item.name for item in plan.records] == [old]
    assert "with 1 idle records" in list(plan.lines())[-1]
    store.swap_record(young, None, b"young")
    assert not store.remove_record(young, time.time() - 60.0)
    assert collect(store, Policy()).records == ()
    assert store.get_record(old) is None
    assert store.get_record(young) == b"young"
    assert {item.name for item in store.list_records()} == {drain, index, young}


def test_listings_name_everything_once(store):
    published = {key(i): artifact(store, i, b"shared") for i in range(3)}
    store.put_entry(revocation.KEY, Revocations().encode())
    assert keys_of(store) == {*published, revocation.KEY}
    names = [item.name for item in store.list_blobs()]
    assert sorted(names) == sorted(
        {digest(d) for blobs in published.values() for d in blobs.values()}
    )
    now = time.time()
    assert all(abs(item.at - now) < 60 and item.bytes > 0 for item in store.list_blobs())


def test_nothing_goes_without_a_bound(store):
    artifact(store, 0)
    made = collect(store, Policy(grace_s=DAY), 0)
    assert (made.entries, made.blobs) == ((), ())
    assert lookup(store, key(0)) is not None


def test_what_is_old_goes_and_its_blobs_after_it(store):
    blobs = artifact(store, 0)
    policy = Policy(max_age_s=7 * DAY, grace_s=DAY)
    assert collect(store, policy, 6 * DAY).entries == ()
    made = collect(store, policy, 8 * DAY)
    assert [item.name for item in made.entries] == [key(0)]
    assert {item.name for item in made.blobs} == {digest(data) for data in blobs.values()}
    assert lookup(store, key(0)) is None
    assert list(store.list_blobs()) == []


def test_blobs_that_another_entry_names_stay(store):
    artifact(store, 0, b"shared")
    time.sleep(1.1)  # the times of S3 are whole seconds
    artifact(store, 1, b"shared")
    made = collect(store, Policy(max_bytes=1500, low=0.9, grace_s=0.0), 10)
    assert [item.name for item in made.entries] == [key(0)]
    found = lookup(store, key(1))
    assert found is not None
    assert found.blobs["s0"] == b"shared"
    assert store.get_blob(digest(noise(1000, 0))) is None


def test_above_the_bound_what_was_used_longest_ago_goes_down_to_the_low_mark(store):
    for number in range(3):
        artifact(store, number)
        time.sleep(1.05)
    store.touch_entry(key(0))
    total = sum(item.bytes for item in (*store.list_entries(), *store.list_blobs()))
    made = collect(store, Policy(max_bytes=total - 1, low=0.7, grace_s=0.0), 10)
    assert {item.name for item in made.entries} == {key(1)}
    assert keys_of(store) == {key(0), key(2)}
    assert made.kept_bytes <= total * 0.7
    assert all(lookup(store, name) for name in keys_of(store))


def test_the_number_of_files_is_bounded(store):
    for number in range(4):
        artifact(store, number)
    collect(store, Policy(max_files=7, low=0.5, grace_s=0.0), 10)
    assert len(keys_of(store)) == 1


def test_orphans_of_crashed_uploads_go_after_the_grace(store):
    name = put(store, b"orphan")
    assert collect(store, Policy(grace_s=DAY), DAY / 2).blobs == ()
    assert store.get_blob(name) == b"orphan"
    assert [item.name for item in collect(store, Policy(grace_s=DAY), 2 * DAY).blobs] == [name]
    assert store.get_blob(name) is None


def test_a_dry_run_prints_a_plan_and_removes_nothing(store):
    artifact(store, 0)
    put(store, b"orphan")
    made = gc.plan(store, Policy(max_age_s=1.0, grace_s=0.0), time.time() + 60)
    lines = list(made.lines())
    assert any(line.startswith(f"entry {key(0)}") for line in lines)
    assert any(digest(b"orphan") in line for line in lines)
    assert lines[-1].startswith("1 entries and 2 blobs go")
    assert lookup(store, key(0)) is not None
    assert store.get_blob(digest(b"orphan")) == b"orphan"


def test_the_caches_own_entries_stay(store):
    revocation.change(store, add=[Revocations(keys=frozenset({key(1)}))])
    collect(store, Policy(max_age_s=1.0, max_bytes=1, grace_s=0.0), 10 * DAY)
    assert revocation.read(store).keys == {key(1)}


def test_an_entry_that_does_not_decode_holds_nothing_up(store):
    artifact(store, 0)
    store.replace_entry(key(0), b"garbage")
    made = collect(store, Policy(max_age_s=DAY, grace_s=0.0), 60)
    assert made.entries == ()
    assert [item.name for item in made.blobs] == [digest(noise(1000, 0))]
    assert [item.name for item in collect(store, Policy(max_age_s=DAY), 2 * DAY).entries] == [
        key(0)
    ]


def test_use_keeps_an_entry(store):
    artifact(store, 0)
    time.sleep(1.1)
    before = {item.name: item.at for item in store.list_entries()}
    store.touch_entry(key(0))
    store.touch_entry(key(9))
    after = {item.name: item.at for item in store.list_entries()}
    assert after[key(0)] > before[key(0)]
    assert keys_of(store) == {key(0)}
    assert lookup(store, key(0)) is not None


# -- what is written meanwhile ---------------------------------------------------------------------


def test_a_blob_that_was_promised_to_a_writer_stays(tmp_path):
    """Another process asks whether a blob is here just before the collector would take it."""
    store, other = LocalStore(tmp_path), LocalStore(tmp_path)
    name = put(store, b"orphan")

    def promised(digests, before):
        assert other.has_blobs([name]) == {name}
        return LocalStore.remove_blobs(store, digests, before)

    store.remove_blobs = promised
    time.sleep(0.05)
    made = gc.collect(store, Policy(grace_s=0.02))
    assert made.blobs == ()
    assert store.get_blob(name) == b"orphan"


def test_a_blob_that_was_promised_during_a_long_plan_stays(tmp_path):
    store, other = LocalStore(tmp_path), LocalStore(tmp_path)
    name, now = put(store, b"orphan"), time.time()
    (path,) = tmp_path.rglob("*.zst")
    os.utime(path, (now - 100, now - 100))
    times = chain([now], repeat(now + 1000))
    listed = store.list_records

    def promised():
        assert other.has_blobs([name]) == {name}
        return listed()

    store.list_records = promised
    made = gc.collect(store, Policy(grace_s=50), clock=lambda: next(times))
    assert made.blobs == ()
    assert store.get_blob(name) == b"orphan"


@pytest.fixture
def announced(moto, monkeypatch):
    """An S3 store whose announcements are seen at once."""
    monkeypatch.setattr(doomed, "REFRESH_S", 0.0)
    monkeypatch.setattr(doomed, "SKEW_S", 0.0)
    with s3_store(moto) as store:
        yield store


def test_a_blob_that_is_announced_counts_as_absent_and_is_spared_when_it_is_written(announced):
    blobs = {"b": b"orphan"}
    name = put(announced, blobs["b"])
    time.sleep(1.1)
    seen = []

    def meanwhile(_):
        with (
            serve_in_thread(ServiceConfig(port=0), store=announced) as running,
            CacheClient(running.url, budget=DelayBudget(30.0)) as client,
        ):
            seen.append(client.has_blobs([name]))
            time.sleep(1.1)
            publish(client, key(), Manifest.of("graph", blobs), blobs)
            seen.append(client.has_blobs([name]))

    made = gc.collect(announced, Policy(grace_s=0.5), fence_s=30.0, sleep=meanwhile)
    assert seen == [set(), {name}]
    assert made.blobs == ()
    found = lookup(announced, key())
    assert found is not None
    assert found.blobs == blobs
    assert announced.get_entry(doomed.KEY) is None, "the announcement is taken back"


def test_an_entry_that_was_written_before_its_writer_knew_saves_its_blobs(announced):
    blobs = {"b": b"orphan"}
    put(announced, blobs["b"])
    time.sleep(1.1)

    def meanwhile(_):
        announced.put_entry(key(), Manifest.of("graph", blobs).encode())

    assert gc.collect(announced, Policy(grace_s=0.5), fence_s=30.0, sleep=meanwhile).blobs == ()
    assert lookup(announced, key()) is not None


def test_nobody_writes_a_blob_while_it_is_removed(announced):
    name = put(announced, b"orphan")
    time.sleep(1.1)
    answers = []
    remove = announced.remove_blobs

    def slowly(digests, before):
        with (
            serve_in_thread(ServiceConfig(port=0), store=announced) as running,
            CacheClient(running.url, budget=DelayBudget(30.0)) as client,
        ):
            try:
                put(client, b"orphan")
            except NotReachable as error:
                answers.append(str(error))
            put(client, b"another")
        return remove(digests, before)

    announced.remove_blobs = slowly
    made = gc.collect(announced, Policy(grace_s=0.5), fence_s=0.0, sleep=lambda _: None)
    assert len(answers) == 1
    assert [item.name for item in made.blobs] == [name]
    assert announced.get_blob(digest(b"another")) == b"another"


def test_one_collector_at_a_time_and_a_dead_ones_list_is_over(announced):
    put(announced, b"orphan")
    time.sleep(1.1)
    now = time.time()
    standing = Doomed(now, now + 5, now + 10, now, frozenset({digest(b"x")}))
    announced.put_entry(doomed.KEY, standing.encode())
    with pytest.raises(NotReachable, match="another collector"):
        gc.collect(announced, Policy(grace_s=0.5), fence_s=0.0)
    dead = Doomed(now - 99, now - 90, now - 80, now, frozenset({digest(b"x")}))
    announced.replace_entry(doomed.KEY, dead.encode())
    assert len(gc.collect(announced, Policy(grace_s=0.5), fence_s=0.0).blobs) == 1


def test_a_collector_that_dies_leaves_a_list_that_ends(announced):
    name = put(announced, b"orphan")
    time.sleep(1.1)

    class Killed(BaseException):
        pass

    def die(_):
        announced.delete_entry = lambda key: None  # it does not come to that any more
        raise Killed

    with pytest.raises(Killed):
        gc.collect(announced, Policy(grace_s=0.5), fence_s=1.0, sleep=die)
    listed = doomed.read(announced)
    assert listed is not None
    assert listed.digests == {name}
    assert listed.is_over(time.time() + gc.SWEEP_S + 2)
    assert announced.get_blob(name) == b"orphan"


@pytest.mark.parametrize(
    "data",
    [b"", pack({}), pack({"version": 1, "made_at": 1.0, "sweep_at": 1.0, "until": 1.0,
      "spared_after": 1, "digests": []}), pack({"version": 2, "made_at": 1.0, "sweep_at": 1.0,
      "until": 1.0, "spared_after": 1.0, "digests": []})],
)  # fmt: skip
def test_lists_that_make_no_sense_are_refused(data):
    with pytest.raises(ProtocolError):
        Doomed.decode(data)


class Traffic:
    """Writers and readers over a store until they are told to stop; counts missing blobs.

    within_s: the seconds in which an artifact has to be published, or nothing is promised to it; a
    busy machine may take longer.
    """

    def __init__(self, stores, within_s):
        self.stop = threading.Event()
        self.within_s = within_s
        self._missed = []
        self._late = set()
        self.faults = []
        self.published = 0
        self.read = 0
        self.threads = [
            threading.Thread(target=work, args=(store, seed), daemon=True)
            for seed, store in enumerate(stores)
            for work in (self.write, self.look)
        ]
        for thread in self.threads:
            thread.start()

    def write(self, store, seed):
        rng = random.Random(seed)
        while not self.stop.is_set():
            number = rng.randrange(60)
            # Blobs are shared between keys and come back after they were orphans.
            blobs = {
                "own": b"%d" % number,
                "a": b"a%d" % rng.randrange(8),
                "b": b"b%d" % (number % 5),
            }
            started = time.monotonic()
            try:
                publish(store, key(number), Manifest.of("graph", blobs), blobs)
                self.published += 1
                if time.monotonic() - started > self.within_s:
                    self._late.add(key(number))
                if rng.random() < 0.3:
                    store.delete_entry(key(rng.randrange(60)))
            except (NotReachable, MissingBlobs):
                time.sleep(0.05)  # its blob is being removed: it comes again
            except CacheError as error:
                self.faults.append(error)

    def look(self, store, seed):
        rng = random.Random(100 + seed)
        while not self.stop.is_set():
            name = key(rng.randrange(60))
            before = store.get_entry(name)
            reasons = []
            found = lookup(store, name, on_miss=lambda _, why, into=reasons: into.append(why))
            self.read += found is not None
            if reasons and reasons[0] is not Miss.ABSENT:
                # It counts if the entry was there all the time and is there yet.
                time.sleep(0.01)
                if before is not None and store.get_entry(name) == before:
                    again = []
                    lookup(store, name, on_miss=lambda _, why, into=again: into.append(why))
                    if again and again[0] is not Miss.ABSENT and store.get_entry(name) == before:
                        self._missed.append((name, reasons[0]))

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()

    @property
    def missing(self):
        """What was missing of artifacts that were published in time. Known after the end."""
        return [(name, why) for name, why in self._missed if name not in self._late]

    def is_enough(self):
        return self.read > 100 and self.published > 100


def stress_local(folder, seconds):
    grace_s = 0.4
    traffic = Traffic([LocalStore(folder) for _ in range(3)], within_s=grace_s / 2)
    collector, removed = LocalStore(folder), 0
    started = time.monotonic()
    while (now := time.monotonic()) < started + seconds or not (removed and traffic.is_enough()):
        assert now < started + seconds + 60.0, "no traffic, or nothing to remove"
        made = gc.collect(collector, Policy(max_bytes=6000, low=0.5, grace_s=grace_s))
        removed += len(made.blobs)
    traffic.end()
    return traffic, removed


def check(traffic, removed):
    assert traffic.missing == []
    assert traffic.faults == []
    assert removed > 0
    assert traffic.is_enough()


def test_collector_against_traffic_on_a_disk_never_misses_a_blob(tmp_path):
    check(*stress_local(tmp_path, 3.0))


@pytest.mark.extended
def test_collector_against_minutes_of_traffic_on_a_disk_never_misses_a_blob(tmp_path):
    check(*stress_local(tmp_path, 180.0))


@pytest.mark.extended
@pytest.mark.s3
def test_collector_against_traffic_on_s3_never_misses_a_blob(seaweedfs, seaweed_store, monkeypatch):
    """Two replicas of a service over one bucket; announcements take a second to be seen."""
    monkeypatch.setattr(doomed, "REFRESH_S", 1.0)
    monkeypatch.setattr(doomed, "SKEW_S", 0.5)
    monkeypatch.setattr(gc, "SWEEP_S", 2.0)
    with ExitStack() as stack:
        config = ServiceConfig(port=0, entry_ttl_s=0.0, memory_bytes=0)
        clients = [
            stack.enter_context(CacheClient(running.url, budget=DelayBudget(600.0)))
            for running in (
                stack.enter_context(serve_in_thread(config, store=seaweed_store)) for _ in range(2)
            )
        ]
        traffic, removed = Traffic(clients, within_s=3.0), 0
        deadline = time.monotonic() + 120.0
        while time.monotonic() < deadline:
            made = gc.collect(
                seaweed_store, Policy(max_bytes=6000, low=0.5, grace_s=6.0), fence_s=6.0
            )
            removed += len(made.blobs)
        traffic.end()
    check(traffic, removed)


# -- the service and the command -------------------------------------------------------------------


def test_a_service_collects_on_its_schedule(tmp_path):
    root = tmp_path / "store"
    store = LocalStore(root)
    artifact(store, 0)
    for item in (*(root / "v1").rglob("*.zst"), *(root / "v1/entries").rglob("0*")):
        if item.is_file():
            os.utime(item, (1e9, 1e9))
    config = ServiceConfig(port=0, store=f"file://{root}", gc_every_s=0.2, gc_max_age_s=DAY)
    with serve_in_thread(config):
        deadline = time.monotonic() + 10
        while keys_of(store) or list(store.list_blobs()):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_what_a_service_serves_is_in_use(tmp_path, moto, monkeypatch):
    monkeypatch.setattr(service_state, "TOUCH_SECONDS", 3600.0)
    with s3_store(moto) as store:
        artifact(store, 0)
        artifact(store, 1)
        before = {item.name: item.at for item in store.list_entries()}
        time.sleep(1.1)
        config = ServiceConfig(port=0, gc_max_age_s=DAY)
        with serve_in_thread(config, store=store) as running:
            for _ in range(3):
                assert httpx.get(f"{running.url}/v1/entries/{key(0)}").status_code == 200
            deadline = time.monotonic() + 10
            while True:
                after = {item.name: item.at for item in store.list_entries()}
                if after[key(0)] > before[key(0)]:
                    break
                assert time.monotonic() < deadline
                time.sleep(0.1)
        assert after[key(1)] == before[key(1)]


def test_the_copies_on_a_services_disk_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "DISK_EVERY_S", 0.2)
    near = LocalStore(tmp_path / "near")
    store = TieredStore(near, MemoryStore())
    for number in range(10):
        artifact(store, number)
    for item in near.list_blobs():
        os.utime(near._blob_path(item.name), (1e9, 1e9))
    config = ServiceConfig(port=0, store="s3://none", disk=str(tmp_path / "d"), disk_bytes=3000)
    with serve_in_thread(config, store=store):
        deadline = time.monotonic() + 10
        while sum(item.bytes for item in (*near.list_blobs(), *near.list_entries())) > 3000:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert all(lookup(store, key(number)) for number in range(10)), "the far store has all"


def test_gc_once_as_a_person_types_it(tmp_path, capsys):
    store = LocalStore(tmp_path)
    inside = LocalStore(tmp_path / "ns" / "team-a")
    for each in (store, inside):
        artifact(each, 0)
    assert namespaces(store) == ["team-a"]
    flags = ["gc-once", "--store", f"file://{tmp_path}", "--gc-max-bytes", "1"]
    assert main([*flags, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert out.count(f"entry {key(0)}") == 2
    assert "namespace team-a" in out
    assert keys_of(store) == keys_of(inside) == {key(0)}
    assert main(flags) == 0
    assert keys_of(store) == keys_of(inside) == set()
    assert list(store.list_blobs()) != [], "their grace is not over"
    assert main(["gc-once"]) == 2
    assert main([*flags, "--gc-grace-s", "10"]) == 2


def test_settings_that_make_no_sense_are_refused():
    for wrong in ({"gc_every_s": -1.0}, {"gc_grace_s": 10.0}, {"disk_bytes": -1}):
        with pytest.raises(ConfigError):
            ServiceConfig(**wrong)


def test_memory_is_not_collected():
    assert collected_part(MemoryStore()) is None


def test_a_fence_without_announcements_asks_the_store_alone(tmp_path):
    store = LocalStore(tmp_path)
    name = put(store, b"x")

    async def call(function, *arguments):
        return function(*arguments)

    fence = Fence(store, store, call)
    assert asyncio.run(fence.present([name, digest(b"y")])) == {name}
    assert asyncio.run(fence.must_write(name)) is False
