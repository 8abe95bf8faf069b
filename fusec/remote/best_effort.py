"""A local store that cannot fail its user: faults become a miss or a value that is not kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from cache.errors import CacheError, Corrupt, StoreFull
from cache.protocol import Value
from cache.store import Blobs, Store, get_blobs
from fusec.remote.notices import Notices

FULL_S: Final = 30.0
_KEPT_OUT: Final = "this process goes on and does not keep the artifact locally"
_MISS: Final = "it counts as a miss"


class BestEffortStore:
    """Any `Store`, with every CacheError turned into a counter, one warning and a plain answer.

    After a full disk nothing is written for FULL_S seconds: an entry must not be written when a
    blob before it was not.
    """

    def __init__(
        self, inner: Store, notices: Notices, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._inner = inner
        self._notices = notices
        self._clock = clock
        self._closed_until = float("-inf")

    def get_blob(self, digest: str) -> bytes | None:
        try:
            return self._inner.get_blob(digest)
        except CacheError as error:
            self._read_fault(error)
            return None

    def get_blobs(self, digests: Sequence[str]) -> Blobs:
        """See `BatchStore`: tells a damaged copy from an absent one."""
        try:
            return get_blobs(self._inner, digests)
        except CacheError as error:
            self._read_fault(error)
            return Blobs({}, frozenset())

    def has_blobs(self, digests: Iterable[str]) -> set[str]:
        try:
            return self._inner.has_blobs(digests)
        except CacheError as error:
            self._read_fault(error)
            return set()

    def get_entry(self, key: str) -> bytes | None:
        try:
            return self._inner.get_entry(key)
        except CacheError as error:
            self._read_fault(error)
            return None

    def put_blob(self, digest: str, data: bytes) -> None:
        self._write(lambda: self._inner.put_blob(digest, data))

    def put_entry(self, key: str, manifest: bytes) -> bool:
        return self._write(lambda: self._inner.put_entry(key, manifest)) is not False

    def replace_entry(self, key: str, manifest: bytes) -> None:
        self._write(lambda: self._inner.replace_entry(key, manifest))

    def delete_entry(self, key: str) -> None:
        try:
            self._inner.delete_entry(key)
        except CacheError as error:
            self._notices.fault("corrupt", "local-delete", error, _MISS)

    def describe(self) -> dict[str, Value]:
        return self._inner.describe()

    def _write(self, write: Callable[[], bool | None]) -> bool | None:
        if self._clock() < self._closed_until:
            return None
        try:
            return write()
        except StoreFull as error:
            self._notices.fault("store_full", "local-full", error, _KEPT_OUT)
        except CacheError as error:
            self._notices.fault("store_full", "local-write", error, _KEPT_OUT)
        self._closed_until = self._clock() + FULL_S
        return None

    def _read_fault(self, error: CacheError) -> None:
        cause = "local-corrupt" if isinstance(error, Corrupt) else "local-read"
        self._notices.fault("corrupt", cause, error, _MISS)
