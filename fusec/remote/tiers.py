"""The places an artifact can be found: this user's store, then the cache service.

What comes from afar is kept locally. A fault of either place is counted, told once and otherwise
a miss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cache.artifacts import Found, Miss, lookup_many
from cache.client import CacheClient
from cache.errors import CacheError, Corrupt, NewerVersion, NotReachable
from cache.manifest import Manifest
from cache.store import Store
from fusec.errors import WireError
from fusec.remote.best_effort import BestEffortStore
from fusec.remote.jobs import FrontRecord
from fusec.remote.keeper import Keeper
from fusec.remote.notices import UNREACHABLE, Notices
from fusec.trace import Recorder

_PASSED_OVER: Final = "it counts as a miss"
_GOES_ON: Final = "this process goes on without it and compiles what is missing"


class Source(StrEnum):
    """Where an artifact came from."""

    LOCAL_STORE = "local store"
    REMOTE_STORE = "remote store"
    FARM = "farm"
    COMPILED_HERE = "compiled here"


@dataclass(frozen=True, slots=True)
class FrontFound:
    """A front record whose every part is at hand, by role."""

    record: FrontRecord
    parts: Mapping[str, Found]


class Tiers:
    """Looks keys up in the local store and at the cache service. Never raises for their faults.

    ``local`` is the store as others may use it: its faults are counters, too.
    """

    def __init__(
        self, local: Store, remote: CacheClient | None, notices: Notices, recorder: Recorder
    ) -> None:
        self.local = BestEffortStore(local, notices)
        self._keeper = Keeper(self.local)
        self._remote = remote
        self._notices = notices
        self._recorder = recorder

    def find(self, keys: Sequence[str]) -> dict[str, tuple[Found, Source]]:
        """What exists among the keys, and where it was."""
        with self._recorder.span("lookup"):
            here = self._keeper.waiting(keys)
            rest = [key for key in keys if key not in here]
            here.update(lookup_many(self.local, rest, on_miss=self._on_miss))
        found = {key: (item, Source.LOCAL_STORE) for key, item in here.items()}
        for key, item in self.fetch([key for key in keys if key not in here]).items():
            found[key] = (item, Source.REMOTE_STORE)
        return found

    def fetch(self, keys: Sequence[str], *, again: bool = False) -> dict[str, Found]:
        """What the cache service has among the keys; it is kept locally.

        again: what is absent was published just now, so ask once more: a read that began before
        may have answered for this one too.
        """
        absent: list[str] = []

        def on_miss(key: str, reason: Miss) -> None:
            if reason is Miss.ABSENT:
                absent.append(key)
            self._on_miss(key, reason)

        if self._remote is None or not keys:
            return {}
        try:
            with self._recorder.span("fetch"):
                fetched = self._remote.lookup_many(keys, on_miss=on_miss)
        except CacheError as error:
            cause = UNREACHABLE if isinstance(error, NotReachable) else type(error).__name__
            self._notices.fault(_counter(error), cause, error, _GOES_ON)
            return {}
        for key, item in fetched.items():
            self._keeper.keep(key, item)
        return {**fetched, **self.fetch(absent)} if again else fetched

    def front(self, key: str) -> FrontFound | None:
        """The record under a front key with all its parts; None when anything is missing."""
        entry = self.find([key]).get(key)
        if entry is None:
            return None
        try:
            record = FrontRecord.decode(entry[0].manifest.meta)
        except WireError as error:
            self._notices.fault("corrupt", "front-record", error, _PASSED_OVER)
            return None
        if record.key != key:
            error_text = f"another key's front record stands under {key}"
            self._notices.fault("corrupt", "front-record", error_text, _PASSED_OVER)
            return None
        keys = record.part_keys()
        parts = self.find(list(dict.fromkeys(keys.values())))
        if any(part not in parts for part in keys.values()):
            return None
        return FrontFound(record, {role: parts[part][0] for role, part in keys.items()})

    def keep_front(self, record: FrontRecord) -> None:
        """Write a front record to the local store. Raises WireError over the limits."""
        manifest = Manifest(kind="front", blobs=(), meta=record.encode())
        self._keeper.keep(record.key, Found(manifest, {}))

    def drop(self, key: str) -> None:
        """Remove an artifact that is of no use from the local store."""
        self._keeper.drop(key)

    def flush(self) -> None:
        """Wait until the local store has all that was found afar."""
        self._keeper.flush()

    def _on_miss(self, key: str, reason: Miss) -> None:
        if reason is Miss.CORRUPT:
            self._notices.fault("corrupt", "corrupt", f"the stored {key} is damaged", _PASSED_OVER)
        elif reason is Miss.NEWER_VERSION:
            text = f"the stored {key} was written by a newer fusec"
            self._notices.fault("newer_version", "newer-version", text, _PASSED_OVER)


def _counter(error: CacheError) -> str:
    if isinstance(error, Corrupt):
        return "corrupt"
    if isinstance(error, NewerVersion):
        return "newer_version"
    return "remote_errors"
