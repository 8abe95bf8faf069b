"""Health, metrics and the page that a person reads."""

from __future__ import annotations

import html
import time

from cache import metrics as prometheus
from cache.asgi import Request, Response, packed
from cache.digest import digest
from cache.errors import CacheError
from cache.key import make
from cache.protocol import Value
from cache.service_state import Caller, ServiceState

# A read, not a question for existence: S3 answers the latter "no" where the bucket is missing.
_PROBE = make("graph", digest(b"fusec readiness probe"))


async def healthz(state: ServiceState, caller: Caller, request: Request, _: str) -> Response:
    """Alive: 200 as long as the process answers, whatever the store does."""
    return Response(200, b"ok\n", "text/plain")


async def readyz(state: ServiceState, caller: Caller, request: Request, _: str) -> Response:
    """Ready: 200 if the store answers a question, else 503."""
    try:
        await state.default.reader.call(state.default.store.get_entry, _PROBE)
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
    rows: list[tuple[str, Value]] = [
        ("up for", f"{time.time() - state.started:.0f} s"),
        ("in memory", f"{state.memory_used / 1e6:.1f} MB"),
        ("compile farm", ", ".join(state.gateways.urls) or "none configured"),
        ("access", "tokens" if state.config.tokens else "open"),
    ]
    try:
        described = await state.describe()
        rows += [(f"store: {name}", value) for name, value in described.items()]
    except CacheError as error:
        rows.append(("store", f"not reachable: {type(error).__name__}"))
    for family in state.metrics.registry.collect():
        if family.name in ("fusec_cache_hits", "fusec_cache_misses", "fusec_cache_inflight_merges"):
            rows += [
                (" ".join([sample.name, *sample.labels.values()]), f"{sample.value:.0f}")
                for sample in family.samples
                if sample.name.endswith("_total")
            ]
    cells = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(str(value))}</td></tr>"
        for name, value in rows
    )
    body = (
        "<!doctype html><meta charset=utf-8><title>fusec cache</title>"
        "<style>body{font:15px sans-serif;margin:2em}td{padding:.2em 1.5em .2em 0}</style>"
        f"<h1>fusec cache</h1><table>{cells}</table>"
        '<p><a href="/metrics">metrics</a> · <a href="/readyz">readiness</a>'
        + (' · <a href="/farm">compile farm</a>' if state.config.farm_url else "")
        + "</p>"
    )
    return Response(200, body.encode(), "text/html; charset=utf-8")
