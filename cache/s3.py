"""A store in an S3 bucket, or in anything that speaks S3 with conditional writes.

    <prefix>/v1/blobs/<2 hex>/<digest>.zst    one zstd frame
    <prefix>/v1/entries/<kind>/<hex>          a manifest's bytes
    <prefix>/v1/records/<kind>/<hex>          a record's bytes

New entries are put with `If-None-Match: *`, which the server decides atomically; those that take
the place of others with `If-Match` (`cache.s3_swap`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, suppress
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from cache import digest as digests
from cache import frames
from cache import key as keys
from cache.counters import Counters
from cache.errors import Corrupt, NotReachable, ProtocolError, TooLarge
from cache.inventory import Item
from cache.protocol import MAX_FRAME, MAX_MANIFEST, MAX_RECORD, Value
from cache.s3_errors import ABSENT, RACED, TAKEN, error_code, s3_errors
from cache.s3_swap import swap_object
from cache.store import Blobs, check_blob, check_entry, check_record

PARALLEL = 16
"""Most requests of one batch at the same time."""
MIN_RATE = 1 << 20
"""Bytes a second below which, beyond the timeout, a read is given up."""
_CHUNK = 64 << 10
_DESCRIBED = 10_000
_CONFLICT_ATTEMPTS = 3


class S3Store:
    """A `Store` under `prefix` of `bucket`. Does not talk to the bucket until it is used.

    `endpoint` is the address of an S3-compatible server, empty for AWS. Credentials come from
    where AWS's tools look for them, unless `access_key` and `secret_key` are given. Requests wait
    at most `timeout_s` for a sign of life and are tried `attempts` times. `counters` counts
    `corrupt` and `io_errors`.
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
        self.where = f"s3://{bucket}/{prefix.strip('/')}".rstrip("/")
        self.counters = counters or Counters()
        self._timeout_s = timeout_s
        self._bucket = bucket
        self._base = f"{prefix.strip('/')}/v1".lstrip("/")
        with self._s3_errors("open the store"):
            self._client: Any = boto3.session.Session().client(
                "s3",
                endpoint_url=endpoint or None,
                region_name=region or ("us-east-1" if endpoint else None),
                aws_access_key_id=access_key,
                aws_secret_access_key=secret_key,
                config=Config(
                    connect_timeout=min(timeout_s, 3.0),
                    read_timeout=timeout_s,
                    retries={"mode": "standard", "total_max_attempts": attempts},
                    max_pool_connections=2 * PARALLEL,
                    # Servers other than AWS may refuse the checksums that boto3 adds by itself;
                    # blobs and manifests carry their own.
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                ),
            )
        self._pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="fusec-cache-s3")

    def __enter__(self) -> S3Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close threads and connections."""
        self._pool.shutdown(wait=True)
        self._client.close()

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

        self._all(read, digests)
        return Blobs(found, frozenset(corrupt))

    def has_blobs(self, digests: Iterable[str]) -> set[str]:
        """See `Store`. One small request a blob, in parallel."""
        wanted = list(dict.fromkeys(digests))
        present = self._all(self._has_blob, wanted)
        return {digest for digest, here in zip(wanted, present, strict=True) if here}

    def put_blob(self, digest: str, data: bytes) -> None:
        """See `Store`. Writes in any case: to ask first costs as much for small blobs."""
        check_blob(digest, data)
        self._put(digest, frames.compress(data))

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
        self._put(digest, frame)

    def get_entry(self, key: str) -> bytes | None:
        """See `Store`."""
        try:
            return self._read(self._entry_name(key), MAX_MANIFEST, f"read entry {key[:24]}…")
        except TooLarge:
            self._discard(self._entry_name(key))
            return None

    def put_entry(self, key: str, manifest_bytes: bytes) -> bool:
        """See `Store`."""
        check_entry(key, manifest_bytes)
        for _ in range(_CONFLICT_ATTEMPTS):
            with self._s3_errors(f"write entry {key[:24]}…"):
                try:
                    self._put_small(self._entry_name(key), manifest_bytes, IfNoneMatch="*")
                    return True
                except ClientError as error:
                    if error_code(error) not in TAKEN | RACED:
                        raise
            standing = self.get_entry(key)
            if standing is not None:
                return standing == manifest_bytes
        raise NotReachable(f"entry {key[:24]}… in {self.where} comes and goes")

    def replace_entry(self, key: str, manifest_bytes: bytes) -> None:
        """See `Store`."""
        check_entry(key, manifest_bytes)
        with self._s3_errors(f"write entry {key[:24]}…"):
            self._put_small(self._entry_name(key), manifest_bytes)

    def swap_entry(self, key: str, expected: str, manifest_bytes: bytes) -> bool:
        """See `SwapStore`."""
        check_entry(key, manifest_bytes)
        name, action = self._entry_name(key), f"write entry {key[:24]}…"
        with self._s3_errors(action):
            return swap_object(
                lambda: self._read_tagged(name, MAX_MANIFEST, action),
                lambda data, **condition: self._put_small(name, data, **condition),
                digests.require(expected),
                manifest_bytes,
            )

    def get_record(self, name: str) -> bytes | None:
        """See `SwapStore`."""
        return self._read(self._record_name(name), MAX_RECORD, f"read record {name[:24]}…")

    def swap_record(self, name: str, expected: str | None, data: bytes) -> bool:
        """See `SwapStore`. One request for a new one, else two."""
        check_record(name, expected, data)
        place, action = self._record_name(name), f"write record {name[:24]}…"
        with self._s3_errors(action):
            return swap_object(
                lambda: self._read_tagged(place, MAX_RECORD, action),
                lambda data, **condition: self._put_small(place, data, **condition),
                expected,
                data,
            )

    def delete_entry(self, key: str) -> None:
        """See `Store`."""
        name = self._entry_name(key)
        with self._s3_errors(f"remove entry {key[:24]}…"):
            self._client.delete_object(Bucket=self._bucket, Key=name)

    def presigned(self, digest: str, at_least: int, seconds: int) -> str | None:
        """See `SignsUrls`. One small request; the address itself is made without any."""
        name = self._blob_name(digest)
        with self._s3_errors(f"look for blob {digest[:16]}…"):
            try:
                head = self._client.head_object(Bucket=self._bucket, Key=name)
            except ClientError as error:
                if error_code(error) in ABSENT:
                    return None
                raise
            if head["ContentLength"] < at_least:
                return None
            url: str = self._client.generate_presigned_url(
                "get_object", Params={"Bucket": self._bucket, "Key": name}, ExpiresIn=seconds
            )
        return url

    # -- Inventory -----------------------------------------------------------------------------

    removes_atomically = False

    def namespaces(self) -> list[str]:
        """The namespaces whose stores lie beside this one."""
        prefix = f"{self._base.removesuffix('v1')}ns/"
        found: list[str] = []
        with self._s3_errors("list the namespaces"):
            for page in self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=prefix, Delimiter="/"
            ):
                parts = (item["Prefix"] for item in page.get("CommonPrefixes", ()))
                found += [part.removeprefix(prefix).rstrip("/") for part in parts]
        return found

    def list_entries(self) -> Iterator[Item]:
        """See `Inventory`. Their time is that of the last use, to a day."""
        for name, size, at in self._list("entries"):
            with suppress(ProtocolError):
                keys.parse(name)
                yield Item(name, size, at)

    def list_blobs(self) -> Iterator[Item]:
        """See `Inventory`."""
        for name, size, at in self._list("blobs"):
            digest = name.rpartition("/")[2].removesuffix(".zst")
            if digests.is_digest(digest):
                yield Item(digest, size, at)

    def list_records(self) -> Iterator[Item]:
        """See `Inventory`."""
        for name, size, at in self._list("records"):
            with suppress(ProtocolError):
                keys.parse_record(name)
                yield Item(name, size, at)

    def remove_record(self, name: str, before: float) -> bool:
        """See `Inventory`. Unless it changes at that moment, where the server knows conditional
        removals (AWS and SeaweedFS do)."""
        place = self._record_name(name)
        with self._s3_errors(f"remove record {name[:24]}…"):
            try:
                head = self._client.head_object(Bucket=self._bucket, Key=place)
                if head["LastModified"].timestamp() >= before:
                    return False
                self._client.delete_object(Bucket=self._bucket, Key=place, IfMatch=head["ETag"])
            except ClientError as error:
                if error_code(error) not in ABSENT | TAKEN | RACED:
                    raise
                return False
        return True

    def remove_blobs(self, digests: Sequence[str], before: float) -> set[str]:
        """See `Inventory`. Two requests a blob, in parallel."""

        def remove(digest: str) -> bool:
            at = self._written_at(self._blob_name(digest), f"look for blob {digest[:16]}…")
            if at is None or at >= before:
                return False
            with self._s3_errors(f"remove blob {digest[:16]}…"):
                self._client.delete_object(Bucket=self._bucket, Key=self._blob_name(digest))
            return True

        done = self._all(remove, digests)
        return {digest for digest, removed in zip(digests, done, strict=True) if removed}

    def written_after(self, digests: Sequence[str], at: float) -> set[str]:
        """Those of the blobs that are here and were written after that time."""

        def is_young(digest: str) -> bool:
            written = self._written_at(self._blob_name(digest), f"look for blob {digest[:16]}…")
            return written is not None and written > at

        young = self._all(is_young, digests)
        return {digest for digest, yes in zip(digests, young, strict=True) if yes}

    def touch_entry(self, key: str) -> None:
        """See `Inventory`: the same bytes are put again, unless the object changed meanwhile.

        A copy onto itself would read and write in the server, which tells nobody what came between.
        """
        name, action = self._entry_name(key), f"mark entry {key[:24]}… as used"
        with self._s3_errors(action):
            read = self._read_tagged(name, MAX_MANIFEST, action)
            if read is None:
                return
            try:
                self._put_small(name, read[0], IfMatch=read[1])
            except ClientError as error:
                if error_code(error) not in ABSENT | TAKEN | RACED:
                    raise

    def describe(self) -> dict[str, Value]:
        """See `Store`. Counts at most 10,000 objects; `more` says that there are more."""
        counts = {"blobs": 0, "entries": 0}
        total = 0
        more = False
        for part in counts:
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=f"{self._base}/{part}/"
            )
            with self._s3_errors("list the store"):
                for page in pages:
                    for item in page.get("Contents", ()):
                        counts[part] += 1
                        total += item["Size"]
                    if counts[part] >= _DESCRIBED and page.get("IsTruncated"):
                        more = True
                        break
        return {"kind": "s3", "where": self.where, "bytes": total, "more": more, **counts}

    def _list(self, part: str) -> Iterator[tuple[str, int, float]]:
        """(name below the part, bytes, time written) of every object of a part."""
        prefix = f"{self._base}/{part}/"
        pages = iter(
            self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=prefix
            )
        )
        while True:
            with self._s3_errors("list the store"):
                page = next(pages, None)
            if page is None:
                return
            for item in page.get("Contents", ()):
                written: float = item["LastModified"].timestamp()
                yield item["Key"].removeprefix(prefix), item["Size"], written

    def _written_at(self, name: str, action: str) -> float | None:
        with self._s3_errors(action):
            try:
                answer = self._client.head_object(Bucket=self._bucket, Key=name)
            except ClientError as error:
                if error_code(error) in ABSENT:
                    return None
                raise
        written: float = answer["LastModified"].timestamp()
        return written

    def _blob_name(self, digest: str) -> str:
        digests.require(digest)
        return f"{self._base}/blobs/{digest[:2]}/{digest}.zst"

    def _entry_name(self, key: str) -> str:
        keys.parse(key)
        return f"{self._base}/entries/{key}"

    def _record_name(self, name: str) -> str:
        keys.parse_record(name)
        return f"{self._base}/records/{name}"

    def _has_blob(self, digest: str) -> bool:
        name = self._blob_name(digest)
        return self._written_at(name, f"look for blob {digest[:16]}…") is not None

    def _read_blob(self, digest: str) -> bytes | None:
        read = self._read_checked(digest)
        return None if read is None else read[1]

    def _read_checked(self, digest: str) -> tuple[bytes, bytes] | None:
        """A blob's frame and its bytes, verified."""
        name = self._blob_name(digest)
        try:
            frame = self._read(name, MAX_FRAME, f"read blob {digest[:16]}…")
            return None if frame is None else (frame, frames.decompress(frame, digest))
        except (Corrupt, TooLarge) as error:
            self._discard(name)
            raise Corrupt(f"blob {digest[:16]}… in {self.where}: {error}") from error

    def _read(self, name: str, limit: int, action: str) -> bytes | None:
        read = self._read_tagged(name, limit, action)
        return None if read is None else read[0]

    def _read_tagged(self, name: str, limit: int, action: str) -> tuple[bytes, str] | None:
        """An object's bytes and its ETag."""
        with self._s3_errors(action):
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=name)
            except ClientError as error:
                if error_code(error) in ABSENT:
                    return None
                raise
            size: int = answer["ContentLength"]
            with closing(answer["Body"]) as body:
                if size > limit:
                    raise TooLarge(f"an object of {size} bytes, limit {limit}")
                give_up = time.monotonic() + self._timeout_s + size / MIN_RATE
                chunks: list[bytes] = []
                for chunk in body.iter_chunks(_CHUNK):
                    chunks.append(chunk)
                    if time.monotonic() > give_up:
                        raise NotReachable(f"{action}: slower than {MIN_RATE} bytes a second")
                return b"".join(chunks), str(answer["ETag"])

    def _put(self, digest: str, frame: bytes) -> None:
        with self._s3_errors(f"write blob {digest[:16]}…"):
            self._client.put_object(
                Bucket=self._bucket,
                Key=self._blob_name(digest),
                Body=frame,
                ContentType="application/zstd",
            )

    def _put_small(self, name: str, data: bytes, **condition: str) -> None:
        """Write an entry or a record."""
        self._client.put_object(
            Bucket=self._bucket,
            Key=name,
            Body=data,
            ContentType="application/msgpack",
            **condition,
        )

    def _discard(self, name: str) -> None:
        self.counters.add("corrupt")
        # A reader may not be allowed to remove: then the bad copy is a miss every time.
        with suppress(BotoCoreError, ClientError):
            self._client.delete_object(Bucket=self._bucket, Key=name)

    def _all(self, function: Callable[[str], Any], items: Sequence[str]) -> list[Any]:
        if len(items) < 2:
            return [function(item) for item in items]
        return list(self._pool.map(function, items))

    def _s3_errors(self, action: str) -> AbstractContextManager[None]:
        return s3_errors(f"cannot {action} in {self.where}", self.counters)
