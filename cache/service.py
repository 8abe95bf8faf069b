"""The cache service: an ASGI application in front of a store.

This file is the wiring: routes, roles, errors to statuses. What a route does is in
`cache.routes_cache` and `cache.routes_farm`; reading and merging is in `cache.reader`.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from cache import auth, routes_cache, routes_farm, routes_records, routes_status
from cache import key as keys
from cache import protocol as wire
from cache.asgi import App, Receive, Request, Response, Scope, Send, packed
from cache.config import ServiceConfig, is_loopback
from cache.counters import Counters
from cache.errors import (
    CacheError,
    Corrupt,
    Fenced,
    MissingBlobs,
    NoSwap,
    NotBetter,
    NotReachable,
    Refused,
    StoreFull,
    TooLarge,
    Untrusted,
)
from cache.gc import Collectable, Policy, shares
from cache.lru import ByteLRU
from cache.metrics import UNTRUSTED, ServiceMetrics
from cache.open_store import collected_part, copies, disk_folder, open_store
from cache.open_tracing import open_tracing
from cache.reader import Reader
from cache.schedule import Collections
from cache.series import OTHER
from cache.service_state import Caller, ServiceState, Space
from cache.signing import read_trusted
from cache.store import SwapStore
from cache.tracing import HEADER

log = logging.getLogger("fusec.cache")

Handler = Callable[[ServiceState, Caller, Request, str], Awaitable[Response]]
DISK_EVERY_S = 600.0
"""How often the copies on this disk are looked at where no collections are scheduled."""
_HEX = "[0-9a-f]{64}"
_RECORD = f"(?:{'|'.join(keys.RECORDS)})/{_HEX}"
_KEY = f"(?:{'|'.join(sorted(keys.KINDS))})/{_HEX}"


@dataclass(frozen=True)
class Route:
    """A method, a path (its one group is handed to the handler), the role it takes ("" = none)."""

    method: str
    path: re.Pattern[str]
    role: str
    name: str
    handler: Handler


def _route(method: str, path: str, role: str, name: str, handler: Handler) -> Route:
    return Route(method, re.compile(path), role, name, handler)


FARM_PAGE = "farm_page"
"""The route that a person opens in a browser, which asks for the token as a password."""

ROUTES = (
    _route("GET", f"/v1/entries/({_KEY})", "read", "entry_get", routes_cache.entry_get),
    _route("POST", "/v1/entries/lookup()", "read", "entry_lookup", routes_cache.entry_lookup),
    _route("PUT", f"/v1/entries/({_KEY})", "write", "entry_put", routes_cache.entry_put),
    _route("DELETE", f"/v1/entries/({_KEY})", "admin", "entry_delete", routes_cache.entry_delete),
    _route("GET", f"/v1/records/({_RECORD})", "write", "record_get", routes_records.record_get),
    _route("PUT", f"/v1/records/({_RECORD})", "write", "record_swap", routes_records.record_swap),
    _route("GET", "/v1/revoked()", "read", "revoked_get", routes_cache.revoked_get),
    _route("PUT", "/v1/revoked()", "admin", "revoked_put", routes_cache.revoked_put),
    _route("POST", "/v1/blobs/has()", "read", "blobs_has", routes_cache.blobs_has),
    _route("POST", "/v1/blobs/get()", "read", "blobs_get", routes_cache.blobs_get),
    _route("GET", f"/v1/blobs/({_HEX})", "read", "blob_get", routes_cache.blob_get),
    _route("PUT", f"/v1/blobs/({_HEX})", "write", "blob_put", routes_cache.blob_put),
    _route("POST", "/v1/compile/(submit)", "submit", "compile_submit", routes_farm.forward),
    _route("POST", f"/v1/compile/({_HEX})", "submit", "compile_join", routes_farm.forward),
    _route("GET", f"/v1/compile/({_HEX})", "submit", "compile_poll", routes_farm.forward),
    _route("DELETE", f"/v1/compile/({_HEX})", "submit", "compile_cancel", routes_farm.forward),
    _route("GET", "/v1/farm/(status)", "admin", "farm_status", routes_farm.forward),
    _route("POST", "/v1/farm/([a-z]{1,16})", "admin", "farm_control", routes_farm.forward),
    _route("GET", "/(farm)", "admin", FARM_PAGE, routes_farm.forward),
    _route("GET", "/v1/stats()", "read", "stats", routes_status.stats),
    _route("GET", "/healthz()", "", "healthz", routes_status.healthz),
    _route("GET", "/readyz()", "", "readyz", routes_status.readyz),
    _route("GET", "/metrics()", "", "metrics", routes_status.metrics),
    _route("GET", "/()", "", "status", routes_status.page),
)

ROUTE_NAMES = tuple(route.name for route in ROUTES)
"""What routes are called in metrics and logs."""


def create_app(
    config: ServiceConfig,
    *,
    store: SwapStore | None = None,
    registry: CollectorRegistry | None = None,
) -> App:
    """The application. `store` replaces the one that `config` names for the default namespace (for
    a farm that shares its store object); `registry` takes the metrics of several parts of one
    process together. Raises ConfigError, or what opening the store raises."""
    counters = Counters()
    metrics = ServiceMetrics(registry or CollectorRegistry(), ROUTE_NAMES)
    metrics.watch_store(counters)
    folder = disk_folder(config)
    if folder is not None:
        metrics.watch_disk(folder)
    tracing = open_tracing(config.tracing, "fusec-cache")
    executor = ThreadPoolExecutor(config.store_threads, thread_name_prefix="fusec-cache-store")
    memory: ByteLRU[str] = ByteLRU(config.memory_bytes)
    metrics.watch_memory(memory)
    trusted = read_trusted(Path(config.trusted_keys)) if config.trusted_keys else None

    def open_space(namespace: str) -> Space:
        given = store if not namespace else None
        chosen = given if given is not None else open_store(config, counters, namespace)
        reader = Reader(
            chosen,
            executor,
            metrics,
            memory=memory,
            prefix=f"{namespace}:",
            entry_ttl_s=config.entry_ttl_s,
            tracing=tracing,
        )
        return Space(namespace, chosen, reader, metrics, trusted, touches=config.policy().needs_use)

    state = ServiceState(config, open_space(""), open_space, metrics, tracing)
    collections: list[Collections] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            if config.gc_every_s or config.disk:
                collections.append(_collections(config, state, counters))
            await _startup(receive, send)
            for running in collections:
                await running.stop()
            await state.close()
            executor.shutdown(wait=True)
            tracing.close()
            # Last: the server ends its event loop as soon as it hears this.
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http":
            response = await _answer(state, Request.of(scope, receive))
            metrics.bytes.labels("out").inc(response.size)
            await response.send(send)

    return app


def _collections(config: ServiceConfig, state: ServiceState, counters: Counters) -> Collections:
    """The schedule over the namespaces that are open at the time, and over all copies on this disk;
    started."""

    def stores() -> list[tuple[Collectable, Policy]]:
        made: list[tuple[Collectable, Policy]] = []
        for space in state.spaces() if config.gc_every_s else ():
            part = collected_part(space.store)
            if part is not None:
                made.append((part, config.policy()))
        near = copies(state.default.store, counters)
        made += zip(near, shares(near, config.disk_bytes), strict=True)
        return made

    running = Collections(config.gc_every_s or DISK_EVERY_S, stores, state.metrics.count_collection)
    running.start()
    return running


async def _answer(state: ServiceState, request: Request) -> Response:
    started = time.perf_counter()
    name, response = await _dispatch(state, request)
    state.metrics.seconds.labels(name).observe(time.perf_counter() - started)
    state.metrics.requests.labels(name, str(response.status)).inc()
    return response


async def _dispatch(state: ServiceState, request: Request) -> tuple[str, Response]:
    allowed: list[str] = []
    for route in ROUTES:
        match = route.path.fullmatch(request.path)
        if match is None:
            continue
        if route.method != request.method:
            allowed.append(route.method)
            continue
        asks = "Basic" if route.name == FARM_PAGE else "Bearer"
        role, namespace = _access(state.config, request, route.role, asks)
        if isinstance(role, Response):
            return route.name, role
        try:
            space = await state.space(keys.require_namespace(namespace))
            handled = route.handler(state, Caller(role, space), request, match.group(1))
            with state.tracing.serving(route.name, request.headers.get(HEADER, "")):
                return route.name, await handled
        except CacheError as error:
            status = status_of(error)
            state.metrics.errors.labels(route.name).inc()
            if isinstance(error, Untrusted):
                state.metrics.untrusted.labels(UNTRUSTED.get(type(error), OTHER)).inc()
            level = logging.WARNING if status >= 500 else logging.INFO
            log.log(level, "%s: %s", route.name, error, extra={"action": route.name})
            return route.name, error_response(status, error)
    if allowed:
        text = ", ".join(sorted(allowed))
        return "none", Response(405, b"", headers=(("allow", text),))
    return "none", packed(404, {"error": {"kind": "NotFound", "message": "no such path"}})


def status_of(error: CacheError) -> int:
    """The HTTP status that stands for an error. The one place that decides it."""
    if isinstance(error, Untrusted):
        return 403
    if isinstance(error, MissingBlobs):
        return 409
    if isinstance(error, NotBetter):
        return 412
    if isinstance(error, Fenced):
        return 423
    if isinstance(error, NoSwap):
        return 501
    if isinstance(error, TooLarge):
        return 413
    if isinstance(error, Corrupt):
        return 422
    if isinstance(error, StoreFull):
        return 507
    # A store that refuses us is the service's trouble, not that of whoever asks.
    if isinstance(error, NotReachable | Refused):
        return 503
    return 400


def error_response(status: int, error: CacheError) -> Response:
    """An error as a reply. Of trouble with the store only the kind is told to strangers."""
    message = "the store is not reachable" if status == 503 else error.message
    return packed(status, {"error": {"kind": type(error).__name__, "message": message}})


def _access(
    config: ServiceConfig, request: Request, needed: str, asks: str
) -> tuple[str | Response, str]:
    """The caller's role and the namespace that it asks about, or the refusal.

    asks: the scheme that is asked for. Basic is for pages that change nothing: a browser sends it
    along unasked.
    """
    namespace = request.headers.get(wire.NAMESPACE_HEADER, "") if needed else ""
    if not config.tokens:
        if config.insecure or _host_is_loopback(request.headers.get("host", "")):
            return auth.ROLES[-1], namespace
        # A web page that points its own name at 127.0.0.1 must not get in.
        return _refused(403, "without tokens only this machine is served, under a loopback name")
    if not needed:
        return "", ""
    shown = request.headers.get("authorization", "")
    if asks == "Basic":
        shown = auth.bearer_of_basic(shown) or shown
    if not auth.is_known(config.tokens, shown):
        return _refused(401, "a valid bearer token is needed", asks)
    role = auth.role_of(config.tokens, shown, namespace)
    if role is None:
        return _refused(403, "the token is not for this namespace")
    if not auth.allows(role, needed):
        return _refused(403, f"the role {needed} is needed; the token has {role}")
    return role, namespace


def _refused(status: int, message: str, asks: str = "Bearer") -> tuple[Response, str]:
    body = wire.pack({"error": {"kind": "Refused", "message": message}})
    challenge = "Bearer" if asks == "Bearer" else 'Basic realm="fusec: any user, the token"'
    asked = (("www-authenticate", challenge),) if status == 401 else ()
    return Response(status, body, headers=asked), ""


def _host_is_loopback(host: str) -> bool:
    name = (
        host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.split(":")[0]
    )
    return is_loopback(name)


async def _startup(receive: Receive, send: Send) -> None:
    """Announce the start, then wait for the shutdown."""
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
