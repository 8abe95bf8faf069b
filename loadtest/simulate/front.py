"""The way from a rank to a gateway: the cache service's replicas, and the gateways behind them.

A gateway is the real ASGI application; the service is the processor time and the bytes that it
costs. A gateway that has died answers nobody and hears nothing: its own timers find a store that
does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

import httpx

from cache.asgi import App
from cache.farms import Gateways
from cache.protocol import MSGPACK, Value, pack, unpack
from fusec.remote.protocol import MAX_STATUS, SUBMIT_PATH
from loadtest.costs.model import Costs
from loadtest.simulate.host import Cores, Host
from loadtest.simulate.store import MB, Stores, Weather
from loadtest.simulate.virtual import VirtualLoop
from loadtest.simulate.workload import SimGraph

FIRST_PORT: Final = 8701  # of the first gateway; those of the others follow
ROUND_TRIP_S: Final = 0.001  # between two machines of one site
REFUSED: Final[tuple[int, Value]] = (
    503,
    {"error": {"kind": "NoFarm", "message": "the compile farm does not answer"}},
)


@dataclass
class Gateway:
    """One gateway, and the requests that it is at."""

    host: Host
    app: App
    requests: set[asyncio.Task[Any]] = field(default_factory=set)


class Front:
    """The service in front of the gateways, `count` of them, of which it has a list."""

    def __init__(
        self,
        loop: VirtualLoop,
        costs: Costs,
        stores: Stores,
        weather: Weather,
        *,
        count: int,
        cores: int,
        gbit_s: float,
    ) -> None:
        self.gateways: list[Gateway] = []
        self.cores = Cores(loop, cores)
        self.line = Cores(loop)
        self._loop = loop
        self._costs = costs
        self._stores = stores
        self._weather = weather
        self._bytes_s = gbit_s * 1e9 / 8
        self._known = Gateways([address(number) for number in range(count)], loop.time)
        self._kept: dict[str, float] = {}

    async def compile_route(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        *,
        body: Value = None,
        params: Mapping[str, str | int | float] | None = None,
        size: int = 0,
    ) -> tuple[int, Value]:
        """Pass a request on to a gateway, or the next one, as `cache.routes_farm` does. size: of
        the graph that it would bring."""
        await asyncio.sleep(ROUND_TRIP_S + self.line.reserve(size / self._bytes_s))
        await asyncio.sleep(self.cores.reserve(self._costs.requests.pass_on_s))
        graph = str((params or {}).get("fingerprint", path.rpartition("/")[2]))
        answer = REFUSED
        for url in self._known.of(graph):
            answer = await self.at_gateway(
                url, method, path, headers, body=body, params=params, size=size
            )
            if answer is REFUSED:
                self._known.silent(url)
                continue
            self._known.answered(url)
            if answer[0] != REFUSED[0]:
                break
        return answer

    async def at_gateway(
        self,
        url: str,
        method: str,
        path: str,
        headers: Mapping[str, str],
        *,
        body: Value = None,
        params: Mapping[str, str | int | float] | None = None,
        size: int = 0,
    ) -> tuple[int, Value]:
        """Ask one gateway, which pays for it."""
        costs = self._costs.requests
        gateway = self.gateways[(httpx.URL(url).port or 0) - FIRST_PORT]
        if not gateway.host.lives():
            return REFUSED
        if path == SUBMIT_PATH:
            paid = costs.submit_s + size / MB * costs.submit_mb_s
        else:
            paid = costs.join_s if method == "POST" else costs.poll_s
        task = asyncio.current_task()
        assert task is not None
        gateway.requests.add(task)
        try:
            await asyncio.sleep(gateway.host.core.reserve(paid))
            status, answer = await call(gateway.app, method, path, headers, body, params)
        except asyncio.CancelledError:
            if gateway.host.lives():
                raise
            task.uncancel()  # `kill` has cut the connection
            return REFUSED
        finally:
            gateway.requests.discard(task)
        return status, unpack(answer, max_bytes=MAX_STATUS) if answer else None

    def has(self, tenant: str, graph: SimGraph) -> bool:
        """Whether the artifact stands."""
        return self._stores.of(tenant).get_entry(f"graph/{graph.fingerprint}") is not None

    async def fetch(self, graph: SimGraph, *, fresh: bool) -> None:
        """Read an artifact that stands: its entry, from S3 where it must be fresh, and its blobs,
        from S3 the first time."""
        costs, size = self._costs, graph.artifact_bytes
        await asyncio.sleep(ROUND_TRIP_S)
        paid = 2 * costs.requests.lookup_s + size / MB * costs.requests.blob_mb_s
        await asyncio.sleep(self.cores.reserve(paid))
        name = graph.fingerprint
        if fresh and name not in self._kept:
            # Those that come while it is being read wait for the same answer.
            read_s = (2 * costs.store.get_s + size / MB * costs.store.mb_s) * self._weather.slow
            self._kept[name] = self._loop.time() + read_s
        await asyncio.sleep(max(0.0, self._kept.get(name, 0.0) - self._loop.time()))
        await asyncio.sleep(self.line.reserve(size / self._bytes_s))

    async def look_up(self) -> None:
        """Ask for an entry that may not be there: the store is asked, too."""
        await asyncio.sleep(ROUND_TRIP_S + self.cores.reserve(self._costs.requests.lookup_s))
        await asyncio.sleep(self._costs.store.get_s * self._weather.slow)

    def kill(self, gateway: Gateway) -> None:
        """A gateway is gone at once, and so are its connections."""
        gateway.host.die()
        for task in list(gateway.requests):
            task.cancel()


def address(number: int) -> str:
    """Where a gateway is, as `FarmConfig.address` says it."""
    return f"http://127.0.0.1:{FIRST_PORT + number}"


class ToPeers(httpx.AsyncBaseTransport):
    """The way from one gateway to another."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.AsyncBaseTransport`."""
        status, value = await self._front.at_gateway(
            str(request.url),
            request.method,
            request.url.path,
            dict(request.headers),
            params=dict(request.url.params),
        )
        if status == REFUSED[0]:
            raise httpx.ConnectError("the simulated gateway does not answer")
        return httpx.Response(status, content=pack(value))


async def call(
    app: App,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: Value = None,
    params: Mapping[str, str | int | float] | None = None,
) -> tuple[int, bytes]:
    """One request to an ASGI application in this loop: (status, body of the answer)."""
    packed = b"" if body is None else pack(body)
    sent = {"content-type": MSGPACK, "content-length": str(len(packed)), **headers}
    scope: MutableMapping[str, Any] = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": urlencode(params or {}).encode(),
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
    }
    status, answer = 0, b""

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": packed, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status, answer
        status = message.get("status", status)
        answer += message.get("body", b"")

    await app(scope, receive, send)
    return status, answer
