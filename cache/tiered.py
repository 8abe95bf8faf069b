"""A near store in front of a far one: copies nearby, the truth far away.

Blobs never change, so a near copy is as good as the original. Entries may be replaced, so they are
read from the far store, and from the near one only while the far one does not answer, or refuses
us: hits go on through an outage, and after credentials have expired.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cache.counters import Counters
from cache.errors import CacheError, NotReachable, Refused
from cache.frames import get_frame, put_frame
from cache.protocol import Value
from cache.store import Blobs, Store, SwapStore, get_blobs


class TieredStore:
    """A `Store` that keeps copies of `far` in `near`.

    Writes go to `far` and fail as it fails. Trouble with `near` never reaches the caller: it is
    counted in `counters` as `near_errors`, and `far_errors` counts reads that `near` stood in for.
    `near_hits` and `near_misses` count blobs.
    """

    def __init__(self, near: Store, far: SwapStore, *, counters: Counters | None = None) -> None:
        self.near = near
        self.far = far
        self.counters = counters or Counters()

    def get_blob(self, digest: str) -> bytes | None:
        """See `Store`."""
        return self.get_blobs([digest]).found.get(digest)

    def get_blobs(self, digests: Sequence[str]) -> Blobs:
        """See `BatchStore`."""
        try:
            found = dict(get_blobs(self.near, digests).found)
        except CacheError:
            self.counters.add("near_errors")
            found = {}
        missing = [digest for digest in digests if digest not in found]
        self.counters.add("near_hits", len(found))
        self.counters.add("near_misses", len(missing))
        if not missing:
            return Blobs(found, frozenset())
        far = get_blobs(self.far, missing)
        for digest, data in far.found.items():
            self._fill(digest, data)
        return Blobs({**found, **far.found}, far.corrupt)

    def get_frame(self, digest: str) -> bytes | None:
        """See `FrameStore`."""
        try:
            frame = get_frame(self.near, digest)
        except CacheError:
            self.counters.add("near_errors")
            frame = None
        self.counters.add("near_misses" if frame is None else "near_hits")
        if frame is None:
            frame = get_frame(self.far, digest)
            if frame is not None:
                self._fill_frame(digest, frame)
        return frame

    def put_frame(self, digest: str, frame: bytes) -> None:
        """See `FrameStore`."""
        put_frame(self.far, digest, frame)
        self._fill_frame(digest, frame)

    def has_blobs(self, digests: Iterable[str]) -> set[str]:
        """See `Store`. Only the far store counts: a copy nearby may be the last one."""
        return self.far.has_blobs(digests)

    def put_blob(self, digest: str, data: bytes) -> None:
        """See `Store`."""
        self.far.put_blob(digest, data)
        self._fill(digest, data)

    def get_entry(self, key: str) -> bytes | None:
        """See `Store`. While the far store does not answer us, the near copy stands in."""
        try:
            data = self.far.get_entry(key)
        except (NotReachable, Refused):
            self.counters.add("far_errors")
            kept = self._near_entry(key)
            if kept is None:
                raise
            return kept
        self._copy_entry(key, data)
        return data

    def put_entry(self, key: str, manifest_bytes: bytes) -> bool:
        """See `Store`."""
        written = self.far.put_entry(key, manifest_bytes)
        if written:
            self._copy_entry(key, manifest_bytes)
        return written

    def replace_entry(self, key: str, manifest_bytes: bytes) -> None:
        """See `Store`."""
        self.far.replace_entry(key, manifest_bytes)
        self._copy_entry(key, manifest_bytes)

    def swap_entry(self, key: str, expected: str, manifest_bytes: bytes) -> bool:
        """See `SwapStore`."""
        swapped = self.far.swap_entry(key, expected, manifest_bytes)
        if swapped:
            self._copy_entry(key, manifest_bytes)
        return swapped

    def get_record(self, name: str) -> bytes | None:
        """See `SwapStore`. No copy nearby stands in: it would be an old value."""
        return self.far.get_record(name)

    def swap_record(self, name: str, expected: str | None, data: bytes) -> bool:
        """See `SwapStore`."""
        return self.far.swap_record(name, expected, data)

    def delete_entry(self, key: str) -> None:
        """See `Store`."""
        self.far.delete_entry(key)
        self._copy_entry(key, None)

    def describe(self) -> dict[str, Value]:
        """See `Store`: the far store's, and the near one's under `near`."""
        far = self.far.describe()
        return {**far, "kind": "tiered", "far": far["kind"], "near": self.near.describe()}

    def _fill(self, digest: str, data: bytes) -> None:
        try:
            self.near.put_blob(digest, data)
        except CacheError:
            self.counters.add("near_errors")

    def _fill_frame(self, digest: str, frame: bytes) -> None:
        try:
            put_frame(self.near, digest, frame)
        except CacheError:
            self.counters.add("near_errors")

    def _near_entry(self, key: str) -> bytes | None:
        try:
            return self.near.get_entry(key)
        except CacheError:
            self.counters.add("near_errors")
            return None

    def _copy_entry(self, key: str, data: bytes | None) -> None:
        try:
            if data is None:
                self.near.delete_entry(key)
            elif self.near.get_entry(key) != data:
                self.near.replace_entry(key, data)
        except CacheError:
            self.counters.add("near_errors")
