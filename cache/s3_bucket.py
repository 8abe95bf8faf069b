"""Objects below a prefix of an S3 bucket: the part that talks to boto3.

Reads are bounded in bytes and in time. A write may have a condition, which the server decides
atomically: that nothing stands (`If-None-Match: *`), or what was read with an ETag (`If-Match`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from cache.counters import Counters
from cache.errors import NotReachable, TooLarge
from cache.s3_errors import ABSENT, RACED, TAKEN, error_code, s3_errors

T = TypeVar("T")

PARALLEL: Final = 16
"""Most requests of one batch at the same time."""
MIN_RATE: Final = 1 << 20
"""Bytes a second below which, beyond the timeout, a read is given up."""
_CHUNK: Final = 64 << 10
_NOT_HELD: Final = ABSENT | TAKEN | RACED


@dataclass(frozen=True, slots=True)
class Head:
    """What an object is without its bytes: their number, when it was written (seconds since 1970),
    its ETag."""

    bytes: int
    at: float
    etag: str


class Bucket:
    """Objects named from `prefix` on. See `S3Store` for the arguments.

    Methods take `action`, what to say that could not be done. All raise Refused, StoreFull and
    NotReachable (`cache.s3_errors`).
    """

    def __init__(
        self,
        name: str,
        prefix: str,
        *,
        endpoint: str,
        region: str,
        access_key: str | None,
        secret_key: str | None,
        timeout_s: float,
        attempts: int,
        counters: Counters,
    ) -> None:
        self.name = name
        self.prefix = f"{prefix}/" if prefix else ""
        self.where = f"s3://{name}/{prefix}".rstrip("/")
        self._timeout_s = timeout_s
        self._counters = counters
        with self._errors("open the store"):
            self.client: Any = boto3.session.Session().client(
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

    def close(self) -> None:
        """Close threads and connections."""
        self._pool.shutdown(wait=True)
        self.client.close()

    def get(self, name: str, limit: int, action: str) -> tuple[bytes, str] | None:
        """An object's bytes and its ETag, or None. Raises TooLarge before reading more."""
        with self._errors(action):
            try:
                answer = self.client.get_object(Bucket=self.name, Key=self.prefix + name)
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

    def put(self, name: str, data: bytes, kind: str, action: str) -> None:
        """Write an object whatever stands there. kind: its content type."""
        with self._errors(action):
            self._put(name, data, kind)

    def put_if(self, name: str, data: bytes, kind: str, etag: str | None, action: str) -> bool:
        """Write an object where one with that ETag stands, or none if that is None; whether it
        was. After an answer that was lost it may have been, though this says no."""
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        return self._if(action, lambda: self._put(name, data, kind, **condition))

    def head(self, name: str, action: str) -> Head | None:
        """What an object is; None without it."""
        with self._errors(action):
            try:
                answer = self.client.head_object(Bucket=self.name, Key=self.prefix + name)
            except ClientError as error:
                if error_code(error) in ABSENT:
                    return None
                raise
        return Head(answer["ContentLength"], answer["LastModified"].timestamp(), answer["ETag"])

    def delete(self, name: str, action: str) -> None:
        """Remove an object; nothing happens without it."""
        with self._errors(action):
            self.client.delete_object(Bucket=self.name, Key=self.prefix + name)

    def delete_if(self, name: str, etag: str, action: str) -> bool:
        """Remove an object that still has this ETag, where the server knows such removals (AWS and
        SeaweedFS do); whether it was."""
        place = self.prefix + name
        return self._if(
            action,
            lambda: self.client.delete_object(Bucket=self.name, Key=place, IfMatch=etag),
        )

    def items(self, folder: str) -> Iterator[tuple[str, Head]]:
        """Every object below a folder, by its name from there on."""
        prefix = f"{self.prefix}{folder}/"
        for page in self._pages(prefix):
            for item in page.get("Contents", ()):
                at = item["LastModified"].timestamp()
                yield item["Key"].removeprefix(prefix), Head(item["Size"], at, item["ETag"])

    def folders(self, prefix: str) -> list[str]:
        """The folders directly below a prefix of the whole bucket."""
        return [
            found["Prefix"].removeprefix(prefix).rstrip("/")
            for page in self._pages(prefix, Delimiter="/")
            for found in page.get("CommonPrefixes", ())
        ]

    def presigned(self, name: str, seconds: int) -> str:
        """An address from which anybody can read an object for so long. Asks nobody."""
        with self._errors("sign an address"):
            url: str = self.client.generate_presigned_url(
                "get_object",
                Params={"Bucket": self.name, "Key": self.prefix + name},
                ExpiresIn=seconds,
            )
        return url

    def each(self, function: Callable[[str], T], names: Sequence[str]) -> list[T]:
        """`function` of every name, in parallel."""
        if len(names) < 2:
            return [function(name) for name in names]
        return list(self._pool.map(function, names))

    def _put(self, name: str, data: bytes, kind: str, **condition: str) -> None:
        self.client.put_object(
            Bucket=self.name, Key=self.prefix + name, Body=data, ContentType=kind, **condition
        )

    def _if(self, action: str, request: Callable[[], object]) -> bool:
        with self._errors(action):
            try:
                request()
            except ClientError as error:
                if error_code(error) not in _NOT_HELD:
                    raise
                return False
        return True

    def _pages(self, prefix: str, **more: str) -> Iterator[dict[str, Any]]:
        pages = iter(
            self.client.get_paginator("list_objects_v2").paginate(
                Bucket=self.name, Prefix=prefix, **more
            )
        )
        while True:
            with self._errors("list the store"):
                page = next(pages, None)
            if page is None:
                return
            yield page

    def _errors(self, action: str) -> AbstractContextManager[None]:
        return s3_errors(f"cannot {action} in {self.where}", self._counters)
