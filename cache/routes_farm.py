"""The compile routes: handed on to the farm's gateway as they are, and its answers back."""

from __future__ import annotations

import httpx

from cache import protocol as wire
from cache.asgi import Request, Response, packed
from cache.errors import TooLarge
from cache.service_state import Caller, ServiceState
from cache.tracing import headers_of

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 120.0
"""Longest time for an answer of the farm; a long poll waits less."""
_PASSED_BACK = ("retry-after",)


async def forward(state: ServiceState, caller: Caller, request: Request, _: str) -> Response:
    """Pass a request on. 503 when no farm is configured or it does not answer."""
    if not state.config.farm_url:
        return _unavailable("no compile farm is configured")
    body = await request.body(wire.MAX_SUBMIT) if request.method == "POST" else b""
    state.metrics.bytes.labels("in").inc(len(body))
    url = state.config.farm_url.rstrip("/") + request.path
    headers = {"content-type": request.headers.get("content-type", wire.MSGPACK)}
    headers[wire.ROLE_HEADER] = caller.role
    if caller.space.namespace:
        headers[wire.NAMESPACE_HEADER] = caller.space.namespace
    headers.update(headers_of(state.tracing))
    if state.config.farm_token:
        headers["authorization"] = f"Bearer {state.config.farm_token}"
    timeout = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
    try:
        async with state.farm().stream(
            request.method,
            f"{url}?{request.query}" if request.query else url,
            content=body or None,
            headers=headers,
            timeout=timeout,
        ) as answer:
            return await _relay(answer)
    except httpx.HTTPError as error:
        state.metrics.errors.labels("farm").inc()
        return _unavailable(f"the compile farm does not answer: {type(error).__name__}")


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
