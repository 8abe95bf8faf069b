"""A map bounded by bytes that forgets what was used longest ago. Not safe for threads by itself."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

K = TypeVar("K")


ITEM_BYTES: Final = 512
"""What an item takes beside its value: its key, once more where its time is kept, and the maps."""


class ByteLRU(Generic[K]):
    """Bytes by key, at most `capacity` bytes together, with ITEM_BYTES for each."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.bytes = 0
        self.evictions = 0
        self._items: OrderedDict[K, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._items))

    def __contains__(self, key: K) -> bool:
        return key in self._items

    def get(self, key: K) -> bytes | None:
        """The value, which becomes the most recently used; None if it is not here."""
        value = self._items.get(key)
        if value is not None:
            self._items.move_to_end(key)
        return value

    def put(self, key: K, value: bytes) -> bool:
        """Keep a value, forgetting older ones for its sake. False if it alone is too large."""
        self.pop(key)
        if len(value) + ITEM_BYTES > self.capacity:
            return False
        self._items[key] = value
        self.bytes += len(value) + ITEM_BYTES
        while self.bytes > self.capacity:
            _, dropped = self._items.popitem(last=False)
            self.bytes -= len(dropped) + ITEM_BYTES
            self.evictions += 1
        return True

    def pop(self, key: K) -> None:
        """Forget a value; nothing happens if it is not here."""
        value = self._items.pop(key, None)
        if value is not None:
            self.bytes -= len(value) + ITEM_BYTES
