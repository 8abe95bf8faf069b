"""The client against remotes that are dead, slow, broken or lying: bounded delay, no wrong byte."""

import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cache.artifacts import Miss, lookup, publish
from cache.auth import Grant, hash_token
from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.config import ServiceConfig
from cache.digest import digest
from cache.embedded import serve_app_in_thread, serve_in_thread
from cache.errors import (
    CacheError,
    ConfigError,
    Corrupt,
    MissingBlobs,
    NotReachable,
    ProtocolError,
    Refused,
    TooLarge,
)
from cache.frames import compress
from cache.memory import MemoryStore
from cache.protocol import MAX_MANIFEST, pack
from cache.service import create_app
from cache.store import get_blobs
from cache.trust import OWN_STORE
from tests.cache.samples import BLOBS, key, manifest, noise, put
from tests.cache.servers import dripping, fixed, free_port, head, raw_server, read_request, silent

ROOT = Path(__file__).parents[2]
ABSENT = digest(b"never written")
BLACKHOLE_S = 0.6


def quick(total_s=0.6):
    return DelayBudget(total_s, probe_s=(0.05, 0.1), max_probe_s=0.3)


@pytest.fixture
def client(request):
    made = []

    def make(url, **more):
        made.append(CacheClient(url, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def spend(client, calls=40):
    """Seconds that many calls take of which each must fail."""
    started = time.monotonic()
    for _ in range(calls):
        with pytest.raises(NotReachable):
            client.get_entry(key())
    return time.monotonic() - started


def wait_for(condition, timeout=10.0):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- dead, slow, broken ----------------------------------------------------------------------------


def test_unreachable_remote_costs_almost_nothing(client):
    made = client(f"http://127.0.0.1:{free_port()}")
    assert spend(made) < 2.0
    assert made.metrics.get("short_circuits") == 39
    assert made.metrics.get("errors") == 2


def test_remote_that_answers_500_is_left_alone(client):
    with raw_server(fixed(head("500 Internal Server Error", 0))) as url:
        made = client(url)
        assert spend(made) < 2.0
        assert made.metrics.get("requests") == 2


def test_silent_remote_costs_the_budget_once(client):
    with raw_server(silent) as url:
        made = client(url, budget=DelayBudget(BLACKHOLE_S))
        assert BLACKHOLE_S <= spend(made) < 3 * BLACKHOLE_S


def test_silent_remote_costs_the_budget_once_to_many_threads(client):
    with raw_server(silent) as url:
        made = client(url, budget=DelayBudget(BLACKHOLE_S))
        started = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: spend(made, 5), range(8)))
        assert time.monotonic() - started < 4 * BLACKHOLE_S


def test_ten_kilobytes_a_second_stay_in_the_budget(client):
    frame = compress(noise(200_000))
    with raw_server(dripping(frame, 10_000)) as url:
        made = client(url, budget=DelayBudget(BLACKHOLE_S))
        started = time.monotonic()
        with pytest.raises(NotReachable, match="bytes a second"):
            made.get_blob(digest(noise(200_000)))
        assert time.monotonic() - started < 4 * BLACKHOLE_S


def test_answer_that_comes_whole_just_in_time_counts(client):
    """The time is up when the last byte comes: it is used, and the wait is taken off the budget."""

    def late(connection):
        read_request(connection)
        connection.sendall(head("200 OK", 2))
        time.sleep(0.4)
        connection.sendall(b"o")
        time.sleep(0.4)
        connection.sendall(b"k")

    with raw_server(late) as url:
        made = client(url, budget=DelayBudget(0.7))
        assert made.get_entry(key()) == b"ok"
        assert made.budget.left_s < 0.5


def test_connection_cut_in_the_body_is_not_reachable(client):
    frame = compress(noise(50_000))
    cut = fixed(head("200 OK", len(frame)) + frame[:1000])
    with raw_server(cut) as url, pytest.raises(NotReachable):
        client(url).get_blob(digest(noise(50_000)))


