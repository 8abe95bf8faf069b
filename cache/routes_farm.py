"""The compile routes: handed on to a gateway of the farm as they are, and its answers back.

Everything about one graph goes to the same gateway while that answers, else to the next one: all of
these requests may be repeated, and gateways agree among themselves on who compiles.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from typing import Final

import httpx

from cache import digest as digests
from cache import protocol as wire
from cache.asgi import Request, Response, packed
from cache.errors import ProtocolError, TooLarge
from cache.farms import QUIET_S
from cache.page import HEADERS as PAGE_HEADERS
from cache.service_state import Caller, ServiceState
from cache.tracing import headers_of

CONNECT_SECONDS: Final = 2.0
ANSWER_SECONDS: Final = 120.0
"""Longest time for an answer of the farm; a long poll waits less."""
SPARE_SECONDS: Final = 1.0
"""How much longer than it should take an answer is waited for, while there is another gateway."""
UPLOAD_BYTES_PER_SECOND: Final = 4 << 20
ALIVE_SECONDS: Final = 2.0
"""A gateway that does not say within this that it is well is taken for dead."""
_PASSED_BACK = ("retry-after", *(name for name, _ in PAGE_HEADERS))
_BROKEN_OFF = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError, httpx.ConnectError)


async def forward(state: ServiceState, caller: Caller, request: Request, last: str) -> Response:
    """Pass a request on. 503 when no farm is configured or no gateway answers."""
    gateways = state.gateways
    if not gateways.urls:
        return _unavailable("no compile farm is configured")
    body = await request.body(wire.MAX_SUBMIT) if request.method == "POST" else b""
    state.metrics.bytes.labels("in").inc(len(body))
    params = request.params()
    asked = gateways.of(last if digests.is_digest(last) else _graph(params, body))
    headers = _headers(state, caller, request)
    refusal: Response | None = None
    for number, url in enumerate(asked, 1):
        only = number == len(asked)
        allowed = _timeout(params, body, only=only)
        passed = _Passed(url, gateways.host(url), request, body, headers, allowed)
        try:
            # A busy gateway may be late: where there is no other one, it is waited for.
            answer = await (passed.on(state.farm()) if only else _attended(state, passed))
        except httpx.HTTPError as error:
            state.metrics.errors.labels("farm").inc()
            gateways.silent(url)
            refusal = refusal or _unavailable(f"no gateway answers: {type(error).__name__}")
            continue
        finally:
            state.metrics.gateways_down.set(gateways.down)
        gateways.answered(url)
        if answer.status != 503:
            return answer
        refusal = answer  # it is being drained, or its store is away: another one may do it
    assert refusal is not None
    return refusal


@dataclass(frozen=True, slots=True)
class _Passed:
    """A request as it goes to one gateway, which shows a certificate of `host`."""

    url: str
    host: str
    request: Request
    body: bytes
    headers: dict[str, str]
    timeout: httpx.Timeout

    async def on(self, http: httpx.AsyncClient) -> Response:
        """The gateway's answer. Raises httpx.HTTPError without one, TooLarge."""
        try:
            return await self._once(http)
        except _BROKEN_OFF:
            # It may have closed a connection that was idle just when this one took it, and its
            # address may be that of several, of which one has gone.
            return await self._once(http)

    async def _once(self, http: httpx.AsyncClient) -> Response:
        request = self.request
        query = f"?{request.query}" if request.query else ""
        async with http.stream(
            request.method,
            f"{self.url}{request.path}{query}",
            content=self.body or None,
            headers=self.headers,
            timeout=self.timeout,
            extensions=self._extensions,
        ) as answer:
            return await _relay(answer)

    async def is_well(self, http: httpx.AsyncClient) -> bool:
        """Whether the gateway says so."""
        address = f"{self.url}/healthz"
        try:
            answer = await http.get(address, timeout=ALIVE_SECONDS, extensions=self._extensions)
        except httpx.HTTPError:
            return False
        return answer.is_success

    @property
    def _extensions(self) -> dict[str, str]:
        return {"sni_hostname": self.host}


async def _attended(state: ServiceState, passed: _Passed) -> Response:
    """The gateway's answer, for as long as the gateway lives: a long poll says nothing for seconds,
    and neither does a machine that is gone. Raises httpx.HTTPError, TooLarge."""
    http = state.farm()
    answer = asyncio.ensure_future(passed.on(http))
    try:
        while not (await asyncio.wait([answer], timeout=QUIET_S))[0]:
            lives = await state.gateways.lives(passed.url, lambda: passed.is_well(http))
            if not lives and not answer.done():
                raise httpx.ReadTimeout("it does not say that it is well either")
        return answer.result()
    finally:
        answer.cancel()


def _graph(params: dict[str, str], body: bytes) -> str:
    """What a submit is about, as its sender says; whoever says it wrongly waits a little longer."""
    shown = params.get("fingerprint", "")
    return shown if digests.is_digest(shown) else hashlib.sha256(body).hexdigest()


def _headers(state: ServiceState, caller: Caller, request: Request) -> dict[str, str]:
    headers = {"content-type": request.headers.get("content-type", wire.MSGPACK)}
    headers[wire.ROLE_HEADER] = caller.role
    if caller.space.namespace:
        headers[wire.NAMESPACE_HEADER] = caller.space.namespace
    headers.update(headers_of(state.tracing))
    if state.config.farm_token:
        headers["authorization"] = f"Bearer {state.config.farm_token}"
    return headers


def _timeout(params: dict[str, str], body: bytes, *, only: bool) -> httpx.Timeout:
    """How long to wait for a gateway, `only` if there is no other one to ask.

    A client waits for two seconds and more than a poll or an upload should take: the next gateway
    is asked before that.
    """
    if only:
        return httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
    try:
        wait_s = float(params.get("wait", "0"))
    except ValueError as error:
        raise ProtocolError("wait is no number") from error
    if not wait_s >= 0:  # also refuses a NaN
        raise ProtocolError("wait is out of range")
    wait_s = min(wait_s, ANSWER_SECONDS)
    answer_s = SPARE_SECONDS + wait_s + len(body) / UPLOAD_BYTES_PER_SECOND
    return httpx.Timeout(answer_s, connect=SPARE_SECONDS)


async def _relay(answer: httpx.Response) -> Response:
    chunks: list[bytes] = []
    size = 0
    async for chunk in answer.aiter_bytes():
        size += len(chunk)
        if size > wire.MAX_MANIFEST:
            raise TooLarge(f"an answer of the farm over {wire.MAX_MANIFEST} bytes")
        chunks.append(chunk)
    kept = tuple((name, answer.headers[name]) for name in _PASSED_BACK if name in answer.headers)
    kind = answer.headers.get("content-type", wire.MSGPACK)
    return Response(answer.status_code, b"".join(chunks), kind, kept)


def _unavailable(message: str) -> Response:
    return packed(503, {"error": {"kind": "NoFarm", "message": message}})
