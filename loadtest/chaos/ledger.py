"""A store that remembers what was published, and how often."""

from __future__ import annotations

import threading
from collections import Counter

from cache.memory import MemoryStore


class Ledger(MemoryStore):
    """``created``: entries that began to stand, by key. ``repeated``: the same bytes once more.
    ``replaced``: other bytes in the place of what stood, or in vain."""

    def __init__(self) -> None:
        super().__init__()
        self._writing = threading.Lock()
        self.created: Counter[str] = Counter()
        self.repeated: Counter[str] = Counter()
        self.replaced: Counter[str] = Counter()

    def put_entry(self, key: str, manifest_bytes: bytes) -> bool:
        """See `Store`."""
        with self._writing:
            self._note(key, manifest_bytes)
            return super().put_entry(key, manifest_bytes)

    def replace_entry(self, key: str, manifest_bytes: bytes) -> None:
        """See `Store`."""
        with self._writing:
            self._note(key, manifest_bytes)
            super().replace_entry(key, manifest_bytes)

    def _note(self, key: str, manifest_bytes: bytes) -> None:
        standing = self.get_entry(key)
        if standing is None:
            self.created[key] += 1
        elif standing == manifest_bytes:
            self.repeated[key] += 1
        else:
            self.replaced[key] += 1
