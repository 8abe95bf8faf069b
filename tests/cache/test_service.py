"""The service over HTTP, as any client sees it."""

import pytest

from cache.artifacts import publish
from cache.config import ServiceConfig
from cache.digest import digest
from cache.embedded import serve_in_thread
from cache.errors import ConfigError
from cache.frames import compress, decompress
from cache.manifest import Manifest
from cache.protocol import MAX_BLOB, MAX_MANIFEST, pack
from tests.cache.asking import FRAME, PACKED, post, value
from tests.cache.samples import BLOBS, key, manifest, noise, put


@pytest.fixture
def store(memory):
    return memory


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
