"""The client of the cache service: a `Store` over HTTP that never costs more than its budget."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from cache import artifacts, frames
from cache import digest as digests
from cache import key as keys
from cache import protocol as wire
from cache.breaker import DelayBudget
from cache.counters import ClientMetrics
from cache.errors import Corrupt, ProtocolError, TooLarge
from cache.lease import Claim
from cache.protocol import Value
from cache.revocation import KEY as REVOCATIONS_KEY
from cache.store import Blobs, check_blob, check_entry, check_record
from cache.tls import ClientTls
from cache.tracing import OFF, Tracing
from cache.transport import Transport, check_status
from cache.trust import NOBODY, Trust


class CacheClient:
    """Talks to a cache service at `url` (http or https). Safe for threads and after a fork.

    Implements `Store`. Every method raises NotReachable when the service is dead, too slow or
    answers 5xx: at once while the breaker is open, and after at most what `budget` has left
    otherwise. Writers, who would rather wait, pass a larger `budget`. `token` is sent as a bearer
    token and never shown. `namespace` is the one that all requests are about. `tls` says which
    certificates to trust and to show, for https.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        namespace: str = "",
        tls: ClientTls | None = None,
        budget: DelayBudget | None = None,
        metrics: ClientMetrics | None = None,
        tracing: Tracing = OFF,
    ) -> None:
        self.namespace = keys.require_namespace(namespace)
        self.metrics = metrics or ClientMetrics()
        self.budget = budget or DelayBudget()
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        if namespace:
            headers[wire.NAMESPACE_HEADER] = namespace
        self._transport = Transport(url, headers, self.budget, self.metrics, tls, tracing)
        self.url = self._transport.url
        self._claim: Claim | None = None

    def __repr__(self) -> str:
        return f"CacheClient({self.url!r})"

    def __enter__(self) -> CacheClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. The client may be used again; it opens new ones."""
        self._transport.close()

    # -- Store ---------------------------------------------------------------------------------

    def get_blob(self, digest: str) -> bytes | None:
        """See `Store`. Raises Corrupt if what arrived is not the blob."""
        digests.require(digest)
        path = f"{wire.PATH_BLOBS}/{digest}"
        follows = {wire.REDIRECT_HEADER: "1"}
        reply = self._transport.exchange("GET", path, limit=wire.MAX_FRAME, headers=follows)
        if reply.status == 307:
            frame = self._transport.fetch_elsewhere(reply.location, limit=wire.MAX_FRAME)
            if frame is not None:
                with suppress(Corrupt, TooLarge):
                    return self._decompress(frame, digest)
            # From here it is out of reach, or not what it should be: the service has it.
            reply = self._transport.exchange("GET", path, limit=wire.MAX_FRAME)
        if reply.status == 404:
            return None
        check_status(reply, path)
        return self._decompress(reply.body, digest)

    def get_blobs(self, digests: Sequence[str]) -> Blobs:
        """See `BatchStore`. Reads in batches; what does not fit a batch is asked for again."""
        found: dict[str, bytes] = {}
        corrupt: set[str] = set()
        for batch in _batches(digests):
            rest = batch
            while rest:
                value = self._ask(wire.PATH_BLOBS_GET, {"digests": rest}, "blobs", wire.MAX_REPLY)
                got = wire.bytes_map(value, "reply to blobs/get")
                if not got.keys() <= set(rest):
                    raise ProtocolError("the service sent blobs that were not asked for")
                for digest, frame in got.items():
                    try:
                        found[digest] = self._decompress(frame, digest)
                    except (Corrupt, TooLarge):
                        corrupt.add(digest)
                # What is not in the reply may only not have fitted; an empty reply ends it.
                rest = [digest for digest in rest if digest not in got] if got else []
        missing = [item for item in digests if item not in found and item not in corrupt]
        # A blob larger than a whole batch comes alone.
        for digest in sorted(self.has_blobs(missing)) if missing else ():
            try:
                data = self.get_blob(digest)
            except (Corrupt, TooLarge):
                corrupt.add(digest)
                continue
            if data is not None:
                found[digest] = data
        return Blobs(found, frozenset(corrupt))

    def has_blobs(self, digests: Iterable[str]) -> set[str]:
        """See `Store`."""
        present: set[str] = set()
        for batch in _batches(list(digests)):
            value = self._ask(wire.PATH_BLOBS_HAS, {"digests": batch}, "present", wire.MAX_REQUEST)
            got = wire.strings(value, "reply to blobs/has")
            if not set(got) <= set(batch):
                raise ProtocolError("the service named blobs that were not asked for")
            present.update(got)
        return present

    def put_blob(self, digest: str, data: bytes) -> None:
        """See `Store`."""
        check_blob(digest, data)
        path = f"{wire.PATH_BLOBS}/{digest}"
        headers = {"content-type": wire.OCTETS, "content-encoding": "zstd"}
        reply = self._transport.exchange(
            "PUT", path, body=frames.compress(data), headers=headers, limit=wire.MAX_REQUEST
        )
        check_status(reply, path)

    def get_entry(self, key: str) -> bytes | None:
        """See `Store`."""
        path = _entry_path(key)
        reply = self._transport.exchange("GET", path, limit=wire.MAX_MANIFEST)
        if reply.status == 404:
            return None
        check_status(reply, path)
        return reply.body

    def put_entry(self, key: str, manifest_bytes: bytes) -> bool:
        """See `Store`. Raises MissingBlobs if the service lacks a blob that it names."""
        return self._put_entry(key, manifest_bytes, {"if-none-match": "*"})

    def replace_entry(self, key: str, manifest_bytes: bytes) -> None:
        """See `Store`. Raises MissingBlobs if the service lacks a blob that it names."""
        self._put_entry(key, manifest_bytes, {})

    def swap_entry(self, key: str, expected: str, manifest_bytes: bytes) -> bool:
        """See `SwapStore`. False as well where the service holds what stands for as good; raises
        MissingBlobs if it lacks a blob."""
        return self._put_entry(key, manifest_bytes, {"if-match": f'"{digests.require(expected)}"'})

    def get_record(self, name: str) -> bytes | None:
        """See `SwapStore`. Needs the role write, as all that is about records."""
        path = _record_path(name)
        reply = self._transport.exchange("GET", path, limit=wire.MAX_RECORD)
        if reply.status == 404:
            return None
        check_status(reply, path)
        return reply.body

    def swap_record(self, name: str, expected: str | None, data: bytes) -> bool:
        """See `SwapStore`."""
        check_record(name, expected, data)
        condition = {"if-none-match": "*"} if expected is None else {"if-match": f'"{expected}"'}
        return self._put(_record_path(name), data, condition)

    def delete_entry(self, key: str) -> None:
        """See `Store`. Needs the role admin."""
        path = _entry_path(key)
        check_status(self._transport.exchange("DELETE", path, limit=wire.MAX_REQUEST), path)

    def describe(self) -> dict[str, Value]:
        """See `Store`; `store` holds what the service says of its own store."""
        reply = self._transport.exchange("GET", wire.PATH_STATS, limit=wire.MAX_REQUEST)
        check_status(reply, wire.PATH_STATS)
        value = wire.unpack(reply.body, max_bytes=wire.MAX_REQUEST)
        stats = wire.fields(value, "reply to stats", ("store",), ("memory",))
        store = stats["store"]
        counts = store if isinstance(store, dict) else {}
        return {
            "kind": "remote",
            "where": self.url,
            "bytes": counts.get("bytes", 0),
            "blobs": counts.get("blobs", 0),
            "entries": counts.get("entries", 0),
            "store": store,
        }

    # -- beyond Store --------------------------------------------------------------------------

    def claiming(self, claim: Claim) -> CacheClient:
        """This client, over the same connections, for a writer who holds a lease: the service
        refuses its entries with Fenced once the lease is another's (`cache.lease`)."""
        made = copy.copy(self)
        made._claim = claim
        return made

    def lookup_many(
        self,
        keys: Sequence[str],
        *,
        on_miss: artifacts.OnMiss | None = None,
        trust: Trust = NOBODY,
        fresh: bool = False,
    ) -> dict[str, artifacts.Found]:
        """The artifacts under those of `keys` that have one, in two round trips where they fit.

        Those that `trust` does not allow are misses; by default nothing is allowed. fresh: the
        service is to ask its store, since something was published just now.
        """
        entries = dict.fromkeys(keys) | self.entries(keys, fresh=fresh)
        return artifacts.collect(entries, self.get_blobs, on_miss=on_miss, trust=trust)

    def entries(self, keys: Sequence[str], *, fresh: bool = False) -> dict[str, bytes]:
        """The entries' bytes under those of `keys` that have one. fresh: as of `lookup_many`."""
        entries: dict[str, bytes] = {}
        for batch in _batches(keys):
            rest = batch
            while rest:
                body: dict[str, Value] = {"keys": [*rest]}
                if fresh:
                    body["fresh"] = True
                value = self._ask(wire.PATH_LOOKUP, body, "found", wire.MAX_REPLY)
                got = wire.bytes_map(value, "reply to entries/lookup")
                if not got.keys() <= set(rest):
                    raise ProtocolError("the service sent entries that were not asked for")
                entries.update(got)
                # Only a reply with no room left for the largest entry may have left one out.
                full = sum(map(len, got.values())) > wire.MAX_BATCH_BYTES - wire.MAX_MANIFEST
                rest = [key for key in rest if key not in got] if full else []
        return entries

    def post(self, path: str, body: object, timeout: float) -> tuple[int, Value]:
        """POST a msgpack body. See `request`."""
        return self.request("POST", path, body=body, timeout=timeout)

    def request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        params: Mapping[str, str | int | float] | None = None,
        timeout: float,
    ) -> tuple[int, Value]:
        """A request on the compile routes: (status, decoded reply or None if it is empty).

        The caller says how long an answer may take (`timeout`, seconds; a long poll is no delay).
        Any status is returned, so 429 and 503 are the caller's to judge. Raises NotReachable if
        there is no answer in time, ProtocolError if the reply is not msgpack.
        """
        packed = None if body is None else wire.pack(body)
        reply = self._transport.exchange(
            method,
            path,
            body=packed,
            params=params,
            headers={} if packed is None else {"content-type": wire.MSGPACK},
            limit=wire.MAX_REPLY,
            timeout=timeout,
        )
        if not reply.body:
            return reply.status, None
        return reply.status, wire.unpack(reply.body, max_bytes=wire.MAX_REPLY)

    def _ask(self, path: str, body: object, field: str, limit: int) -> Value:
        reply = self._transport.exchange(
            "POST",
            path,
            body=wire.pack(body),
            headers={"content-type": wire.MSGPACK},
            limit=limit,
        )
        check_status(reply, path)
        return wire.fields(wire.unpack(reply.body, max_bytes=limit), path, (field,))[field]

    def _put_entry(self, key: str, manifest_bytes: bytes, headers: dict[str, str]) -> bool:
        check_entry(key, manifest_bytes)
        if self._claim is not None:
            headers = {**headers, wire.CLAIM_HEADER: self._claim.header()}
        return self._put(_entry_path(key), manifest_bytes, headers)

    def _put(self, path: str, data: bytes, headers: dict[str, str]) -> bool:
        """Write under a condition; False where it does not hold."""
        reply = self._transport.exchange(
            "PUT",
            path,
            body=data,
            headers={"content-type": wire.MSGPACK, **headers},
            limit=wire.MAX_REQUEST,
        )
        if reply.status == 412:
            return False
        check_status(reply, path)
        return True

    def _decompress(self, frame: bytes, digest: str) -> bytes:
        try:
            return frames.decompress(frame, digest)
        except (Corrupt, TooLarge):
            self.metrics.add("corrupt")
            raise


def _entry_path(key: str) -> str:
    """Where the service has an entry; its revocations have a place of their own."""
    keys.parse(key)
    return wire.PATH_REVOKED if key == REVOCATIONS_KEY else f"{wire.PATH_ENTRIES}/{key}"


def _record_path(name: str) -> str:
    keys.parse_record(name)
    return f"{wire.PATH_RECORDS}/{name}"


def _batches(items: Sequence[str]) -> Iterator[list[str]]:
    distinct = list(dict.fromkeys(items))
    for start in range(0, len(distinct), wire.MAX_BATCH):
        yield distinct[start : start + wire.MAX_BATCH]
