"""Health, metrics and the page that a person reads."""

from __future__ import annotations

from collections.abc import Mapping

from cache import metrics as prometheus
from cache import status_page
from cache.asgi import Request, Response, packed
from cache.errors import CacheError
from cache.protocol import Value
from cache.service_state import Caller, ServiceState


async def healthz(state: ServiceState, caller: Caller, request: Request, _: str) -> Response:
    """Alive: 200 as long as the process answers, whatever the store does."""
    return Response(200, b"ok\n", "text/plain")


async def readyz(state: ServiceState, caller: Caller, request: Request, _: str) -> Response:
    """Ready: 200 if the store answers a question, else 503."""
    try:
        await state.ask()
    except CacheError as error:
        state.metrics.errors.labels("readyz").inc()
        return Response(503, f"store: {type(error).__name__}\n".encode(), "text/plain")
    return Response(200, b"ready\n", "text/plain")


async def stats(state: ServiceState, caller: Caller, request: Request, _: str) -> Response:
    """What the store and the memory hold."""
    return packed(200, {"store": await state.describe(), "memory": state.memory_used})


async def metrics(state: ServiceState, caller: Caller, request: Request, _: str) -> Response:
    """Metrics for Prometheus."""
    return Response(200, state.metrics.render(), prometheus.CONTENT_TYPE)


async def page(state: ServiceState, caller: Caller, request: Request, _: str) -> Response:
    """The status page. Shows counts and settings, never a token."""
    store: Mapping[str, Value] | str
    try:
        store = await state.describe()
    except CacheError as error:
        store = type(error).__name__
    return status_page.render(state, request, store)
