"""What the routes of one service share, and the namespaces that it serves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from cache import farms, revocation
from cache import key as keys
from cache.artifacts import open_entry
from cache.config import ServiceConfig
from cache.digest import digest
from cache.errors import CacheError, NoSwap, ProtocolError, Revoked
from cache.fence import Fence
from cache.metrics import ServiceMetrics
from cache.open_store import collected_part
from cache.protocol import Value
from cache.reader import Reader
from cache.revocation import Revocations
from cache.seal import split
from cache.signing import PublicKey
from cache.single_flight import SingleFlight
from cache.store import SwapStore
from cache.tracing import Tracing
from cache.trust import Trust

log = logging.getLogger("fusec.cache")

DESCRIBE_SECONDS = 10.0
"""For how long a description of the store is kept: making one may walk a directory."""
REVOKED_SECONDS = 10.0
"""For how long a list of revocations is believed; another replica may have changed it."""
MAX_NAMESPACES = 256
TOUCH_SECONDS = 86_400.0
"""A service writes down that an entry is in use at most this often."""
MAX_TOUCHED = 1 << 17
TOUCHING = 4
"""Most of such notes on their way at the same time."""


# A read, not a question for existence: S3 answers the latter "no" where the bucket is missing.
_PROBE = keys.make("graph", digest(b"fusec readiness probe"))


class Space:
    """One namespace: its store, its reader, its revocations. Lives in one event loop."""

    def __init__(
        self,
        namespace: str,
        store: SwapStore,
        reader: Reader,
        metrics: ServiceMetrics,
        trusted: tuple[PublicKey, ...] | None,
        *,
        touches: bool = False,
    ) -> None:
        self.namespace = namespace
        self.store = store
        self.reader = reader
        self._collected = collected_part(store)
        self.fence = Fence(store, self._collected, reader.call)
        self._metrics = metrics
        self._trusted = trusted
        self._touches = touches and self._collected is not None
        self._touched: dict[str, float] = {}
        self._touching: set[asyncio.Future[None]] = set()
        self._revoked = revocation.NONE
        self._revoked_at = float("-inf")
        self._refresh = SingleFlight(self._read_revoked)

    async def entry(self, key: str, *, fresh: bool = False) -> bytes | None:
        """An entry's bytes; None where there is none or it is revoked. fresh: see `Reader`."""
        data = await self.reader.entry(key, fresh=fresh)
        if data is None:
            return None
        revoked = await self.revoked()
        if revoked and _is_revoked(revoked, key, data):
            self._metrics.misses.labels(keys.kind_of(key), "revoked").inc()
            return None
        if self._touches:
            self._used(key)
        return data

    async def writers_trust(self) -> Trust:
        """What an entry must fulfil to be written here."""
        revoked = await self.revoked()
        if self._trusted is None:
            return Trust(unsigned=True, any_signer=True, revoked=revoked)
        return Trust(self._trusted, self.namespace, revoked=revoked)

    async def revoked(self) -> Revocations:
        """The list, REVOKED_SECONDS old at most; older while the store does not answer."""
        if time.monotonic() - self._revoked_at < REVOKED_SECONDS:
            return self._revoked
        await self._refresh.get()
        return self._revoked

    def set_revoked(self, revoked: Revocations) -> None:
        """The list was changed through this service."""
        self._revoked, self._revoked_at = revoked, time.monotonic()

    def _used(self, key: str) -> None:
        """Write down that an entry is in use, a day after the last time, beside the caller."""
        now = time.monotonic()
        if now - self._touched.get(key, float("-inf")) < TOUCH_SECONDS:
            return
        if len(self._touching) >= TOUCHING:
            return  # the next use will do: readers must not wait behind what is written down
        if len(self._touched) >= MAX_TOUCHED:
            self._touched.clear()
        self._touched[key] = now
        task = asyncio.ensure_future(self._touch(key))
        self._touching.add(task)
        task.add_done_callback(self._touching.discard)

    async def _touch(self, key: str) -> None:
        assert self._collected is not None
        try:
            await self.reader.call(self._collected.touch_entry, key)
        except NoSwap as error:
            self._touches = False
            self._metrics.errors.labels("touch").inc()
            text = "entries in use go by their age all the same: %s"
            log.warning(text, error, extra={"action": "touch"})
        except CacheError as error:
            # It may go too early then, and be compiled again.
            self._metrics.errors.labels("touch").inc()
            log.warning("an entry's use is not written down: %s", error, extra={"action": "touch"})

    async def _read_revoked(self) -> None:
        started = time.monotonic()
        try:
            made = await self.reader.call(revocation.read, self.store)
            if self._revoked_at < started:  # else a change came through in the meantime
                self._revoked = made
        except CacheError as error:
            # What was known goes on to count; the store is asked again after a while.
            self._metrics.errors.labels("revoked").inc()
            log.warning("the revocations cannot be read: %s", error, extra={"action": "revoked"})
        finally:
            self._revoked_at = max(self._revoked_at, time.monotonic())


