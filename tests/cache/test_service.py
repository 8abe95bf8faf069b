"""The service over HTTP, as any client sees it."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from cache.artifacts import publish
from cache.auth import Grant, hash_token
from cache.config import ServiceConfig
from cache.digest import digest
from cache.embedded import serve_app_in_thread, serve_in_thread
from cache.errors import ConfigError, NotReachable, Refused, StoreFull
from cache.frames import compress, decompress
from cache.manifest import Manifest
from cache.memory import MemoryStore
from cache.protocol import MAX_BLOB, MAX_MANIFEST, MSGPACK, pack, unpack
from cache.revocation import KEY as REVOCATIONS
from tests.cache.samples import BLOBS, key, manifest, noise, put

FRAME = {"content-encoding": "zstd"}
PACKED = {"content-type": MSGPACK}


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def http(store):
    with (
        serve_in_thread(ServiceConfig(port=0), store=store) as running,
        httpx.Client(base_url=running.url, trust_env=False) as client,
    ):
        yield client


def post(http, path, value):
    return http.post(path, content=pack(value), headers=PACKED)


def value(response):
    return unpack(response.content, max_bytes=1 << 26)


def raw(http, path, **headers):
    """The body as it travels, not decompressed."""
    with http.stream("GET", path, headers=headers) as response:
        return response, b"".join(response.iter_raw())


def put_blob(http, data, **more):
    return http.put(f"/v1/blobs/{digest(data)}", content=compress(data), headers=FRAME, **more)


# -- entries ---------------------------------------------------------------------------------------


def test_entry_statuses(http):
    for data in BLOBS.values():
        assert put_blob(http, data).status_code == 201
        assert put_blob(http, data).status_code == 200
    path, first, second = f"/v1/entries/{key()}", manifest(), manifest(meta=b"second")
    once = {"if-none-match": "*"}
    assert http.get(path).status_code == 404
    assert http.put(path, content=first.encode(), headers=once).status_code == 201
    assert http.put(path, content=first.encode(), headers=once).status_code == 200
    assert http.put(path, content=second.encode(), headers=once).status_code == 412
    assert http.get(path).content == first.encode()
    assert http.put(path, content=second.encode()).status_code == 200
    assert http.get(path).content == second.encode()
    assert http.delete(path).status_code == 204
    assert http.get(path).status_code == 404


def test_entries_are_swapped_for_better_ones(http):
    for data in BLOBS.values():
        put_blob(http, data)
    path = f"/v1/entries/{key()}"
    quick, middle, best = (
        Manifest.of("graph", BLOBS, b"%d" % tier, tier=tier).encode() for tier in (0, 3, 9)
    )

    def swap(old, new):
        return http.put(path, content=new, headers={"if-match": f'"{digest(old)}"'}).status_code

    assert swap(quick, middle) == 412, "nothing stands"
    http.put(path, content=middle, headers={"if-none-match": "*"})
    assert swap(middle, quick) == 412, "a lower tier"
    assert swap(quick, best) == 412, "another one stands"
    assert http.get(path).content == middle
    assert swap(middle, best) == 200
    assert swap(middle, best) == 200, "asked again"
    assert http.get(path).content == best, "memory does not hold the old one"
    for bad in ("*", digest(best), '"x"', f'W/"{digest(best)}"'):
        assert http.put(path, content=best, headers={"if-match": bad}).status_code == 400
    both = {"if-match": f'"{digest(best)}"', "if-none-match": "*"}
    assert http.put(path, content=best, headers=both).status_code == 400


def test_entry_whose_blob_is_absent_is_refused(http, store):
    put(store, BLOBS["program"])
    response = http.put(f"/v1/entries/{key()}", content=manifest().encode())
    assert response.status_code == 409
    assert value(response)["error"]["kind"] == "MissingBlobs"
    assert store.get_entry(key()) is None


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"garbage", 400),
        (b"", 400),
        (manifest({}).encode()[:-1] + b"\x01", 422),
        (pack({"version": 2}), 400),
        (Manifest.of("kernel", {}).encode(), 400),
        (bytes(MAX_MANIFEST + 1), 413),
    ],
    ids=["garbage", "empty", "corrupt", "newer version", "other kind", "too large"],
)
def test_manifests_that_do_not_verify_are_refused(http, store, data, status):
    assert http.put(f"/v1/entries/{key()}", content=data).status_code == status
    assert store.get_entry(key()) is None


def test_lookup_gives_those_that_are_there(http, store):
    publish(store, key(1), manifest(), BLOBS)
    found = value(post(http, "/v1/entries/lookup", {"keys": [key(0), key(1), key(1)]}))
    assert found == {"found": {key(1): manifest().encode()}}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (pack({"keys": [key()] * 1025}), 413),
        (pack({"keys": ["x"]}), 400),
        (pack({"keys": [1]}), 400),
        (pack({"keys": [], "extra": 1}), 400),
        (pack({}), 400),
        (pack([]), 400),
        (b"\x91" * 100_000, 400),
        (b"", 400),
        (bytes(1 << 20), 413),
    ],
)
def test_malformed_questions_are_refused(http, body, status):
    response = http.post("/v1/entries/lookup", content=body, headers=PACKED)
    assert response.status_code == status
    assert set(value(response)["error"]) == {"kind", "message"}


def test_question_of_a_web_page_is_refused(http):
    body = pack({"keys": []})
    plain = http.post("/v1/entries/lookup", content=body, headers={"content-type": "text/plain"})
    assert plain.status_code == 400


# -- blobs -----------------------------------------------------------------------------------------


def test_blob_travels_as_a_zstd_frame(http, store):
    data = bytes(100_000)
    response, frame = raw(http, f"/v1/blobs/{put(store, data)}")
    assert response.headers["content-encoding"] == "zstd"
    assert len(frame) < 1000
    assert decompress(frame, digest(data)) == data


def test_absent_blob_is_404(http):
    assert http.get(f"/v1/blobs/{digest(b'')}").status_code == 404


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [("0-99", 0, 99), ("100-", 100, None), ("-100", -100, None), ("5-999999999", 5, None)],
)
def test_range_of_a_frame(http, store, asked, first, last):
    name = put(store, noise(5000))
    _, whole = raw(http, f"/v1/blobs/{name}")
    response, part = raw(http, f"/v1/blobs/{name}", range=f"bytes={asked}")
    assert response.status_code == 206
    assert part == whole[first : None if last is None else last + 1]
    begin = len(whole) + first if first < 0 else first
    end = begin + len(part) - 1
    assert response.headers["content-range"] == f"bytes {begin}-{end}/{len(whole)}"


def test_ranges_that_make_no_sense(http, store):
    name = put(store, noise(5000))
    _, whole = raw(http, f"/v1/blobs/{name}")
    response, _ = raw(http, f"/v1/blobs/{name}", range="bytes=999999-")
    assert response.status_code == 416
    for asked in ("bytes=-", "bytes=0-1,5-6", "lines=1-2", "bytes=a-b", "bytes=" + "9" * 5000):
        response, body = raw(http, f"/v1/blobs/{name}", range=asked)
        assert (response.status_code, body) == (200, whole)


@pytest.mark.parametrize(
    ("frame", "status"),
    [
        (compress(b"other"), 422),
        (compress(b"data")[:-1], 422),
        (compress(b"data") + b"\x00", 422),
        (b"data", 422),
        (b"", 422),
        (compress(bytes(MAX_BLOB + 1)), 413),
    ],
    ids=["other blob", "truncated", "longer", "not zstd", "empty", "bomb"],
)
def test_frames_that_do_not_verify_are_refused(http, store, frame, status):
    response = http.put(f"/v1/blobs/{digest(b'data')}", content=frame, headers=FRAME)
    assert response.status_code == status
    assert store.describe()["blobs"] == 0


def test_blob_without_its_encoding_is_refused(http):
    assert http.put(f"/v1/blobs/{digest(b'x')}", content=compress(b"x")).status_code == 400


def test_has_and_get(http, store):
    names = [put(store, b"%d" % i) for i in range(5)]
    asked = [*names, digest(b"absent")]
    assert value(post(http, "/v1/blobs/has", {"digests": asked})) == {"present": sorted(names)}
    got = value(post(http, "/v1/blobs/get", {"digests": asked}))["blobs"]
    assert {name: decompress(frame, name) for name, frame in got.items()} == {
        name: b"%d" % i for i, name in enumerate(names)
    }


# -- one read for many -----------------------------------------------------------------------------


class Slow(MemoryStore):
    """Counts its reads, each of which takes a while."""

    def __init__(self):
        super().__init__()
        self.reads = 0
        self.lock = threading.Lock()
        self.fault = None

    def slowly(self):
        with self.lock:
            self.reads += 1
        time.sleep(0.3)
        if self.fault is not None:
            raise self.fault

    def get_blob(self, digest):
        self.slowly()
        return super().get_blob(digest)

    def get_entry(self, key):
        if key != REVOCATIONS:
            self.slowly()
        return super().get_entry(key)


@pytest.mark.parametrize("what", ["blob", "entry"])
def test_concurrent_reads_of_a_cold_key_are_one_store_read(what):
    store = Slow()
    name = put(store, noise(1000))
    store.put_entry(key(), manifest({}).encode())
    store.reads = 0
    path = f"/v1/blobs/{name}" if what == "blob" else f"/v1/entries/{key()}"

    async def ask(url):
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=30) as client:
            return await asyncio.gather(*(client.get(path) for _ in range(64)))

    with serve_in_thread(ServiceConfig(port=0), store=store) as running:
        replies = asyncio.run(ask(running.url))
        merges = httpx.get(running.url + "/metrics").text
    assert {reply.status_code for reply in replies} == {200}
    assert len({reply.content for reply in replies}) == 1
    assert store.reads == 1
    assert "fusec_cache_inflight_merges_total 63.0" in merges


def test_failed_read_fails_all_who_wait_and_is_not_kept():
    store = Slow()
    store.put_entry(key(), manifest({}).encode())
    store.fault = NotReachable("gone")
    with serve_in_thread(ServiceConfig(port=0), store=store) as running:
        url = f"{running.url}/v1/entries/{key()}"
        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(lambda _: httpx.get(url).status_code, range(8)))
        assert statuses == [503] * 8
        store.fault = None
        assert httpx.get(url).status_code == 200


def test_client_that_goes_away_does_not_end_the_read_for_others():
    store = Slow()
    store.put_entry(key(), manifest({}).encode())
    with serve_in_thread(ServiceConfig(port=0), store=store) as running:
        url = f"{running.url}/v1/entries/{key()}"
        with ThreadPoolExecutor(2) as pool:
            with pytest.raises(httpx.ReadTimeout):
                httpx.get(url, timeout=0.1)
            assert pool.submit(httpx.get, url).result().status_code == 200


def test_hits_are_served_from_memory():
    store = Slow()
    name = put(store, noise(1000))
    with serve_in_thread(ServiceConfig(port=0), store=store) as running:
        for _ in range(5):
            assert httpx.get(f"{running.url}/v1/blobs/{name}").status_code == 200
        assert store.reads == 1


def test_entry_is_read_again_after_its_time():
    store, old, new = MemoryStore(), manifest(meta=b"1"), manifest(meta=b"2").encode()
    publish(store, key(), old, BLOBS)
    with serve_in_thread(ServiceConfig(port=0, entry_ttl_s=0.5), store=store) as running:
        url = f"{running.url}/v1/entries/{key()}"
        started = time.monotonic()
        assert httpx.get(url).content == old.encode()
        store.replace_entry(key(), new)
        while (content := httpx.get(url).content) != new:
            assert content == old.encode()
            assert time.monotonic() < started + 60.0
            time.sleep(0.02)
        assert time.monotonic() - started >= 0.5, "it was read again before its time"


def test_memory_is_bounded():
    store = MemoryStore()
    names = [put(store, noise(10_000, i)) for i in range(20)]
    with serve_in_thread(ServiceConfig(port=0, memory_bytes=50_000), store=store) as running:
        for name in names:
            assert httpx.get(f"{running.url}/v1/blobs/{name}").status_code == 200
        stats = httpx.get(running.url + "/v1/stats").content
    assert 0 < unpack(stats, max_bytes=10_000)["memory"] <= 50_000


# -- who may do what -------------------------------------------------------------------------------

TOKENS = {role: f"token-{role}" for role in ("read", "submit", "write", "admin")}
GRANTS = tuple(Grant(role, hash_token(token)) for role, token in TOKENS.items())
ACTIONS = {
    "read": [
        ("GET", f"/v1/entries/{key()}"),
        ("POST", "/v1/entries/lookup"),
        ("POST", "/v1/blobs/has"),
        ("POST", "/v1/blobs/get"),
        ("GET", f"/v1/blobs/{'a' * 64}"),
        ("GET", "/v1/stats"),
        ("GET", "/v1/revoked"),
    ],
    "submit": [
        ("POST", "/v1/compile/submit"),
        ("GET", f"/v1/compile/{'a' * 64}"),
        ("DELETE", f"/v1/compile/{'a' * 64}"),
    ],
    "write": [("PUT", f"/v1/entries/{key()}"), ("PUT", f"/v1/blobs/{'a' * 64}")],
    "admin": [("DELETE", f"/v1/entries/{key()}"), ("PUT", "/v1/revoked")],
}


@pytest.fixture(scope="module")
def guarded():
    with (
        serve_in_thread(ServiceConfig(port=0, tokens=GRANTS)) as running,
        httpx.Client(base_url=running.url, trust_env=False) as client,
    ):
        yield client


def test_roles_allow_what_they_should_and_no_more(guarded):
    roles = list(TOKENS)
    for needed, actions in ACTIONS.items():
        for method, path in actions:
            for role, token in TOKENS.items():
                headers = {"authorization": f"Bearer {token}"}
                status = guarded.request(method, path, headers=headers).status_code
                allowed = roles.index(role) >= roles.index(needed)
                assert (status not in (401, 403)) == allowed, (method, path, role, status)


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer wrong", "Basic token-admin", "token-admin"]
)
def test_no_valid_token_is_401(guarded, header):
    for actions in ACTIONS.values():
        for method, path in actions:
            headers = {} if header is None else {"authorization": header}
            response = guarded.request(method, path, headers=headers)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"


def test_health_needs_no_token_and_shows_none(guarded):
    for path in ("/healthz", "/readyz", "/metrics", "/"):
        response = guarded.get(path)
        assert response.status_code == 200
        assert not any(token in response.text for token in TOKENS.values())
        assert not any(grant.sha256 in response.text for grant in GRANTS)


def test_open_service_wants_a_loopback_name(http):
    assert http.get("/v1/stats", headers={"host": "evil.example:8700"}).status_code == 403
    assert http.get("/v1/stats", headers={"host": "localhost:8700"}).status_code == 200
    assert http.get("/v1/stats", headers={"host": "[::1]:8700"}).status_code == 200


# -- trouble with the store ------------------------------------------------------------------------


class Broken(MemoryStore):
    """Raises `fault` whatever is asked."""

    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def get_entry(self, key):
        raise self.fault

    def has_blobs(self, digests):
        raise self.fault

    def put_blob(self, digest, data):
        raise self.fault


@pytest.mark.parametrize("fault", [NotReachable("s3.internal is gone"), Refused("key AKIA123")])
def test_store_that_is_gone_is_503_and_not_ready_but_alive(fault):
    with serve_in_thread(ServiceConfig(port=0), store=Broken(fault)) as running:
        response = httpx.get(f"{running.url}/v1/entries/{key()}")
        assert response.status_code == 503
        assert fault.message.encode() not in response.content
        assert httpx.get(running.url + "/readyz").status_code == 503
        assert httpx.get(running.url + "/healthz").status_code == 200
        assert httpx.get(running.url + "/").status_code == 200
        text = httpx.get(running.url + "/metrics").text
        assert 'fusec_cache_errors_total{where="entry_get"} 1.0' in text


def test_full_store_is_507():
    class Full(MemoryStore):
        def put_blob(self, digest, data):
            raise StoreFull("full")

    with serve_in_thread(ServiceConfig(port=0), store=Full()) as running:
        url = f"{running.url}/v1/blobs/{digest(b'x')}"
        response = httpx.put(url, content=compress(b"x"), headers=FRAME)
        assert response.status_code == 507


# -- the farm --------------------------------------------------------------------------------------


def test_compile_without_a_farm_is_503(http):
    response = post(http, "/v1/compile/submit", {"v": 1})
    assert response.status_code == 503
    assert "no compile farm" in value(response)["error"]["message"]


def test_compile_with_a_dead_farm_is_503(store):
    config = ServiceConfig(port=0, farm_url="http://127.0.0.1:1")
    with serve_in_thread(config, store=store) as running:
        response = httpx.get(f"{running.url}/v1/compile/{'a' * 64}?wait=1")
    assert response.status_code == 503
    assert "no gateway answers" in value(response)["error"]["message"]


def test_compile_routes_pass_through():
    seen = []

    async def farm(scope, receive, send):
        if scope["type"] == "lifespan":
            for stage in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{stage}.complete"})
            return
        body = (await receive()).get("body", b"")
        query = scope["query_string"].decode()
        tokens = [value for name, value in scope["headers"] if name == b"authorization"]
        seen.append((scope["method"], scope["path"], query, body, tokens))
        headers = [(b"retry-after", b"7"), (b"x-inner", b"1"), (b"content-type", MSGPACK.encode())]
        await send({"type": "http.response.start", "status": 429, "headers": headers})
        await send({"type": "http.response.body", "body": pack({"queue": "full"})})

    name = "a" * 64
    with serve_app_in_thread(farm) as inner:
        config = ServiceConfig(port=0, farm_url=inner.url, farm_token="farm-secret")
        mine = {"authorization": "Bearer me"}
        with (
            serve_in_thread(config) as running,
            httpx.Client(base_url=running.url, headers=mine) as http,
        ):
            replies = [
                post(http, "/v1/compile/submit", {"v": 1}),
                http.get(f"/v1/compile/{name}?wait=2&after=3"),
                http.delete(f"/v1/compile/{name}"),
            ]
    secret = [b"Bearer farm-secret"]
    assert seen == [
        ("POST", "/v1/compile/submit", "", pack({"v": 1}), secret),
        ("GET", f"/v1/compile/{name}", "wait=2&after=3", b"", secret),
        ("DELETE", f"/v1/compile/{name}", "", b"", secret),
    ]
    for reply in replies:
        assert (reply.status_code, value(reply)) == (429, {"queue": "full"})
        assert reply.headers["retry-after"] == "7"
        assert "x-inner" not in reply.headers


# -- for people ------------------------------------------------------------------------------------


def test_metrics_count_hits_and_misses_by_tier(http, store):
    publish(store, key(), manifest(), BLOBS)
    for _ in range(3):
        http.get(f"/v1/entries/{key()}")
    http.get(f"/v1/entries/{key(1, 'kernel')}")
    text = http.get("/metrics").text
    assert 'fusec_cache_hits_total{kind="graph",tier="store"} 1.0' in text
    assert 'fusec_cache_hits_total{kind="graph",tier="memory"} 2.0' in text
    assert 'fusec_cache_misses_total{kind="kernel",reason="absent"} 1.0' in text
    assert 'fusec_cache_request_seconds_count{route="entry_get"} 4.0' in text
    assert 'fusec_cache_bytes_total{direction="out"}' in text


def test_status_page_is_html_for_a_person(http, store):
    put(store, b"x")
    response = http.get("/")
    assert response.headers["content-type"].startswith("text/html")
    assert "store: kind" in response.text
    assert "Nothing has been read yet" in response.text
    assert f"export FUSEC_REMOTE={http.base_url}".rstrip("/") in response.text
    publish(store, key(), manifest(), BLOBS)
    http.get(f"/v1/entries/{key()}")
    assert "Reads since the start" in http.get("/").text
    assert http.get("/").text.count("http-equiv") == 1
    assert "http-equiv" not in http.get("/?still").text


def test_the_status_page_lets_a_browser_do_nothing_else(http):
    sent = http.get("/", headers={"host": 'localhost:1"><script>alert(1)</script>'})
    assert "<script" not in sent.text
    policy = sent.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_unknown_paths_and_methods(http):
    assert http.get("/v1/nothing").status_code == 404
    assert http.get("/v2/stats").status_code == 404
    assert http.get(f"/v1/entries/other/{'a' * 64}").status_code == 404
    response = http.post(f"/v1/entries/{key()}")
    assert response.status_code == 405
    assert response.headers["allow"] == "DELETE, GET, PUT"


def test_taken_port_is_told(http):
    port = http.base_url.port
    with (
        pytest.raises(ConfigError, match="cannot listen"),
        serve_in_thread(ServiceConfig(port=port)),
    ):
        pass
