"""A store as one tar file and back, for clusters that no network joins; and the audit of a store.

    blobs/<digest>.zst     one zstd frame
    entries/<kind>/<hex>   an entry's bytes, with its seal

Blobs come before the entries that name them. Reading never touches the file system but through the
store: members are streamed, their names must be of the two forms above, their sizes are bounded.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from cache import frames
from cache import key as keys
from cache.artifacts import open_entry, put_entry_over
from cache.errors import CacheError, Corrupt, ProtocolError, TooLarge
from cache.gc import Collectable
from cache.inventory import Item
from cache.protocol import MAX_FRAME, MAX_MANIFEST
from cache.store import Store
from cache.trust import OWN_STORE, Trust

MAX_MEMBERS = 4_000_000
_BLOB = re.compile(r"blobs/([0-9a-f]{64})\.zst")
_ENTRY = re.compile(r"entries/([a-z]+/[0-9a-f]{64})")


@dataclass(frozen=True)
class Moved:
    """What an export or import did: counts, and why entries were left out."""

    entries: int
    blobs: int
    left_out: tuple[str, ...] = ()


def write(store: Collectable, out: IO[bytes]) -> Moved:
    """Write every whole artifact of a store. Raises what the store raises, OSError."""
    named: dict[str, bytes] = {}
    wanted: set[str] = set()
    left_out: list[str] = []
    for item in _manifests(store.list_entries()):
        data = store.peek_entry(item.name)
        if data is None:
            continue
        try:
            wanted.update(open_entry(item.name, data, OWN_STORE)[0].digests())
        except CacheError as error:
            left_out.append(f"{item.name}: {error.message}")
            continue
        named[item.name] = data
    absent: set[str] = set()
    written = 0
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for digest in sorted(wanted):
            blob = store.get_blob(digest)
            if blob is None:
                absent.add(digest)
            else:
                _add(tar, f"blobs/{digest}.zst", frames.compress(blob))
        for key in sorted(named):
            if absent.isdisjoint(open_entry(key, named[key], OWN_STORE)[0].digests()):
                _add(tar, f"entries/{key}", named[key])
                written += 1
            else:
                left_out.append(f"{key}: a blob is missing")
    return Moved(written, len(wanted - absent), tuple(left_out))


def read(store: Store, source: IO[bytes], trust: Trust) -> Moved:
    """Put what a tar file holds into a store: the artifacts that `trust` allows.

    An artifact that stands in the store and is trusted is kept. Raises ProtocolError or TooLarge
    for a member that `write` would not write (nothing after it is read), and what the store raises.
    """
    entries = blobs = members = 0
    left_out: list[str] = []
    with _tar_errors(), tarfile.open(fileobj=source, mode="r|") as tar:
        for member in tar:
            members += 1
            if members > MAX_MEMBERS:
                raise TooLarge(f"an archive of more than {MAX_MEMBERS} members")
            blob, entry = _BLOB.fullmatch(member.name), _ENTRY.fullmatch(member.name)
            if not member.isreg() or (blob is None and entry is None):
                raise ProtocolError(f"not a member of an archive of ours: {member.name[:80]!r}")
            limit = MAX_FRAME if blob is not None else MAX_MANIFEST
            if member.size > limit:
                raise TooLarge(f"{member.name[:40]}…: {member.size} bytes, limit {limit}")
            file = tar.extractfile(member)
            data = b"" if file is None else file.read(limit + 1)
            if blob is not None:
                digest = blob.group(1)
                store.put_blob(digest, frames.decompress(data, digest))
                blobs += 1
            elif entry is not None:
                key = entry.group(1)
                try:
                    _put_entry(store, key, data, trust)
                except CacheError as error:
                    left_out.append(f"{key}: {error.message}")
                else:
                    entries += 1
    return Moved(entries, blobs, tuple(left_out))


@dataclass(frozen=True)
class Audit:
    """What a look at every byte of a store found. `damaged` names what cannot be used, and why."""

    entries: int
    blobs: int
    damaged: tuple[str, ...]


def audit(store: Collectable, trust: Trust = OWN_STORE) -> Audit:
    """Read everything. A damaged blob is removed by the store that finds it, as on every read."""
    damaged: list[str] = []
    blobs = entries = 0
    for item in list(store.list_blobs()):
        blobs += 1
        if store.get_blob(item.name) is None:
            damaged.append(f"blob {item.name}: its bytes are not what its name says")
    for item in _manifests(list(store.list_entries())):
        data = store.peek_entry(item.name)
        if data is None:
            continue
        entries += 1
        try:
            wanted = open_entry(item.name, data, trust)[0].digests()
        except CacheError as error:
            damaged.append(f"entry {item.name}: {error.message}")
            continue
        missing = set(wanted) - store.has_blobs(wanted)
        if missing:
            damaged.append(f"entry {item.name}: {len(missing)} of its blobs are missing")
    return Audit(entries, blobs, tuple(damaged))


def _put_entry(store: Store, key: str, data: bytes, trust: Trust) -> None:
    if keys.is_internal(key):
        raise ProtocolError("an archive holds artifacts only")
    manifest, _ = open_entry(key, data, trust)
    wanted = manifest.digests()
    if store.has_blobs(wanted) < set(wanted):
        raise Corrupt("a blob that it names is not in the archive")
    put_entry_over(store, key, data, trust)


def _manifests(items: Iterable[Item]) -> Iterator[Item]:
    return (item for item in items if not keys.is_internal(item.name))


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    member.mode = 0o600
    tar.addfile(member, io.BytesIO(data))


@contextmanager
def _tar_errors() -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise ProtocolError(f"not a tar file, or one that is cut short: {error}") from error
