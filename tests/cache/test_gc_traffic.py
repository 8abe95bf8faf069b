"""What is written while the collector is at work stays: promises, announcements, traffic."""

import os
import random
import threading
import time
from contextlib import ExitStack
from itertools import chain, repeat

import pytest

from cache import doomed, gc
from cache.artifacts import Miss, lookup, publish
from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.config import ServiceConfig
from cache.digest import digest
from cache.doomed import Doomed
from cache.embedded import serve_in_thread
from cache.errors import CacheError, MissingBlobs, NotReachable, ProtocolError
from cache.gc import Policy
from cache.local import LocalStore
from cache.manifest import Manifest
from cache.protocol import pack
from tests.cache.ages import age
from tests.cache.conftest import s3_store
from tests.cache.samples import key, put


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
    age(announced, 10)
    seen = []

    def meanwhile(_):
        with (
            serve_in_thread(ServiceConfig(port=0), store=announced) as running,
            CacheClient(running.url, budget=DelayBudget(30.0)) as client,
        ):
            seen.append(client.has_blobs([name]))
            publish(client, key(), Manifest.of("graph", blobs), blobs)
            seen.append(client.has_blobs([name]))

    # Half of the grace is more than the second by which S3's times are too low.
    made = gc.collect(announced, Policy(grace_s=4.0), fence_s=30.0, sleep=meanwhile)
    assert seen == [set(), {name}]
    assert made.blobs == ()
    found = lookup(announced, key())
    assert found is not None
    assert found.blobs == blobs
    assert announced.get_entry(doomed.KEY) is None, "the announcement is taken back"


def test_an_entry_that_was_written_before_its_writer_knew_saves_its_blobs(announced):
    blobs = {"b": b"orphan"}
    put(announced, blobs["b"])
    age(announced, 10)

    def meanwhile(_):
        announced.put_entry(key(), Manifest.of("graph", blobs).encode())

    assert gc.collect(announced, Policy(grace_s=0.5), fence_s=30.0, sleep=meanwhile).blobs == ()
    assert lookup(announced, key()) is not None


def test_more_entries_than_can_be_read_in_time_do_not_save_the_orphans(announced):
    """After the announcement only those are read again that the plan has not seen so."""
    for number in range(30):
        announced.put_entry(key(number), Manifest.of("graph", {}).encode())
    name = put(announced, b"orphan")
    age(announced, 100)
    times, read = [time.time()], []
    peek = announced.peek_entry

    def slowly(asked):
        read.append(asked)
        times[0] += 3.0  # together they take longer than a list of doomed blobs counts
        return peek(asked)

    announced.peek_entry = slowly
    new = []

    def meanwhile(_):
        read.clear()
        announced.put_entry(key(99), Manifest.of("graph", {}).encode())
        new.append(key(99))

    made = gc.collect(
        announced, Policy(grace_s=60.0), fence_s=1.0, clock=lambda: times[0], sleep=meanwhile
    )
    assert [item.name for item in made.blobs] == [name]
    assert read == new


def test_nobody_writes_a_blob_while_it_is_removed(announced):
    name = put(announced, b"orphan")
    age(announced, 10)
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
    age(announced, 10)
    now = time.time()
    standing = Doomed(now, now + 5, now + 10, now, frozenset({digest(b"x")}))
    announced.put_entry(doomed.KEY, standing.encode())
    with pytest.raises(NotReachable, match="another collector"):
        gc.collect(announced, Policy(grace_s=0.5), fence_s=0.0)
    dead = Doomed(now - 99, now - 90, now - 80, now, frozenset({digest(b"x")}))
    announced.replace_entry(doomed.KEY, dead.encode())
    assert len(gc.collect(announced, Policy(grace_s=0.5), fence_s=0.0).blobs) == 1


def test_a_collector_that_was_held_up_leaves_the_list_of_the_next_one_alone(announced):
    put(announced, b"orphan")
    age(announced, 10)
    now = time.time()
    others = Doomed(now, now + 5, now + 10, now, frozenset({digest(b"x")}))

    def taken_over(_):
        announced.replace_entry(doomed.KEY, others.encode())

    gc.collect(announced, Policy(grace_s=0.5), fence_s=0.0, sleep=taken_over)
    assert doomed.read(announced) == others


def test_one_of_many_collectors_takes_a_dead_ones_place(announced):
    put(announced, b"orphan")
    age(announced, 10)
    now = time.time()
    dead = Doomed(now - 99, now - 90, now - 80, now, frozenset({digest(b"x")}))
    announced.put_entry(doomed.KEY, dead.encode())
    all_see_it = threading.Barrier(4)
    get = announced.get_entry

    def together(name):
        data = get(name)
        if data == dead.encode():
            all_see_it.wait(60)
        return data

    announced.get_entry = together
    at_work, done = threading.Event(), []

    def collect():
        try:
            # Who was first is at work until the others have been told so.
            gc.collect(
                announced, Policy(grace_s=0.5), fence_s=0.0, sleep=lambda _: at_work.wait(60)
            )
            done.append(True)
        except NotReachable:
            done.append(False)
        if done.count(False) == 3:
            at_work.set()

    threads = [threading.Thread(target=collect) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(done) == [False, False, False, True]


def test_a_collector_that_dies_leaves_a_list_that_ends(announced):
    name = put(announced, b"orphan")
    age(announced, 10)

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
