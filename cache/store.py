"""The interface of every store, and the checks that all of them make on their arguments.

A store holds blobs by content address and entries by key. An entry's bytes are a manifest, opaque
here. Blobs are written before the entry that names them; an entry is created conditionally, so a
key never changes its bytes silently. Where a better artifact follows, its entry takes the place of
one that the writer has seen, by compare and swap: of many writers one succeeds.

All methods may raise NotReachable (no answer), Refused (no permission) and, on malformed keys or
digests, ProtocolError. All stores are safe for use from several threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from cache import digest as digests
from cache import key as keys
from cache.errors import Corrupt, TooLarge
from cache.protocol import MAX_BLOB, MAX_MANIFEST, MAX_RECORD, Value


class Store(Protocol):
    """A place for blobs and entries."""

    def get_blob(self, digest: str) -> bytes | None:
        """The blob's bytes, verified; None if it is not here or its copy was bad.

        A bad copy is removed where that is possible, and counted. A remote store raises Corrupt
        instead, since it cannot tell a bad copy from a bad line.
        """

    def has_blobs(self, digests: Iterable[str]) -> set[str]:
        """Those of `digests` that are here."""

    def put_blob(self, digest: str, data: bytes) -> None:
        """Write a blob; nothing happens if it is here. Raises Corrupt if `data` does not match
        `digest`, TooLarge over MAX_BLOB, StoreFull when there is no space."""

    def get_entry(self, key: str) -> bytes | None:
        """The entry's manifest bytes as they were written, or None. Not verified: the manifest
        carries its own checksum, which `Manifest.decode` checks."""

    def put_entry(self, key: str, manifest_bytes: bytes) -> bool:
        """Create an entry. True if it was written or stands with identical bytes; False if
        another value stands, which is kept. Raises TooLarge, StoreFull; MissingBlobs from stores
        that check that the blobs are there."""

    def replace_entry(self, key: str, manifest_bytes: bytes) -> None:
        """Write an entry whatever stands there. Raises like `put_entry`."""

    def delete_entry(self, key: str) -> None:
        """Remove an entry; nothing happens if it is not here."""

    def describe(self) -> dict[str, Value]:
        """For people: `kind`, `where`, `bytes` at rest, `blobs` and `entries` (counts)."""


@runtime_checkable
class SwapStore(Store, Protocol):
    """A store that many writers share, who are to be one after another.

    What stands is named by the digest of its bytes (`cache.digest`). Beside entries it keeps
    records: a few bytes under a name of their own (`key.parse_record`), which change often, are
    written by compare and swap alone and are never cached anywhere. Raises NoSwap where what it is
    built on gets that wrong.
    """

    def swap_entry(self, key: str, expected: str, manifest_bytes: bytes) -> bool:
        """Put an entry in the place of the one whose bytes have the digest `expected`.

        True if it was written, or stands already: so that a writer who lost the answer may ask
        again. False if something else stands, or nothing. Raises like `put_entry`.
        """

    def get_record(self, name: str) -> bytes | None:
        """A record's bytes as they are at this moment, or None."""

    def swap_record(self, name: str, expected: str | None, data: bytes) -> bool:
        """Write a record where one with the digest `expected` stands, or none if that is None.

        True if it was written or stands already; False if something else does. Raises TooLarge over
        MAX_RECORD, StoreFull.
        """


@dataclass(frozen=True)
class Blobs:
    """What a batch read gave: blobs by digest, and the digests of which only bad copies exist."""

    found: dict[str, bytes]
    corrupt: frozenset[str]


@runtime_checkable
class BatchStore(Protocol):
    """A store that reads many blobs at once, and tells a bad copy from an absent one."""

    def get_blobs(self, digests: Sequence[str]) -> Blobs:
        """Those blobs of `digests` that are here, each verified."""


@runtime_checkable
class FrameStore(Protocol):
    """A store that keeps blobs as zstd frames and passes them on as they are, checked all the same.

    Who serves frames need not compress again what lies there compressed.
    """

    def get_frame(self, digest: str) -> bytes | None:
        """The blob as a frame, verified; None as of `Store.get_blob`."""

    def put_frame(self, digest: str, frame: bytes) -> None:
        """Write a blob that comes as a frame. Raises Corrupt, TooLarge as `frames.decompress`."""


@runtime_checkable
class SignsUrls(Protocol):
    """A store whose blobs a client can fetch by itself, from an address that it is given."""

    def presigned(self, digest: str, at_least: int, seconds: int) -> str | None:
        """An address of the blob's frame that is good for so long, or None: the blob is not here,
        or its frame has fewer than `at_least` bytes."""


def check_blob(digest: str, data: bytes) -> None:
    """Raise unless `data` may be stored under `digest` (ProtocolError, TooLarge, Corrupt)."""
    digests.require(digest)
    if len(data) > MAX_BLOB:
        raise TooLarge(f"blob {digest[:16]}…: {len(data)} bytes, limit {MAX_BLOB}")
    digests.check(data, digest)


def check_entry(key: str, manifest_bytes: bytes) -> None:
    """Raise unless these bytes may be stored under `key` (ProtocolError, TooLarge)."""
    keys.parse(key)
    if len(manifest_bytes) > MAX_MANIFEST:
        raise TooLarge(f"entry {key[:24]}…: {len(manifest_bytes)} bytes, limit {MAX_MANIFEST}")


def check_record(name: str, expected: str | None, data: bytes) -> None:
    """Raise unless such a swap of a record makes sense (ProtocolError, TooLarge)."""
    keys.parse_record(name)
    if expected is not None:
        digests.require(expected)
    if len(data) > MAX_RECORD:
        raise TooLarge(f"record {name[:24]}…: {len(data)} bytes, limit {MAX_RECORD}")


def get_blobs(store: Store, digests: Sequence[str]) -> Blobs:
    """Read many blobs from any store, in one call where the store can do that."""
    if isinstance(store, BatchStore):
        return store.get_blobs(digests)
    found: dict[str, bytes] = {}
    corrupt: set[str] = set()
    for digest in digests:
        try:
            data = store.get_blob(digest)
        except Corrupt:
            corrupt.add(digest)
            continue
        if data is not None:
            found[digest] = data
    return Blobs(found, frozenset(corrupt))
