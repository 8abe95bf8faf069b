"""What is revoked, as a client knows it: asked of the service, kept beside the local store.

The service does not serve what is revoked; this is for the copies that lie here already. A list is
asked for at most REFRESH_S after the last, beside the caller, whenever something is looked up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from cache import revocation
from cache.client import CacheClient
from cache.errors import CacheError
from cache.revocation import Revocations
from cache.store import Store

REFRESH_S: Final = 20.0
STALE_S: Final = 40.0
"""A list older than this is waited for, up to WAIT_S."""
WAIT_S: Final = 0.5


class RevocationFeed:
    """The list of `remote`, with the last one that came in `local` for when it does not answer.

    Never raises for a fault: what was known goes on to count. Safe for threads.
    """

    def __init__(
        self,
        remote: CacheClient | None,
        local: Store,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._remote = remote
        self._local = local
        self._clock = clock
        self._lock = threading.Lock()
        self._known: Revocations | None = None
        self._tried_at = float("-inf")
        self._thread: threading.Thread | None = None

    def current(self) -> Revocations:
        """The list, STALE_S old at most where the service answers within WAIT_S."""
        with self._lock:
            if self._known is None:
                self._known = self._kept()
            age = self._clock() - self._tried_at
            thread = self._thread
            if self._remote is not None and age > REFRESH_S:
                if thread is None or not thread.is_alive():
                    thread = threading.Thread(
                        target=self._fetch, args=(self._remote,), name="fusec-revoked", daemon=True
                    )
                    self._thread = thread
                    thread.start()
            else:
                thread = None
        if thread is not None and age > STALE_S:
            thread.join(WAIT_S)
        with self._lock:
            return self._known

    def _kept(self) -> Revocations:
        try:
            return revocation.read(self._local)
        except CacheError:
            return revocation.NONE  # a damaged copy; the service will be asked

    def _fetch(self, remote: CacheClient) -> None:
        try:
            made = revocation.read(remote)
            with self._lock:
                changed = made != self._known
                self._known = made
            if changed:
                self._local.replace_entry(revocation.KEY, made.encode())
        except CacheError:
            pass  # the lookup that follows meets the same fault, counts it and tells it
        finally:
            self._tried_at = self._clock()
