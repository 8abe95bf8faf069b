"""What a collector asks of a store: what lies in it and since when, and to remove a blob."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class Item:
    """An entry or a blob at rest. `name` is its key or digest, `bytes` its size there, `at` when it
    was written or (entries, to an hour or a day) used last, in seconds since 1970."""

    name: str
    bytes: int
    at: float


@runtime_checkable
class Inventory(Protocol):
    """A store that can be collected (`cache.gc`)."""

    @property
    def removes_atomically(self) -> bool:
        """Whether `remove_blobs` cannot meet a writer who was told that a blob is here.

        Without that a collector must announce what it is going to remove (`cache.doomed`).
        """

    def list_entries(self) -> Iterator[Item]:
        """All entries, also those of the cache's own kinds."""

    def list_blobs(self) -> Iterator[Item]:
        """All blobs."""

    def list_records(self) -> Iterator[Item]:
        """All records; their time is that of the last change."""

    def peek_entry(self, key: str) -> bytes | None:
        """As `Store.get_entry`, for who only looks: it is no use, which would keep the entry."""

    def remove_record(self, name: str, before: float) -> bool:
        """Remove a record that was changed last before that time; whether it was."""

    def remove_blobs(self, digests: Sequence[str], before: float) -> set[str]:
        """Remove those of the blobs that were written, or promised to a writer, before that time.

        Gives the digests that were removed.
        """

    def written_after(self, digests: Sequence[str], at: float) -> set[str]:
        """Those of the blobs that are here and were written, or promised, after that time."""

    def touch_entry(self, key: str) -> None:
        """Say that an entry is in use; nothing happens if it is not here."""
