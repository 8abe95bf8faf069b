"""The delay budget: how much time a process may lose to a dead, slow or lying remote.

Every request may wait for as long as the budget has left. Time that failed requests took is taken
off it, and some of slow answers; good answers give back a tenth. When nothing is left, or after two
failures in a row, the breaker opens: callers get NotReachable at once. While it is open, a probe
beside the callers (it delays nobody) asks now and then whether the remote is back.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from cache.errors import NotReachable

SLOW_ANSWER_SECONDS = 0.5
"""An answer may take this long, plus the transfer at MIN_RATE, before its time counts as lost."""
MIN_RATE = 1 << 20
"""Bytes a second below which a transfer counts as stalled."""
RETRY_SHARE = 0.2
"""How many requests may be made once more, of all that are answered: what a remote in trouble is
asked for by all its clients grows by no more than this."""
FIRST_RETRIES = 3.0
"""What may be retried before anything was answered."""
RETRY_SECONDS = 0.05
"""A retry waits a random time of up to this: many see one connection fail at the same moment."""

_MOST_RETRIES = 10.0
_LOST_PROBE_SECONDS = 10.0


class DelayBudget:
    """One process's budget for one remote; clients of the same remote may share it.

    `total_s` is what may be lost before the breaker opens. The first probe comes a random time of
    `probe_s` (seconds, from and to) later; while the remote answers probes but not requests the
    time doubles, up to `max_probe_s`. Safe for threads.
    """

    def __init__(
        self,
        total_s: float = 2.0,
        *,
        probe_s: tuple[float, float] = (1.0, 5.0),
        max_probe_s: float = 25.0,
        failures_to_open: int = 2,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self.total_s = total_s
        self._probe_s = probe_s
        self._max_probe_s = max_probe_s
        self._failures_to_open = failures_to_open
        self._clock = clock
        self._rng = rng or random.Random()
        self._lock = threading.Lock()
        self._left = total_s
        self._retries = FIRST_RETRIES
        self._failures = 0
        self._open = False
        self._reason = ""
        self._reopened = 0
        self._probe_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether callers are refused at once."""
        with self._lock:
            return self._open

    @property
    def left_s(self) -> float:
        """Seconds that may still be lost."""
        with self._lock:
            return self._left

    def admit(self) -> float:
        """Seconds that a request starting now may wait. Raises NotReachable while open."""
        with self._lock:
            if self._open:
                raise NotReachable(
                    f"the cache service is taken for dead: {self._reason}",
                    hint="it is probed in the background and used again when it answers",
                )
            return max(self._left, 0.05)

    def succeeded(self, waited_s: float) -> None:
        """A request was answered after waiting `waited_s` (without the time of its transfer)."""
        with self._lock:
            self._failures = 0
            self._retries = min(_MOST_RETRIES, self._retries + RETRY_SHARE)
            lost = waited_s - SLOW_ANSWER_SECONDS
            if lost > 0:
                self._left -= lost
                if self._left <= 0:
                    self._open_locked("its answers are too slow")
                return
            self._left = min(self.total_s, self._left + self.total_s / 10)
            if self._left >= self.total_s:
                self._reopened = 0

    def failed(self, waited_s: float, reason: str) -> None:
        """A request got no usable answer and took `waited_s`."""
        with self._lock:
            self._failures += 1
            self._left -= waited_s
            if self._left <= 0 or self._failures >= self._failures_to_open:
                self._open_locked(reason)

    def retry_after(self) -> float | None:
        """Seconds after which a request that failed may be made once more; None if it may not."""
        with self._lock:
            if self._open or self._retries < 1.0:
                return None
            self._retries -= 1.0
            return self._rng.uniform(0.0, RETRY_SECONDS)

    def take_probe(self) -> bool:
        """True if a probe is due; the caller must make it and report to `probed`."""
        with self._lock:
            if not self._open or self._clock() < self._probe_at:
                return False
            # The next one in case nobody reports this one: its thread may be gone after a fork.
            self._probe_at = self._clock() + _LOST_PROBE_SECONDS
            return True

    def probed(self, alive: bool) -> None:
        """Report a probe. If the remote is alive the breaker closes, with half of the budget."""
        with self._lock:
            if alive:
                self._open = False
                self._failures = 0
                self._left = max(self._left, self.total_s / 2)
            else:
                self._schedule_locked(1.0)

    def _open_locked(self, reason: str) -> None:
        if not self._open:
            self._open = True
            self._reason = reason
            self._schedule_locked(2.0**self._reopened)
            self._reopened = min(self._reopened + 1, 10)

    def _schedule_locked(self, factor: float) -> None:
        wait = self._rng.uniform(*self._probe_s) * factor
        self._probe_at = self._clock() + min(wait, self._max_probe_s)
