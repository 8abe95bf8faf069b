"""A store in an S3 bucket, or in anything that speaks S3 with conditional writes.

    <prefix>/v1/blobs/<2 hex>/<digest>.zst    one zstd frame
    <prefix>/v1/entries/<kind>/<hex>          a manifest's bytes
    <prefix>/v1/records/<kind>/<hex>          a record's bytes

New entries are put with `If-None-Match: *`, which the server decides atomically; those that take
the place of others, and records, with `If-Match` (`cache.s3_swap`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from cache import digest as digests
from cache import frames
from cache import key as keys
from cache.counters import Counters
from cache.errors import CacheError, Corrupt, NotReachable, ProtocolError, TooLarge
from cache.inventory import Item
from cache.protocol import MAX_FRAME, MAX_MANIFEST, MAX_RECORD, MSGPACK, Value
from cache.s3_bucket import Bucket, Head
from cache.s3_swap import Swaps
from cache.store import Blobs, check_blob, check_entry, check_record

_ZSTD: Final = "application/zstd"
_DESCRIBED: Final = 10_000
_CONFLICT_ATTEMPTS: Final = 3


class S3Store:
    """A `Store` under `prefix` of `bucket`. Does not talk to the bucket until it is used.

    `endpoint` is the address of an S3-compatible server, empty for AWS. Credentials come from
    where AWS's tools look for them, unless `access_key` and `secret_key` are given. Requests wait
    at most `timeout_s` for a sign of life and are tried `attempts` times. `counters` counts
    `corrupt` and `io_errors`.

    Where the server gets `If-Match` wrong, all that rests on it raises NoSwap.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint: str = "",
        region: str = "",
        access_key: str | None = None,
        secret_key: str | None = None,
        timeout_s: float = 10.0,
        attempts: int = 3,
        counters: Counters | None = None,
    ) -> None:
        self.counters = counters or Counters()
        self._above = f"{prefix.strip('/')}/".lstrip("/")
        self.bucket = Bucket(
            bucket,
            f"{self._above}v1",
            endpoint=endpoint,
            region=region,
            access_key=access_key,
            secret_key=secret_key,
            timeout_s=timeout_s,
            attempts=attempts,
            counters=self.counters,
        )
        self.where = self.bucket.where.removesuffix("/v1")
        self._swaps = Swaps(self.bucket)

    def __enter__(self) -> S3Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close threads and connections."""
        self.bucket.close()

    # -- Blobs ---------------------------------------------------------------------------------

    def get_blob(self, digest: str) -> bytes | None:
        """See `Store`."""
        try:
            return self._read_blob(digests.require(digest))
        except Corrupt:
            return None

    def get_blobs(self, digests: Sequence[str]) -> Blobs:
        """See `BatchStore`. Reads in parallel."""
        found: dict[str, bytes] = {}
        corrupt: set[str] = set()

        def read(digest: str) -> None:
            try:
                data = self._read_blob(digest)
            except Corrupt:
                corrupt.add(digest)
                return
            if data is not None:
                found[digest] = data

        self.bucket.each(read, digests)
        return Blobs(found, frozenset(corrupt))

    def has_blobs(self, digests: Iterable[str]) -> set[str]:
        """See `Store`. One small request a blob, in parallel."""
        return set(self._written(list(dict.fromkeys(digests))))

    def put_blob(self, digest: str, data: bytes) -> None:
        """See `Store`. Writes in any case: to ask first costs as much for small blobs."""
        check_blob(digest, data)
        self._put_frame(digest, frames.compress(data))

    def get_frame(self, digest: str) -> bytes | None:
        """See `FrameStore`."""
        try:
            read = self._read_checked(digests.require(digest))
        except Corrupt:
            return None
        return None if read is None else read[0]

    def put_frame(self, digest: str, frame: bytes) -> None:
        """See `FrameStore`."""
        frames.decompress(frame, digests.require(digest))
        self._put_frame(digest, frame)

    def presigned(self, digest: str, at_least: int, seconds: int) -> str | None:
        """See `SignsUrls`. One small request; the address itself is made without any."""
        name = _blob_name(digest)
        head = self.bucket.head(name, f"look for blob {digest[:16]}…")
        if head is None or head.bytes < at_least:
            return None
        return self.bucket.presigned(name, seconds)

    # -- Entries and records -------------------------------------------------------------------

    def get_entry(self, key: str) -> bytes | None:
        """See `Store`."""
        name = _entry_name(key)
        try:
            read = self.bucket.get(name, MAX_MANIFEST, f"read entry {key[:24]}…")
        except TooLarge:
            self._discard(name)
            return None
        return None if read is None else read[0]

    def put_entry(self, key: str, manifest_bytes: bytes) -> bool:
        """See `Store`."""
        check_entry(key, manifest_bytes)
        name, action = _entry_name(key), f"write entry {key[:24]}…"
        for _ in range(_CONFLICT_ATTEMPTS):
            if self.bucket.put_if(name, manifest_bytes, MSGPACK, None, action):
                return True
            standing = self.get_entry(key)
            if standing is not None:
                return standing == manifest_bytes
        raise NotReachable(f"entry {key[:24]}… in {self.where} comes and goes")

    def replace_entry(self, key: str, manifest_bytes: bytes) -> None:
        """See `Store`."""
        check_entry(key, manifest_bytes)
        self.bucket.put(_entry_name(key), manifest_bytes, MSGPACK, f"write entry {key[:24]}…")

    def swap_entry(self, key: str, expected: str, manifest_bytes: bytes) -> bool:
        """See `SwapStore`."""
        check_entry(key, manifest_bytes)
        digests.require(expected)
        action = f"write entry {key[:24]}…"
        return self._swaps.swap(_entry_name(key), expected, manifest_bytes, MAX_MANIFEST, action)

    def get_record(self, name: str) -> bytes | None:
        """See `SwapStore`."""
        read = self.bucket.get(_record_name(name), MAX_RECORD, f"read record {name[:24]}…")
        return None if read is None else read[0]

    def swap_record(self, name: str, expected: str | None, data: bytes) -> bool:
        """See `SwapStore`. One request for a new one, else two."""
        check_record(name, expected, data)
        action = f"write record {name[:24]}…"
        return self._swaps.swap(_record_name(name), expected, data, MAX_RECORD, action)

    def delete_entry(self, key: str) -> None:
        """See `Store`."""
        self.bucket.delete(_entry_name(key), f"remove entry {key[:24]}…")

    # -- Inventory -----------------------------------------------------------------------------

    removes_atomically = False

    def namespaces(self) -> list[str]:
        """The namespaces whose stores lie beside this one."""
        return self.bucket.folders(f"{self._above}ns/")

    def list_entries(self) -> Iterator[Item]:
        """See `Inventory`. Their time is that of the last use, to a day."""
        for name, head in self.bucket.items("entries"):
            with suppress(ProtocolError):
                keys.parse(name)
                yield Item(name, head.bytes, head.at)

    def list_blobs(self) -> Iterator[Item]:
        """See `Inventory`."""
        for name, head in self.bucket.items("blobs"):
            digest = name.rpartition("/")[2].removesuffix(".zst")
            if digests.is_digest(digest):
                yield Item(digest, head.bytes, head.at)

    def list_records(self) -> Iterator[Item]:
        """See `Inventory`."""
        for name, head in self.bucket.items("records"):
            with suppress(ProtocolError):
                keys.parse_record(name)
                yield Item(name, head.bytes, head.at)

    def peek_entry(self, key: str) -> bytes | None:
        """See `Inventory`. S3 keeps no time of reads."""
        return self.get_entry(key)

    def remove_record(self, name: str, before: float) -> bool:
        """See `Inventory`."""
        place, action = _record_name(name), f"remove record {name[:24]}…"
        head = self.bucket.head(place, action)
        if head is None or head.at >= before:
            return False
        return self.bucket.delete_if(place, head.etag, action)

    def remove_blobs(self, digests: Sequence[str], before: float) -> set[str]:
        """See `Inventory`. Two requests a blob, in parallel."""

        def remove(digest: str) -> bool:
            name, action = _blob_name(digest), f"remove blob {digest[:16]}…"
            head = self.bucket.head(name, action)
            if head is None or head.at >= before:
                return False
            self.bucket.delete(name, action)
            return True

        done = self.bucket.each(remove, digests)
        return {digest for digest, removed in zip(digests, done, strict=True) if removed}

    def written_after(self, digests: Sequence[str], at: float) -> set[str]:
        """See `Inventory`."""
        return {digest for digest, written in self._written(digests).items() if written > at}

    def touch_entry(self, key: str) -> None:
        """See `Inventory`: the same bytes are put again, unless the object changed meanwhile.

        A copy onto itself would read and write in the server, which tells nobody what came between.
        """
        self._swaps.touch(_entry_name(key), MAX_MANIFEST, f"mark entry {key[:24]}… as used")

    def describe(self) -> dict[str, Value]:
        """See `Store`. Counts at most 10,000 objects; `more` says that there are more."""
        counts = {"blobs": 0, "entries": 0}
        total = 0
        more = False
        for part in counts:
            for _, head in self.bucket.items(part):
                if counts[part] == _DESCRIBED:
                    more = True
                    break
                counts[part] += 1
                total += head.bytes
        return {"kind": "s3", "where": self.where, "bytes": total, "more": more, **counts}

    # ------------------------------------------------------------------------------------------

    def _written(self, digests: Sequence[str]) -> dict[str, float]:
        """Those of the blobs that are here, and when they were written."""

        def look(digest: str) -> Head | None:
            return self.bucket.head(_blob_name(digest), f"look for blob {digest[:16]}…")

        heads = self.bucket.each(look, digests)
        found = zip(digests, heads, strict=True)
        return {digest: head.at for digest, head in found if head is not None}

    def _read_blob(self, digest: str) -> bytes | None:
        read = self._read_checked(digest)
        return None if read is None else read[1]

    def _read_checked(self, digest: str) -> tuple[bytes, bytes] | None:
        """A blob's frame and its bytes, verified."""
        name = _blob_name(digest)
        try:
            read = self.bucket.get(name, MAX_FRAME, f"read blob {digest[:16]}…")
            return None if read is None else (read[0], frames.decompress(read[0], digest))
        except (Corrupt, TooLarge) as error:
            self._discard(name)
            raise Corrupt(f"blob {digest[:16]}… in {self.where}: {error}") from error

    def _put_frame(self, digest: str, frame: bytes) -> None:
        self.bucket.put(_blob_name(digest), frame, _ZSTD, f"write blob {digest[:16]}…")

    def _discard(self, name: str) -> None:
        self.counters.add("corrupt")
        # A reader may not be allowed to remove: then the bad copy is a miss every time.
        with suppress(CacheError):
            self.bucket.delete(name, "remove what is damaged")


def _blob_name(digest: str) -> str:
    digests.require(digest)
    return f"blobs/{digest[:2]}/{digest}.zst"


def _entry_name(key: str) -> str:
    keys.parse(key)
    return f"entries/{key}"


def _record_name(name: str) -> str:
    keys.parse_record(name)
    return f"records/{name}"
