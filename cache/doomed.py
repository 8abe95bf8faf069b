"""Blobs that a collector is about to remove, announced to all who write to the same store.

Where a blob cannot be removed and checked in one step (S3), the collector first writes a list of
what it will remove, and removes it a while later. In the meantime writers go by the list: a blob on
it counts as absent, so it is written again, which spares it. During the removal itself nobody may
write a blob on the list; that takes a minute at most. So no entry ever names a blob that goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cache import digest as digests
from cache import key as keys
from cache import protocol as wire
from cache.errors import ProtocolError
from cache.store import Store

KEY: Final = f"{keys.DOOMED}/{'0' * 64}"
VERSION: Final = 1
MAX_DOOMED: Final = 32_768
"""Most blobs of one list: 2.2 MB of names."""
REFRESH_S: Final = 60.0
"""A writer looks at the list again after this time at the latest."""
SKEW_S: Final = 30.0
"""How far the clocks of collectors and services may be apart."""


@dataclass(frozen=True)
class Doomed:
    """A list, in seconds since 1970 by the collector's clock: made at `made_at`; the blobs go
    between `sweep_at` and `until`, unless they were written after `spared_after`."""

    made_at: float
    sweep_at: float
    until: float
    spared_after: float
    digests: frozenset[str]

    def is_over(self, now: float) -> bool:
        """Whether nothing of it counts any more: the collector is done, or has died."""
        return now > self.until + SKEW_S

    def is_closed(self, now: float) -> bool:
        """Whether nobody may write a blob of the list now."""
        return self.sweep_at - SKEW_S <= now <= self.until + SKEW_S

    def encode(self) -> bytes:
        """The bytes of the list's entry."""
        return wire.pack(
            {
                "version": VERSION,
                "made_at": self.made_at,
                "sweep_at": self.sweep_at,
                "until": self.until,
                "spared_after": self.spared_after,
                "digests": sorted(self.digests),
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> Doomed:
        """Raises ProtocolError, TooLarge."""
        value = wire.unpack(data, max_bytes=wire.MAX_MANIFEST, max_depth=3)
        times = ("made_at", "sweep_at", "until", "spared_after")
        body = wire.fields(value, "doomed blobs", ("version", *times, "digests"))
        if body["version"] != VERSION:
            raise ProtocolError(f"a list of doomed blobs of version {body['version']!r:.20}")
        made_at, sweep_at, until, spared_after = (_time(body, name) for name in times)
        names = wire.strings(body["digests"], "doomed blobs", limit=MAX_DOOMED)
        listed = frozenset(digests.require(name) for name in names)
        return cls(made_at, sweep_at, until, spared_after, listed)


def _time(body: dict[str, wire.Value], name: str) -> float:
    at = body[name]
    if not isinstance(at, float):
        raise ProtocolError(f"doomed blobs: {name} is no time")
    return at


def read(store: Store) -> Doomed | None:
    """The list that stands in a store. Raises what the store and `decode` raise."""
    data = store.get_entry(KEY)
    return None if data is None else Doomed.decode(data)
