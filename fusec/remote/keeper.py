"""Writes what came from afar to the local store, beside the caller.

A write syncs to disk, some milliseconds a blob: a warm start has hundreds and must not wait for
them. What is not written yet is found here. The interpreter writes the rest before it ends.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from cache.artifacts import Found, publish
from cache.store import Store

MOST_PENDING_BYTES: Final = 256 << 20


class Keeper:
    """Keeps artifacts in `store`, which must not raise (`BestEffortStore`). Safe for threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._pending: dict[str, Found] = {}
        self._bytes = 0
        self._thread: ThreadPoolExecutor | None = None
        self._pid = 0

    def keep(self, key: str, item: Found) -> None:
        """Write an artifact soon; at once when too much waits already."""
        executor = self._executor()
        with self._lock:
            if key in self._pending:
                return
            full = self._bytes > MOST_PENDING_BYTES
            if not full:
                self._pending[key] = item
                self._bytes += item.manifest.size()
        if full:
            self._publish(key, item)
        else:
            executor.submit(self._write, key, item)

    def waiting(self, keys: Sequence[str]) -> dict[str, Found]:
        """Those of the keys that are not written yet."""
        with self._lock:
            return {key: self._pending[key] for key in keys if key in self._pending}

    def drop(self, key: str) -> None:
        """Remove a key from the store, also one that is yet to be written."""
        self._executor().submit(self._store.delete_entry, key).result()

    def flush(self) -> None:
        """Wait until everything is written."""
        done: Future[None] = self._executor().submit(lambda: None)
        done.result()

    def _write(self, key: str, item: Found) -> None:
        try:
            self._publish(key, item)
        finally:
            with self._lock:
                if self._pending.pop(key, None) is not None:
                    self._bytes -= item.manifest.size()

    def _publish(self, key: str, item: Found) -> None:
        standing = publish(self._store, key, item.manifest, item.blobs, seal=item.seal)
        if standing != item.manifest and not standing.is_final:
            # What was found afar is what all others use by now.
            self._store.replace_entry(key, item.entry())

    def _executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._thread is None or self._pid != os.getpid():
                # After a fork the thread is the parent's; the parent writes what waited.
                if self._pid != os.getpid():
                    self._pending.clear()
                    self._bytes = 0
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="fusec-keep")
                self._pid = os.getpid()
            return self._thread
