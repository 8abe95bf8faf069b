"""A store in this process's memory, bounded by bytes: for tests and as the nearest tier."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence

from cache import digest as digests
from cache import key as keys
from cache.errors import StoreFull
from cache.lru import ByteLRU
from cache.protocol import Value
from cache.store import Blobs, check_blob, check_entry, check_record


class MemoryStore:
    """A `Store` that forgets what was used longest ago once it holds `max_bytes` (default 1 GiB).

    Entries and blobs share the bound, so an entry may outlive its blobs; readers take that for a
    miss, as with every store.
    """

    def __init__(self, max_bytes: int = 1 << 30) -> None:
        self._lock = threading.Lock()
        self._items: ByteLRU[tuple[str, str]] = ByteLRU(max_bytes)

    def get_blob(self, digest: str) -> bytes | None:
        """See `Store`. Memory is not re-verified: the bytes were checked when they came in."""
        digests.require(digest)
        with self._lock:
            return self._items.get(("blob", digest))

    def get_blobs(self, digests: Sequence[str]) -> Blobs:
        """See `BatchStore`."""
        read = {digest: self.get_blob(digest) for digest in digests}
        found = {digest: data for digest, data in read.items() if data is not None}
        return Blobs(found, frozenset())

    def has_blobs(self, digests: Iterable[str]) -> set[str]:
        """See `Store`."""
        with self._lock:
            return {digest for digest in digests if ("blob", digest) in self._items}

    def put_blob(self, digest: str, data: bytes) -> None:
        """See `Store`."""
        check_blob(digest, data)
        self._put(("blob", digest), data)

    def get_entry(self, key: str) -> bytes | None:
        """See `Store`."""
        keys.parse(key)
        with self._lock:
            return self._items.get(("entry", key))

    def put_entry(self, key: str, manifest_bytes: bytes) -> bool:
        """See `Store`."""
        check_entry(key, manifest_bytes)
        with self._lock:
            standing = self._items.get(("entry", key))
            if standing is not None:
                return standing == manifest_bytes
            self._put_locked(("entry", key), manifest_bytes)
            return True

    def replace_entry(self, key: str, manifest_bytes: bytes) -> None:
        """See `Store`."""
        check_entry(key, manifest_bytes)
        self._put(("entry", key), manifest_bytes)

    def swap_entry(self, key: str, expected: str, manifest_bytes: bytes) -> bool:
        """See `SwapStore`."""
        check_entry(key, manifest_bytes)
        digests.require(expected)
        return self._swap(("entry", key), expected, manifest_bytes)

    def get_record(self, name: str) -> bytes | None:
        """See `SwapStore`."""
        keys.parse_record(name)
        with self._lock:
            return self._items.get(("record", name))

    def swap_record(self, name: str, expected: str | None, data: bytes) -> bool:
        """See `SwapStore`."""
        check_record(name, expected, data)
        return self._swap(("record", name), expected, data)

    def delete_entry(self, key: str) -> None:
        """See `Store`."""
        keys.parse(key)
        with self._lock:
            self._items.pop(("entry", key))

    def describe(self) -> dict[str, Value]:
        """See `Store`."""
        with self._lock:
            count = Counter(what for what, _ in self._items)
            return {
                "kind": "memory",
                "where": "memory of this process",
                "bytes": self._items.bytes,
                "blobs": count["blob"],
                "entries": count["entry"],
            }

    def _swap(self, key: tuple[str, str], expected: str | None, data: bytes) -> bool:
        with self._lock:
            standing = self._items.get(key)
            found = None if standing is None else digests.digest(standing)
            if found != expected:
                return standing == data
            self._put_locked(key, data)
            return True

    def _put(self, key: tuple[str, str], data: bytes) -> None:
        with self._lock:
            self._put_locked(key, data)

    def _put_locked(self, key: tuple[str, str], data: bytes) -> None:
        if not self._items.put(key, data):
            raise StoreFull(
                f"{len(data)} bytes do not fit a memory store of {self._items.capacity} bytes"
            )