def test_of_a_blob_that_was_cut_only_the_rest_is_asked_for(client):
    blob = noise(3_000_000)
    sent = []

    def relay(connection):
        """To the real service; the first answer ends after a million bytes."""
        with socket.create_connection(("127.0.0.1", service.port), 30) as behind:
            asked = read_request(connection)
            behind.sendall(asked.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
            sent.append(0)
            while data := behind.recv(65536):
                if len(sent) == 1 and sent[0] + len(data) > 1_000_000:
                    return
                connection.sendall(data)
                sent[-1] += len(data)

    store = MemoryStore()
    name = put(store, blob)
    with serve_in_thread(ServiceConfig(port=0), store=store) as service, raw_server(relay) as url:
        made = client(url)
        assert made.get_blob(name) == blob
        assert made.metrics.get("resumed") == 1
    assert sum(sent) < len(compress(blob)) + 100_000, "no byte came twice"


def test_garbage_instead_of_http_is_not_reachable(client):
    garbage = fixed(b"\x00\xff not http at all\r\n\r\n")
    with raw_server(garbage) as url, pytest.raises(NotReachable):
        client(url).get_entry(key())


def test_dropped_connection_is_retried_once(client):
    seen = []

    def first_drops(connection):
        seen.append(connection.recv(65536))
        if len(seen) > 1:
            connection.sendall(head("200 OK", 2) + b"ok")

    with raw_server(first_drops) as url:
        made = client(url)
        assert made.get_entry(key()) == b"ok"
        assert made.metrics.get("retries") == 1


def test_same_process_recovers_when_the_remote_returns(client):
    port = free_port()
    made = client(f"http://127.0.0.1:{port}", budget=quick())
    spend(made, 3)
    assert made.budget.is_open
    with serve_in_thread(ServiceConfig(port=port)):

        def answered():
            try:
                return made.get_entry(key()) is None
            except NotReachable:
                return False

        wait_for(answered)
    assert made.metrics.get("recoveries") == 1


def test_probes_do_not_delay_the_callers(client):
    with raw_server(silent) as url:
        made = client(url, budget=quick(0.2))
        spend(made, 1)
        time.sleep(0.15)
        assert spend(made, 20) < 0.2  # one probe waits longer than that
        assert made.metrics.get("probes") == 1


def test_slow_answers_of_a_compile_do_not_open_the_breaker(client):
    async def slow(scope, receive, send):
        if scope["type"] == "http":
            time.sleep(0.5)
            await send({"type": "http.response.start", "status": 429, "headers": []})
            await send({"type": "http.response.body", "body": pack({"position": 3})})
        else:
            await lifespan(receive, send)

    with serve_app_in_thread(slow) as running:
        made = client(running.url, budget=quick(0.2))
        assert made.post("/v1/compile/submit", {"v": 1}, 5.0) == (429, {"position": 3})
        assert not made.budget.is_open
        with pytest.raises(NotReachable):
            made.request("GET", "/v1/compile/x", timeout=0.1)


async def lifespan(receive, send):
    for stage in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{stage}.complete"})


# -- lying -----------------------------------------------------------------------------------------


@pytest.fixture
def tampered(client):
    """A client of a real service whose answers' bodies pass through a function."""
    store = MemoryStore()
    publish(store, key(), manifest(), BLOBS)
    change = {"path": "", "body": lambda body: body}
    inner = create_app(ServiceConfig(port=0), store=store)

    async def app(scope, receive, send):
        async def changed(message):
            if message["type"] == "http.response.start":
                kept = [item for item in message["headers"] if item[0] != b"content-length"]
                message = {**message, "headers": kept}
            elif message["type"] == "http.response.body":
                message = {**message, "body": change["body"](message["body"])}
            await send(message)

        hit = scope["type"] == "http" and scope["path"].startswith(change["path"])
        await inner(scope, receive, changed if hit else send)

    with serve_app_in_thread(app) as running:
        made = client(running.url, budget=DelayBudget(30.0))

        def tamper(path, body):
            change.update(path=path, body=body)
            return made

        yield tamper


def flip(at):
    def change(body):
        changed = bytearray(body)
        changed[at % len(changed)] ^= 0x20
        return bytes(changed)

    return change


def reason(store):
    reasons = []
    found = lookup(store, key(), on_miss=lambda _, why: reasons.append(why))
    return found, reasons


def test_flipped_byte_of_a_blob_on_the_wire_is_corrupt(tampered):
    made = tampered("/v1/blobs/", flip(-5))
    with pytest.raises(Corrupt):
        made.get_blob(digest(BLOBS["kernel/0"]))
    assert made.metrics.get("corrupt") == 1


def test_truncated_blob_on_the_wire_is_corrupt(tampered):
    made = tampered("/v1/blobs/", lambda body: body[:-3])
    with pytest.raises(Corrupt):
        made.get_blob(digest(BLOBS["kernel/0"]))


@pytest.mark.parametrize("path", ["/v1/entries/graph", "/v1/blobs/get"])
def test_no_flipped_byte_of_a_lookup_gives_wrong_bytes(tampered, path):
    """A byte flipped anywhere: a miss, an error of ours, or (where it means nothing) the truth."""
    missed = 0
    for at in range(0, 700, 7):
        made = tampered(path, flip(at))
        try:
            found, reasons = reason(made)
        except CacheError:
            missed += 1
            continue
        assert found is None or found.blobs == BLOBS
        missed += found is None and reasons[0] in (Miss.CORRUPT, Miss.NEWER_VERSION)
    assert missed > 90


def test_truncated_lookup_is_a_miss_or_our_error(tampered):
    made = tampered("/v1/entries/", lambda body: body[: len(body) // 2])
    assert reason(made) == (None, [Miss.CORRUPT])
    with pytest.raises(ProtocolError):
        made.lookup_many([key()], trust=OWN_STORE)


def test_blob_of_another_digest_is_corrupt(tampered):
    other = compress(b"other")
    made = tampered("/v1/blobs/", lambda _: other)
    with pytest.raises(Corrupt):
        made.get_blob(digest(BLOBS["kernel/0"]))


def test_bomb_is_refused(tampered):
    bomb = compress(bytes(300 << 20))
    made = tampered("/v1/blobs/", lambda _: bomb)
    with pytest.raises(TooLarge):
        made.get_blob(digest(BLOBS["kernel/0"]))


def test_endless_answer_is_cut_off(tampered):
    made = tampered("/v1/entries/", lambda _: bytes(MAX_MANIFEST + 1))
    with pytest.raises(TooLarge):
        made.get_entry(key())


@pytest.mark.parametrize(
    ("path", "reply"),
    [
        ("/v1/blobs/get", {"blobs": {ABSENT: b""}}),
        ("/v1/blobs/get", {"blobs": []}),
        ("/v1/blobs/get", {"blobs": {}, "extra": 1}),
        ("/v1/blobs/get", {}),
        ("/v1/blobs/has", {"present": [ABSENT]}),
        ("/v1/blobs/has", {"present": [1]}),
        ("/v1/entries/lookup", {"found": {key(9): b""}}),
        ("/v1/entries/lookup", {"found": {key(): "text"}}),
    ],
)
def test_answers_to_other_questions_are_refused(tampered, path, reply):
    made = tampered(path, lambda _: pack(reply))
    ask, asked = {
        "/v1/blobs/get": (made.get_blobs, digest(BLOBS["program"])),
        "/v1/blobs/has": (made.has_blobs, digest(BLOBS["program"])),
        "/v1/entries/lookup": (made.lookup_many, key()),
    }[path]
    with pytest.raises(ProtocolError):
        ask([asked])


def test_deep_answer_is_refused(tampered):
    made = tampered("/v1/blobs/get", lambda _: b"\x91" * 100_000)
    with pytest.raises(ProtocolError):
        made.get_blobs([digest(BLOBS["program"])])


# -- working ---------------------------------------------------------------------------------------


@pytest.fixture
def served(client):
    store = MemoryStore()
    with serve_in_thread(ServiceConfig(port=0), store=store) as running:
        yield store, client(running.url, budget=DelayBudget(30.0))


def test_lookup_many_takes_two_round_trips(served):
    store, made = served
    for i in range(50):
        blobs = {"a": b"%d" % i, "shared": b"shared"}
        publish(store, key(i), manifest(blobs), blobs)
    found = made.lookup_many([key(i) for i in range(60)], trust=OWN_STORE)
    assert set(found) == {key(i) for i in range(50)}
    assert found[key(7)].blobs == {"a": b"7", "shared": b"shared"}
    assert made.metrics.get("requests") == 2


def test_lookup_many_reports_each_miss(served):
    store, made = served
    store.put_entry(key(1), b"damaged")
    store.put_entry(key(2), pack({"version": 99}))
    store.put_entry(key(3), manifest().encode())
    reasons = {}
    wanted = [key(i) for i in range(4)]
    assert made.lookup_many(wanted, on_miss=reasons.__setitem__, trust=OWN_STORE) == {}
    assert reasons == {
        key(0): Miss.ABSENT,
        key(1): Miss.CORRUPT,
        key(2): Miss.NEWER_VERSION,
        key(3): Miss.BLOB_MISSING,
    }


def test_more_than_a_batch_and_more_than_fits_one_reply(served):
    store, made = served
    small = {put(store, b"%d" % i): b"%d" % i for i in range(1500)}
    large = {put(store, noise(24 << 20, i)): noise(24 << 20, i) for i in range(3)}
    assert made.has_blobs([*small, ABSENT]) == set(small)
    got = get_blobs(made, [*large, *small, ABSENT])
    assert got.found == {**small, **large}


def test_blob_larger_than_a_reply(served):
    store, made = served
    data = noise(66 << 20)
    name = put(store, data)
    assert made.get_blobs([name]).found == {name: data}


def test_entry_without_its_blobs_is_refused(served):
    _, made = served
    with pytest.raises(MissingBlobs, match="3 blobs"):
        made.put_entry(key(), manifest().encode())


FORK = """
import os, sys
from cache.client import CacheClient

with CacheClient(sys.argv[1]) as client:
    before = client.get_blob(sys.argv[2])
    pid = os.fork()
    os.write(1, b"%s " % str(client.get_blob(sys.argv[2]) == before == b"x").encode())
    if pid:
        os.waitpid(pid, 0)
        os.write(1, str(client.get_blob(sys.argv[2]) == before).encode())
    else:
        os._exit(0)
"""


def test_client_works_in_a_forked_child_and_its_parent(served):
    store, made = served
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORK, made.url, put(store, b"x")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.stdout.split(), done.stderr) == (["True"] * 3, "")


def test_many_threads_share_a_client(served):
    store, made = served
    names = [put(store, noise(2000, i)) for i in range(20)]
    with ThreadPoolExecutor(16) as pool:
        got = list(pool.map(made.get_blob, names * 20))
    assert got == [noise(2000, i) for i in range(20)] * 20
    assert threading.active_count() < 100


def test_token_is_never_shown(client):
    made = client("http://127.0.0.1:1", token="hunter2")
    assert "hunter2" not in repr(made)
    with pytest.raises(NotReachable) as caught:
        made.get_entry(key())
    assert "hunter2" not in str(caught.value)


def test_role_that_does_not_suffice_is_refused(client):
    grants = (Grant("read", hash_token("reader")), Grant("write", hash_token("writer")))
    with serve_in_thread(ServiceConfig(port=0, tokens=grants)) as running:
        reader, writer = (client(running.url, token=token) for token in ("reader", "writer"))
        with pytest.raises(Refused, match="the role write is needed"):
            publish(reader, key(), manifest(), BLOBS)
        publish(writer, key(), manifest(), BLOBS)
        assert lookup(reader, key()).blobs == BLOBS
        for stranger in (client(running.url), client(running.url, token="guess")):
            with pytest.raises(Refused, match="a valid bearer token is needed"):
                stranger.get_entry(key())
            assert not stranger.budget.is_open


@pytest.mark.parametrize("url", ["", "127.0.0.1:80", "ftp://x", "http://", "http://u:pw@host"])
def test_odd_addresses_are_refused(url):
    with pytest.raises(ConfigError) as caught:
        CacheClient(url)
    assert "pw" not in str(caught.value)
