"""A store in a directory, shared by all processes of a user on one machine.

    <root>/v1/blobs/<2 hex>/<digest>.zst      one zstd frame
    <root>/v1/entries/<kind>/<2 hex>/<hex>    a manifest's bytes
    <root>/v1/records/<kind>/<2 hex>/<hex>    a record's bytes
    <root>/v1/tmp/                            files being written

A file appears whole or not at all: it is written under `tmp`, synced, then renamed (blobs, replaced
entries) or hard-linked (new entries: a link fails if the name is taken, which makes the conditional
create atomic between processes). Killed writers leave only files in `tmp`, removed an hour later.

The time of an entry's file is that of its last use, to an hour; a blob's is when it was written or
promised to a writer last. Promises and removals exclude each other by a lock on `v1/lock`, so that
a collector in one process never takes what another was told is there. Records, and entries that
take the place of others, are written one at a time, under `v1/swaps.lock`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from cache import digest as digests
from cache import frames
from cache import key as keys
from cache.counters import Counters
from cache.errors import Corrupt, NotReachable, ProtocolError, TooLarge
from cache.inventory import Item
from cache.local_files import (
    READ_ATTEMPTS,
    check_private,
    locked,
    mark_used,
    os_errors,
    promise,
    raise_unless_absent,
    read_file,
)
from cache.protocol import MAX_FRAME, MAX_MANIFEST, MAX_RECORD, Value
from cache.store import Blobs, check_blob, check_entry, check_record

STALE_TMP_SECONDS = 3600.0
_SWAPS = "swaps.lock"
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS, errno.EXDEV})


class LocalStore:
    """A `Store` in the directory `root`, created for this user alone (0700).

    Raises Refused if the directory belongs to somebody else or others may write to it: what is
    read from here gets executed. `counters` counts `corrupt`, `store_full` and `io_errors`.
    """

    def __init__(self, root: str | os.PathLike[str], *, counters: Counters | None = None) -> None:
        self.root = Path(root)
        self.counters = counters or Counters()
        self._base = self.root / "v1"
        self._tmp = self._base / "tmp"
        with os_errors(self.counters, f"open the store {self.root}"):
            self._make_folder(self._tmp)
            check_private(self.root, self._base)
            self._sweep_tmp()

    def get_blob(self, digest: str) -> bytes | None:
        """See `Store`."""
        try:
            return self._read_blob(digests.require(digest))
        except Corrupt:
            return None

    def get_blobs(self, digests: Sequence[str]) -> Blobs:
        """See `BatchStore`."""
        found: dict[str, bytes] = {}
        corrupt: set[str] = set()
        for digest in digests:
            try:
                data = self._read_blob(digest)
            except Corrupt:
                corrupt.add(digest)
                continue
            if data is not None:
                found[digest] = data
        return Blobs(found, frozenset(corrupt))

    def has_blobs(self, digests: Iterable[str]) -> set[str]:
        """See `Store`. What is said to be here stays for a collector's time of grace."""
        paths = {digest: self._blob_path(digest) for digest in digests}
        if not paths:
            return set()
        with os_errors(self.counters, f"look into {self.root}"), self._lock(fcntl.LOCK_SH):
            return {digest for digest, path in paths.items() if promise(path)}

    def put_blob(self, digest: str, data: bytes) -> None:
        """See `Store`."""
        check_blob(digest, data)
        self._put(digest, lambda: frames.compress(data))

    def get_frame(self, digest: str) -> bytes | None:
        """See `FrameStore`."""
        try:
            read = self._read_checked(digests.require(digest))
        except Corrupt:
            return None
        return None if read is None else read[0]

    def put_frame(self, digest: str, frame: bytes) -> None:
        """See `FrameStore`."""
        frames.decompress(frame, digests.require(digest))
        self._put(digest, lambda: frame)

    def get_entry(self, key: str) -> bytes | None:
        """See `Store`."""
        data = self.peek_entry(key)
        if data is not None:
            mark_used(self._entry_path(key))
        return data

    def peek_entry(self, key: str) -> bytes | None:
        """See `Inventory`."""
        path = self._entry_path(key)
        with os_errors(self.counters, f"read entry {key[:24]}… under {self.root}"):
            try:
                return read_file(path, MAX_MANIFEST)
            except TooLarge:
                # Nobody writes such a file through this class: it is damage.
                self._discard(path)
                return None

    def put_entry(self, key: str, manifest_bytes: bytes) -> bool:
        """See `Store`."""
        check_entry(key, manifest_bytes)
        path = self._entry_path(key)
        with os_errors(self.counters, f"write entry {key[:24]}… under {self.root}"):
            for _ in range(READ_ATTEMPTS):
                standing = self.get_entry(key)
                if standing is not None:
                    return standing == manifest_bytes
                with suppress(FileExistsError):
                    self._write(path, manifest_bytes, exclusive=True)
                    return True
        raise NotReachable(f"entry {key[:24]}… under {self.root} comes and goes")

    def replace_entry(self, key: str, manifest_bytes: bytes) -> None:
        """See `Store`."""
        check_entry(key, manifest_bytes)
        with os_errors(self.counters, f"write entry {key[:24]}… under {self.root}"):
            self._make_folder(self._tmp)
            with self._lock(fcntl.LOCK_EX, _SWAPS):
                self._write(self._entry_path(key), manifest_bytes)

    def swap_entry(self, key: str, expected: str, manifest_bytes: bytes) -> bool:
        """See `SwapStore`."""
        check_entry(key, manifest_bytes)
        digests.require(expected)
        with os_errors(self.counters, f"write entry {key[:24]}… under {self.root}"):
            return self._swap(self._entry_path(key), expected, manifest_bytes)

    def get_record(self, name: str) -> bytes | None:
        """See `SwapStore`."""
        path = self._record_path(name)
        with os_errors(self.counters, f"read record {name[:24]}… under {self.root}"):
            return read_file(path, MAX_RECORD)

    def swap_record(self, name: str, expected: str | None, data: bytes) -> bool:
        """See `SwapStore`."""
        check_record(name, expected, data)
        with os_errors(self.counters, f"write record {name[:24]}… under {self.root}"):
            return self._swap(self._record_path(name), expected, data)

    def delete_entry(self, key: str) -> None:
        """See `Store`."""
        path = self._entry_path(key)
        with (
            os_errors(self.counters, f"remove entry {key[:24]}… under {self.root}"),
            self._lock(fcntl.LOCK_EX, _SWAPS),
        ):
            path.unlink(missing_ok=True)

    # -- Inventory -----------------------------------------------------------------------------

    removes_atomically = True

    def namespaces(self) -> list[str]:
        """The namespaces whose stores lie in this one's directory."""
        folder = self.root / "ns"
        with os_errors(self.counters, f"look into {folder}"):
            return [path.name for path in folder.iterdir()] if folder.is_dir() else []

    def list_entries(self) -> Iterator[Item]:
        """See `Inventory`."""
        for path, status in self._files("entries"):
            key = f"{path.parent.parent.name}/{path.name}"
            with suppress(ProtocolError):  # a file that somebody else put there
                keys.parse(key)
                yield Item(key, status.st_size, status.st_mtime)

    def list_blobs(self) -> Iterator[Item]:
        """See `Inventory`."""
        for path, status in self._files("blobs"):
            name = path.name.removesuffix(".zst")
            if digests.is_digest(name):
                yield Item(name, status.st_size, status.st_mtime)

    def list_records(self) -> Iterator[Item]:
        """See `Inventory`."""
        for path, status in self._files("records"):
            name = f"{path.parent.parent.name}/{path.name}"
            with suppress(ProtocolError):
                keys.parse_record(name)
                yield Item(name, status.st_size, status.st_mtime)

    def remove_record(self, name: str, before: float) -> bool:
        """See `Inventory`."""
        path = self._record_path(name)
        with (
            os_errors(self.counters, f"remove record {name[:24]}… under {self.root}"),
            self._lock(fcntl.LOCK_EX, _SWAPS),
            suppress(FileNotFoundError),
        ):
            if os.stat(path).st_mtime < before:
                path.unlink()
                return True
        return False

    def remove_blobs(self, digests: Sequence[str], before: float) -> set[str]:
        """See `Inventory`."""
        removed: set[str] = set()
        with os_errors(self.counters, f"remove blobs under {self.root}"):
            for digest in digests:
                path = self._blob_path(digest)
                # One at a time: a writer must not wait for a whole batch.
                with self._lock(fcntl.LOCK_EX), suppress(FileNotFoundError):
                    if os.stat(path).st_mtime < before:
                        path.unlink()
                        removed.add(digest)
        return removed

    def written_after(self, digests: Sequence[str], at: float) -> set[str]:
        """See `Inventory`."""
        young: set[str] = set()
        with os_errors(self.counters, f"look into {self.root}"):
            for digest in digests:
                with suppress(FileNotFoundError):
                    if os.stat(self._blob_path(digest)).st_mtime > at:
                        young.add(digest)
        return young

    def touch_entry(self, key: str) -> None:
        """See `Inventory`."""
        with (
            os_errors(self.counters, f"mark entry {key[:24]}… as used under {self.root}"),
            suppress(FileNotFoundError),
        ):
            os.utime(self._entry_path(key))

    def describe(self) -> dict[str, Value]:
        """See `Store`. Walks the directory: about a second for 100,000 files."""
        counts: dict[str, int] = {}
        total = 0
        for part in ("blobs", "entries"):
            counts[part] = 0
            for _, status in self._files(part):
                total += status.st_size
                counts[part] += 1
        return {"kind": "local", "where": str(self.root), "bytes": total, **counts}

    def _files(self, part: str) -> Iterator[tuple[Path, os.stat_result]]:
        """Every file of a part with its status; those that go meanwhile are left out.

        A folder that cannot be read is an error: a collector that did not see an entry would take
        its blobs for orphans.
        """
        with os_errors(self.counters, f"list the {part} under {self.root}"):
            for folder, _, names in os.walk(self._base / part, onerror=raise_unless_absent):
                for name in names:
                    path = Path(folder, name)
                    with suppress(FileNotFoundError):
                        yield path, path.stat()

    def _swap(self, path: Path, expected: str | None, data: bytes) -> bool:
        """Write a file in the place of the one with that digest, or of none; see `SwapStore`."""
        self._make_folder(self._tmp)
        with self._lock(fcntl.LOCK_EX, _SWAPS):
            standing = read_file(path, MAX_MANIFEST)
            found = None if standing is None else digests.digest(standing)
            if found != expected:
                return standing == data
            self._write(path, data)
            return True

    def _lock(self, how: int, name: str = "lock") -> AbstractContextManager[None]:
        return locked(self._base / name, how)

    def _blob_path(self, digest: str) -> Path:
        digests.require(digest)
        return self._base / "blobs" / digest[:2] / f"{digest}.zst"

    def _entry_path(self, key: str) -> Path:
        kind, name = keys.parse(key)
        return self._base / "entries" / kind / name[:2] / name

    def _record_path(self, name: str) -> Path:
        kind, hexed = keys.parse_record(name)
        return self._base / "records" / kind / hexed[:2] / hexed

    def _read_blob(self, digest: str) -> bytes | None:
        read = self._read_checked(digest)
        return None if read is None else read[1]

    def _read_checked(self, digest: str) -> tuple[bytes, bytes] | None:
        """A blob's frame and its bytes, verified."""
        path = self._blob_path(digest)
        with os_errors(self.counters, f"read blob {digest[:16]}… under {self.root}"):
            try:
                frame = read_file(path, MAX_FRAME)
                return None if frame is None else (frame, frames.decompress(frame, digest))
            except (Corrupt, TooLarge) as error:
                self._discard(path)
                raise Corrupt(f"blob {digest[:16]}… under {self.root}: {error}") from error

    def _put(self, digest: str, frame: Callable[[], bytes]) -> None:
        path = self._blob_path(digest)
        with os_errors(self.counters, f"write blob {digest[:16]}… under {self.root}"):
            with self._lock(fcntl.LOCK_SH):
                here = promise(path)
            if not here:
                self._write(path, frame())

    def _discard(self, path: Path) -> None:
        self.counters.add("corrupt")
        # On a read-only file system the bad copy stays; it is a miss every time.
        with suppress(OSError):
            path.unlink(missing_ok=True)

    def _write(self, path: Path, content: bytes, *, exclusive: bool = False) -> None:
        for attempt in (0, 1):
            try:
                self._write_once(path, content, exclusive)
                return
            except FileNotFoundError:
                # Somebody removed directories under us ("rm -rf" of the cache): make them again.
                if attempt:
                    raise
                self._make_folder(self._tmp)

    def _write_once(self, path: Path, content: bytes, exclusive: bool) -> None:
        self._make_folder(path.parent)
        tmp = self._tmp / f"{os.getpid()}-{secrets.token_hex(8)}"
        fd = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                rest = memoryview(content)
                while rest:
                    rest = rest[os.write(fd, rest) :]
                os.fsync(fd)
            finally:
                os.close(fd)
            if exclusive:
                self._link(tmp, path)
            else:
                os.replace(tmp, path)
        finally:
            with suppress(FileNotFoundError):
                tmp.unlink()

    def _link(self, tmp: Path, path: Path) -> None:
        try:
            os.link(tmp, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # No hard links here (FUSE, exFAT): check and rename under a lock that dies with us.
            with self._lock(fcntl.LOCK_EX):
                if path.exists():
                    raise FileExistsError(errno.EEXIST, "entry exists", str(path)) from error
                os.replace(tmp, path)

    def _make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        # One by one: mkdir(parents=True) gives its mode to the last one only.
        self.root.parent.mkdir(parents=True, exist_ok=True)
        below = [folder, *folder.parents]
        for path in reversed(below[: below.index(self.root) + 1]):
            path.mkdir(mode=0o700, exist_ok=True)

    def _sweep_tmp(self) -> None:
        limit = time.time() - STALE_TMP_SECONDS
        with os.scandir(self._tmp) as items:
            for item in items:
                with suppress(OSError):
                    if item.stat(follow_symlinks=False).st_mtime < limit:
                        os.unlink(item.path)
