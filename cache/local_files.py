"""Files of a store in a directory: read within bounds, marked as used, and what may go wrong."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cache.counters import Counters
from cache.errors import CacheError, NotReachable, Refused, StoreFull, TooLarge

USED_SECONDS = 3600.0
"""An entry's time of use is written down again after this time."""
READ_ATTEMPTS = 3
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def read_file(path: Path, limit: int) -> bytes | None:
    """A file's bytes; None if there is none. Raises TooLarge before reading more than `limit`."""
    for attempt in range(READ_ATTEMPTS):
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size > limit:
                    raise TooLarge(f"{path.name[:16]}…: a file of {size} bytes, limit {limit}")
                # Not limit + 1: so large a buffer is a mapping of its own, and stays one when it is
                # cut down to what was read: who keeps small files would hold pages for each.
                return file.read(size + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            # On a network file system a file replaced by another machine reads as a stale handle.
            if error.errno not in (errno.ESTALE, errno.EBUSY) or attempt == READ_ATTEMPTS - 1:
                raise
    return None


def promise(path: Path) -> bool:
    """Whether a file is here; if so it is young from now on."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    except PermissionError:
        return path.exists()
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return path.exists()
    return True


def mark_used(path: Path) -> None:
    """Write down that an entry is in use, to an hour."""
    # Most reads find the time recent enough: one stat, no write. A read-only store keeps none.
    with suppress(OSError):
        if os.stat(path).st_mtime < time.time() - USED_SECONDS:
            os.utime(path)


@contextmanager
def locked(path: Path, how: int) -> Iterator[None]:
    """Hold a lock file, `fcntl.LOCK_SH` or `LOCK_EX`; it ends with the process that holds it."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EROFS, errno.EACCES):
            raise
        # Removed under us, or read-only: nothing is promised and nothing is removed here.
        yield
        return
    try:
        fcntl.flock(fd, how)
        yield
    finally:
        os.close(fd)


def raise_unless_absent(error: OSError) -> None:
    """For `os.walk`, which passes over what it cannot read."""
    if not isinstance(error, FileNotFoundError):
        raise error


def check_private(root: Path, base: Path) -> None:
    """Raise Refused unless a store's directory is this user's alone."""
    for path in (root, base):
        status = os.stat(path)
        if not stat.S_ISDIR(status.st_mode):
            raise Refused(f"{path} is not a directory", hint="choose another cache directory")
    status = os.stat(base)
    if status.st_uid not in (os.geteuid(), 0):
        raise Refused(
            f"{base} belongs to user {status.st_uid}, not to {os.geteuid()}",
            hint="compiled code is loaded from here: choose a directory of your own",
        )
    if status.st_mode & 0o022:
        raise Refused(
            f"others may write to {base}",
            hint=f"compiled code is loaded from here: chmod 700 {base}",
        )


@contextmanager
def os_errors(counters: Counters, action: str) -> Iterator[None]:
    """Turn what the operating system says into the errors of this package."""
    try:
        yield
    except CacheError:
        raise
    except FileExistsError as error:
        raise Refused(f"cannot {action}: {error}", hint="something else lies in the way") from error
    except OSError as error:
        if error.errno in _FULL:
            counters.add("store_full")
            raise StoreFull(f"cannot {action}: {error.strerror}") from error
        counters.add("io_errors")
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            hint = "the directory must be writable for this user"
            raise Refused(f"cannot {action}: {error.strerror}", hint=hint) from error
        hint = "check the disk or network file system that holds it"
        raise NotReachable(f"cannot {action}: {error.strerror}", hint=hint) from error
