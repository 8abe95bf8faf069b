"""Interning: one node a key, for as long as somebody holds it.

Equality of interned nodes is identity. A compile makes tens of thousands of them, so this is less
general and a few times faster than `weakref.WeakValueDictionary`.
"""

from __future__ import annotations

import threading
import weakref
from typing import Generic, TypeVar

_Node = TypeVar("_Node")


class _Entry(weakref.ref[_Node]):
    __slots__ = ("key",)
    key: tuple[object, ...]


class Interning(Generic[_Node]):
    """Nodes by key. Threads may share it."""

    def __init__(self) -> None:
        self._entries: dict[tuple[object, ...], _Entry[_Node]] = {}
        # Re-entrant: a node can die, and be forgotten, while this thread adds another.
        self._lock = threading.RLock()

    def get(self, key: tuple[object, ...]) -> _Node | None:
        entry = self._entries.get(key)
        return None if entry is None else entry()

    def add(self, key: tuple[object, ...], node: _Node) -> _Node:
        """The node, or the one that another thread added before."""
        with self._lock:
            found = self.get(key)
            if found is not None:
                return found
            entry = _Entry(node, self._forget)
            entry.key = key
            self._entries[key] = entry
            return node

    def _forget(self, entry: _Entry[_Node]) -> None:
        with self._lock:
            if self._entries.get(entry.key) is entry:  # not the one that came after
                del self._entries[entry.key]
