"""Keeps the local store within its bounds: looked at once an hour and machine, beside the job."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from pathlib import Path
from typing import Final

from cache import gc
from cache.errors import CacheError
from cache.gc import MIN_GRACE_S, Policy
from cache.local import LocalStore

log = logging.getLogger("fusec.remote")

EVERY_S: Final = 3600.0
MAX_FILES: Final = 200_000
_MARK: Final = "looked-at"


def tidy_beside(store: LocalStore, max_bytes: int) -> threading.Thread | None:
    """Start a look at the store if one is due; gives its thread, None where none is due.

    What was used longest ago goes until four fifths of the bounds are left. Safe beside all other
    jobs that use the store. Never raises.
    """
    if not _is_due(store.root / _MARK):
        return None
    thread = threading.Thread(target=_tidy, args=(store, max_bytes), name="fusec-tidy", daemon=True)
    thread.start()
    return thread


def _is_due(mark: Path) -> bool:
    try:
        if mark.exists() and time.time() - mark.stat().st_mtime < EVERY_S:
            return False
        mark.touch(mode=0o600)
        os.utime(mark)
    except OSError:
        return False  # read-only, or somebody else's: it is not ours to tidy
    return True


def _tidy(store: LocalStore, max_bytes: int) -> None:
    with contextlib.suppress(OSError, CacheError):
        files = total = 0
        for items in (store.list_blobs(), store.list_entries()):
            for item in items:
                files += 1
                total += item.bytes
        # Most looks end here: to read every entry takes long.
        if total > max_bytes or files > MAX_FILES:
            policy = Policy(max_bytes=max_bytes, max_files=MAX_FILES, grace_s=MIN_GRACE_S)
            made = gc.collect(store, policy)
            log.info("the local store was over its bound: %s", list(made.lines())[-1])
