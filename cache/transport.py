"""HTTP exchanges of the client: bounded in bytes, bounded in time, retried once, broken when dead.

The part that knows httpx. What it gives its caller is a status and a body, or NotReachable.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from cache import protocol as wire
from cache.breaker import MIN_RATE, DelayBudget
from cache.counters import ClientMetrics
from cache.errors import (
    CacheError,
    ConfigError,
    Corrupt,
    Fenced,
    MissingBlobs,
    NoSwap,
    NotReachable,
    ProtocolError,
    Refused,
    StoreFull,
    TooLarge,
)
from cache.tls import ClientTls
from cache.tracing import OFF, Tracing, headers_of

_RETRIED = (httpx.ConnectError, httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)
_JUDGED = frozenset({501, 507})
_PROBE_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Reply:
    """A complete answer."""

    status: int
    body: bytes
    location: str = ""


class _Stalled(Exception):
    """A transfer is slower than MIN_RATE for longer than the budget allows."""


class _Cut(Exception):
    """The connection ended in an answer's body. `received`: what had come of it, where the service
    gives the rest by itself (a range)."""

    def __init__(self, error: httpx.HTTPError, received: bytes) -> None:
        super().__init__(_describe(error))
        self.error = error
        self.received = received


class Transport:
    """Exchanges with one service; `headers` go with every request but probes.

    Raises ConfigError if `url` is not a plain http(s) address, or for certificates that are none.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        budget: DelayBudget,
        metrics: ClientMetrics,
        tls: ClientTls | None = None,
        tracing: Tracing = OFF,
    ) -> None:
        self.url = _checked(url)
        self._headers = dict(headers)
        # Certificates take 30 ms to load, and plain http has no use for them.
        is_tls = self.url.startswith("https:")
        self._verify = (tls or ClientTls()).context() if is_tls else False
        self._budget = budget
        self._metrics = metrics
        self._tracing = tracing
        self._lock = threading.Lock()
        self._http: httpx.Client | None = None
        self._pid = 0
        self._inherited: list[httpx.Client] = []

    def close(self) -> None:
        """Close all connections; the next exchange opens new ones."""
        with self._lock:
            if self._http is not None and self._pid == os.getpid():
                self._http.close()
            self._http = None

    def exchange(
        self,
        method: str,
        path: str,
        *,
        limit: int,
        body: bytes | None = None,
        params: Mapping[str, str | int | float] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Reply:
        """See `_exchange`, which a span goes around."""
        with self._tracing.span(method, path=path):
            traced = {**headers_of(self._tracing), **(headers or {})}
            return self._exchange(
                method, path, limit=limit, body=body, params=params, headers=traced, timeout=timeout
            )

    def _exchange(
        self,
        method: str,
        path: str,
        *,
        limit: int,
        body: bytes | None,
        params: Mapping[str, str | int | float] | None,
        headers: Mapping[str, str],
        timeout: float | None,
    ) -> Reply:
        """One request and its answer of at most `limit` bytes, whatever its status below 500.

        Without `timeout` the time is the budget's and a 5xx is NotReachable, but for what a live
        service says of its store (501, 507). With it, the caller's time applies to the answer (the
        budget's still to the connection) and any status is returned. Of a body that was cut only
        the rest is asked for, where it can be. Raises TooLarge if the answer is larger than
        `limit`.
        """
        try:
            self._budget.admit()
        except NotReachable:
            self._metrics.add("short_circuits")
            self._probe_if_due()
            raise
        self._client()  # made before the time that the remote may take begins
        begun = b""
        for last in (False, True):
            allowed = self._budget.admit()
            started = time.monotonic()
            try:
                rest = {"range": f"bytes={len(begun)}-"} if begun else {}
                asked, left = {**headers, **rest}, limit - len(begun)
                reply = self._once(method, path, body, params, asked, left, allowed, timeout)
            except (httpx.HTTPError, _Cut, _Stalled) as error:
                reason = _describe(error)
                self._lost(time.monotonic() - started, f"{method} {self.url}{path}: {reason}")
                cause = error.error if isinstance(error, _Cut) else error
                again = not last and isinstance(cause, _RETRIED)
                pause = self._budget.retry_after() if again else None
                if pause is None:
                    raise NotReachable(f"{self.url}{path}: {reason}") from error
                time.sleep(pause)
                begun = error.received if isinstance(error, _Cut) else b""
                self._metrics.add("retries")
                continue
            waited = time.monotonic() - started
            if timeout is None and reply.status >= 500 and reply.status not in _JUDGED:
                self._lost(waited, f"{method} {self.url}{path}: status {reply.status}")
                raise NotReachable(f"{self.url}{path}: {_error_text(reply)}")
            transfer = (len(reply.body) + len(body or b"")) / MIN_RATE
            self._budget.succeeded(0.0 if timeout is not None else max(0.0, waited - transfer))
            if begun and reply.status == 206:
                self._metrics.add("resumed")
                return Reply(200, begun + reply.body)
            return reply
        raise AssertionError("unreachable")

    def fetch_elsewhere(self, url: str, *, limit: int) -> bytes | None:
        """What lies at an address that the service gave, without our token; None if that fails.

        The bytes are nobody's word: the caller checks them. A failure is no fault of the service,
        which is asked for the bytes themselves then, and costs the budget its time.
        """
        allowed = self._budget.admit()
        started = time.monotonic()
        chunks: list[bytes] = []
        received = 0
        try:
            verify = self._verify if url.startswith(self.url) else url.startswith("https:")
            with (
                httpx.Client(trust_env=False, verify=verify, follow_redirects=False) as http,
                http.stream("GET", url, timeout=allowed) as response,
            ):
                if response.status_code != 200 or not url.startswith(("http://", "https://")):
                    raise _Stalled
                for chunk in response.iter_raw():
                    chunks.append(chunk)
                    received += len(chunk)
                    late = time.monotonic() - started > allowed + received / MIN_RATE
                    if received > limit or late:
                        raise _Stalled
        except (httpx.HTTPError, httpx.InvalidURL, _Stalled):
            self._metrics.add("redirects_failed")
            self._budget.succeeded(time.monotonic() - started)
            return None
        self._metrics.add("redirects")
        self._metrics.add("bytes_in", received)
        return b"".join(chunks)

    def _once(
        self,
        method: str,
        path: str,
        body: bytes | None,
        params: Mapping[str, str | int | float] | None,
        headers: Mapping[str, str],
        limit: int,
        allowed: float,
        timeout: float | None,
    ) -> Reply:
        patience = timeout or allowed + len(body or b"") / MIN_RATE
        limits = httpx.Timeout(patience, connect=allowed)
        http = self._client()
        self._metrics.add("requests")
        started = time.monotonic()
        with http.stream(
            method,
            self.url + path,
            content=body,
            params=params,
            headers={**self._headers, **headers},
            timeout=limits,
        ) as response:
            expected = response.headers.get("content-length", "")
            ranges = response.headers.get("accept-ranges") == "bytes" and method == "GET"
            chunks: list[bytes] = []
            received = 0
            try:
                for chunk in response.iter_raw():
                    chunks.append(chunk)
                    received += len(chunk)
                    if received > limit:
                        raise TooLarge(f"{self.url}{path}: an answer over {limit} bytes")
                    late = time.monotonic() - started > patience + received / MIN_RATE
                    if late and expected != str(received):
                        raise _Stalled
            except httpx.HTTPError as error:
                kept = ranges and response.status_code == 200
                raise _Cut(error, b"".join(chunks) if kept else b"") from error
        self._metrics.add("bytes_in", received)
        self._metrics.add("bytes_out", len(body or b""))
        location = response.headers.get("location", "")
        return Reply(response.status_code, b"".join(chunks), location)

    def _client(self) -> httpx.Client:
        with self._lock:
            if self._http is None or self._pid != os.getpid():
                if self._http is not None:
                    # After a fork the parent's sockets are the parent's: not to be closed by the
                    # collector either, which over TLS would say goodbye in its name.
                    self._inherited.append(self._http)
                self._http = httpx.Client(
                    trust_env=False,
                    verify=self._verify,
                    follow_redirects=False,
                    headers={"accept-encoding": "zstd", "user-agent": "fusec"},
                    limits=httpx.Limits(max_connections=None, max_keepalive_connections=16),
                )
                self._pid = os.getpid()
            return self._http

    def _lost(self, seconds: float, reason: str) -> None:
        self._metrics.add("errors")
        self._budget.failed(seconds, reason)

    def _probe_if_due(self) -> None:
        if self._budget.take_probe():
            self._metrics.add("probes")
            threading.Thread(target=self._probe, name="fusec-cache-probe", daemon=True).start()

    def _probe(self) -> None:
        alive = False
        try:
            # Its own connection: those of before the outage may be dead.
            with httpx.Client(
                trust_env=False, timeout=_PROBE_TIMEOUT_S, verify=self._verify
            ) as http:
                alive = http.get(self.url + wire.PATH_HEALTH).status_code == 200
        except httpx.HTTPError:
            alive = False
        finally:
            self._budget.probed(alive)
        if alive:
            self._metrics.add("recoveries")


def check_status(reply: Reply, path: str) -> None:
    """Raise the error that an answer's status stands for; nothing for 2xx."""
    if 200 <= reply.status < 300:
        return
    text = f"{path}: {_error_text(reply)}"
    made: dict[int, type[CacheError]] = {
        401: Refused,
        403: Refused,
        409: MissingBlobs,
        413: TooLarge,
        422: Corrupt,
        423: Fenced,
        501: NoSwap,
        507: StoreFull,
    }
    raise made.get(reply.status, ProtocolError)(text)


def _error_text(reply: Reply) -> str:
    """What the service says went wrong, or its status where it says nothing readable."""
    try:
        value = wire.unpack(reply.body, max_bytes=wire.MAX_REQUEST, max_depth=4)
    except (ProtocolError, TooLarge):
        return f"status {reply.status}"
    error = value.get("error") if isinstance(value, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    known = f": {message}"[:500] if isinstance(message, str) else ""
    return f"status {reply.status}{known}"


def _describe(error: Exception) -> str:
    if isinstance(error, _Stalled):
        return f"slower than {MIN_RATE} bytes a second"
    if isinstance(error, _Cut):
        return str(error)
    return f"{type(error).__name__} {error}".strip()


def _checked(url: str) -> str:
    shown = url.rpartition("@")[2][:200]
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"not an address: {shown!r}", hint="give http://host:port") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"not an http address: {shown!r}", hint="give http://host:port")
    if parsed.userinfo:
        raise ConfigError("the address holds a password", hint="pass the token as a token")
    return url.rstrip("/")
