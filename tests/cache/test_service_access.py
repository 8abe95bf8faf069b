"""Who may do what over HTTP, what is told of a store in trouble, and the way to the farm."""

import httpx
import pytest

from cache.asgi import MAX_PARAMS
from cache.auth import Grant, hash_token
from cache.config import ServiceConfig
from cache.digest import digest
from cache.embedded import serve_app_in_thread, serve_in_thread
from cache.errors import NotReachable, Refused, StoreFull
from cache.frames import compress
from cache.memory import MemoryStore
from cache.protocol import MSGPACK, pack
from tests.cache.asking import FRAME, post, value
from tests.cache.samples import key

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


def test_compile_without_a_farm_is_503(http):
    response = post(http, "/v1/compile/submit", {"v": 1})
    assert response.status_code == 503
    assert "no compile farm" in value(response)["error"]["message"]


def test_compile_with_a_dead_farm_is_503(memory):
    config = ServiceConfig(port=0, farm_url="http://127.0.0.1:1")
    with serve_in_thread(config, store=memory) as running:
        response = httpx.get(f"{running.url}/v1/compile/{'a' * 64}?wait=1")
    assert response.status_code == 503
    assert "no gateway answers" in value(response)["error"]["message"]


def test_too_many_parameters_are_refused(memory):
    config = ServiceConfig(port=0, farm_url="http://127.0.0.1:1")
    query = "&".join(f"p{number}=1" for number in range(MAX_PARAMS + 1))
    with serve_in_thread(config, store=memory) as running:
        assert httpx.get(f"{running.url}/v1/compile/{'a' * 64}?{query}").status_code == 400


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