@dataclass(frozen=True)
class Caller:
    """Who asks: the role that the token gives, and the namespace that it is about."""

    role: str
    space: Space


class ServiceState:
    """One service's configuration, namespaces, metrics and connections to the farm.

    `open_space` makes a namespace on its first use; it is called in a thread.
    """

    def __init__(
        self,
        config: ServiceConfig,
        default: Space,
        open_space: Callable[[str], Space],
        metrics: ServiceMetrics,
        tracing: Tracing,
    ) -> None:
        self.config = config
        self.default = default
        self.metrics = metrics
        self.tracing = tracing
        self.started = time.time()
        self._open_space = open_space
        self._spaces = {default.namespace: default}
        self._opening = asyncio.Lock()
        self.gateways = farms.Gateways(config.farm_urls(), resolve=farms.addresses)
        self._farm: httpx.AsyncClient | None = None
        self._described: dict[str, Value] = {}
        self._described_at = float("-inf")
        # Anybody may ask for these, without a token: the store is asked once for all who do.
        reader, store = default.reader, default.store
        self._describing = SingleFlight(lambda: reader.call(store.describe))
        self._asking = SingleFlight(lambda: reader.call(store.get_entry, _PROBE))

    async def space(self, namespace: str) -> Space:
        """A namespace, opened on its first use. Raises what opening its store raises."""
        found = self._spaces.get(namespace)
        if found is not None:
            return found
        async with self._opening:
            if namespace not in self._spaces:
                if len(self._spaces) >= MAX_NAMESPACES:
                    raise ProtocolError(f"more than {MAX_NAMESPACES} namespaces")
                self._spaces[namespace] = await self.default.reader.call(
                    self._open_space, namespace
                )
            return self._spaces[namespace]

    def spaces(self) -> list[Space]:
        """The namespaces that are open."""
        return list(self._spaces.values())

    @property
    def memory_used(self) -> int:
        """Bytes kept in memory, for all namespaces."""
        return self.default.reader.memory_used

    def farm(self) -> httpx.AsyncClient:
        """Connections to the farm's gateways."""
        if self._farm is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            # Loading certificates holds everybody up for 0.1 s: only where there is TLS.
            is_tls = any(url.startswith("https:") for url in self.gateways.urls)
            verify = self.config.farm_tls().context() if is_tls else False
            self._farm = httpx.AsyncClient(trust_env=False, limits=limits, verify=verify)
        return self._farm

    async def describe(self) -> dict[str, Value]:
        """What the default store says of itself, at most DESCRIBE_SECONDS old."""
        if time.monotonic() - self._described_at > DESCRIBE_SECONDS:
            self._described = await self._describing.get()
            self._described_at = time.monotonic()
        return self._described

    async def ask(self) -> None:
        """Ask the default store something. Raises what it raises."""
        await self._asking.get()

    async def close(self) -> None:
        """Close the connections to the farm."""
        self.gateways.close()
        if self._farm is not None:
            await self._farm.aclose()


def _is_revoked(revoked: Revocations, key: str, data: bytes) -> bool:
    """Whether the list covers an entry. One that does not decode is the reader's to refuse."""
    try:
        if not revoked.digests:
            return revoked.reason(key, split(data)[0]) is not None
        open_entry(key, data, Trust(unsigned=True, any_signer=True, revoked=revoked))
    except Revoked:
        return True
    except CacheError:
        return False
    return False
