"""The places an artifact can be found: this user's store, then the cache service.

What comes from afar is used only where a trusted key has signed it, and is kept locally with its
seal. The local store is the user's own: what is unsigned there was made here. A fault of either
place is counted, told once and otherwise a miss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from cache.artifacts import Found, Miss, lookup_many
from cache.client import CacheClient
from cache.digest import digest
from cache.errors import CacheError, Corrupt, NewerVersion, NotReachable
from cache.manifest import Manifest
from cache.store import Store
from cache.trust import NOBODY, Trust
from fusec.errors import WireError
from fusec.remote.best_effort import BestEffortStore
from fusec.remote.jobs import FrontRecord
from fusec.remote.keeper import Keeper
from fusec.remote.notices import UNREACHABLE, Notices
from fusec.remote.revoked import RevocationFeed
from fusec.trace import Recorder

_PASSED_OVER: Final = "it counts as a miss"
_GOES_ON: Final = "this process goes on without it and compiles what is missing"
_UNTRUSTED: Final[Mapping[Miss, str]] = {
    Miss.UNSIGNED: "is not signed (FUSEC_UNSIGNED=1 would use it)",
    Miss.UNKNOWN_SIGNER: "is signed by none of the keys in FUSEC_TRUSTED_KEYS",
    Miss.BAD_SIGNATURE: "bears a signature that does not hold: somebody has tampered with it",
    Miss.REVOKED: "is revoked",
}


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

    ``local`` is the store as others may use it: its faults are counters, too. trust: whose
    artifacts of the remote are used; by default nobody's.
    """

    def __init__(
        self,
        local: Store,
        remote: CacheClient | None,
        notices: Notices,
        recorder: Recorder,
        *,
        trust: Trust = NOBODY,
    ) -> None:
        self.local = BestEffortStore(local, notices)
        self._trust = trust
        # What lies here came through the trust of its day: keys taken out since must not count.
        any_signer = trust.any_signer or not trust.keys
        self._local_trust = replace(trust, unsigned=True, any_signer=any_signer)
        self._revoked = RevocationFeed(remote, self.local)
        self._keeper = Keeper(self.local)
        self._remote = remote
        self._notices = notices
        self._recorder = recorder

    def find(self, keys: Sequence[str]) -> dict[str, tuple[Found, Source]]:
        """What exists among the keys, and where it was."""
        with self._recorder.span("lookup"):
            revoked = self._revoked.current()
            trust = replace(self._local_trust, revoked=revoked)
            here = {
                key: item
                for key, item in self._keeper.waiting(keys).items()
                if revoked.reason(key, item.seal) is None
                and revoked.reason_in(item.manifest) is None
            }
            rest = [key for key in keys if key not in here]
            here.update(lookup_many(self.local, rest, on_miss=self._on_local_miss, trust=trust))
        found = {key: (item, Source.LOCAL_STORE) for key, item in here.items()}
        absent = [key for key in keys if key not in here]
        unfinished = {key: item.version for key, item in here.items() if not item.manifest.is_final}
        for key, item in self.fetch([*absent, *self._replaced(unfinished)]).items():
            found[key] = (item, Source.REMOTE_STORE)
        return found

    def newer(self, versions: Mapping[str, str]) -> dict[str, Found]:
        """The artifacts that the service has in the place of those of these versions, by key."""
        return self.fetch(self._replaced(versions), fresh=True)

    def _replaced(self, asked: Mapping[str, str]) -> list[str]:
        """Those keys of artifacts, by version, under which the service has others by now.

        One small request for all of them; they are used as they are where there is no answer.
        """
        if self._remote is None or not asked:
            return []
        try:
            with self._recorder.span("fetch"):
                entries = self._remote.entries(list(asked))
        except CacheError as error:
            self._remote_fault(error)
            return []
        return [key for key, data in entries.items() if digest(data) != asked[key]]

    def fetch(self, keys: Sequence[str], *, fresh: bool = False) -> dict[str, Found]:
        """What the cache service has among the keys; it is kept locally.

        fresh: it was published just now, so the service must not answer from its memory.
        """
        if self._remote is None or not keys:
            return {}
        try:
            with self._recorder.span("fetch"):
                trust = replace(self._trust, revoked=self._revoked.current())
                fetched = self._remote.lookup_many(
                    keys, on_miss=self._on_miss, trust=trust, fresh=fresh
                )
        except CacheError as error:
            self._remote_fault(error)
            return {}
        for key, item in fetched.items():
            self._keeper.keep(key, item)
        return fetched

    def _remote_fault(self, error: CacheError) -> None:
        cause = UNREACHABLE if isinstance(error, NotReachable) else type(error).__name__
        self._notices.fault(_counter(error), cause, error, _GOES_ON)

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

    def _on_local_miss(self, key: str, reason: Miss) -> None:
        self._on_miss(key, reason)
        if reason in _UNTRUSTED:
            self.local.delete_entry(key)  # it would stand in the way of a good one

    def _on_miss(self, key: str, reason: Miss) -> None:
        if reason is Miss.CORRUPT:
            self._notices.fault("corrupt", "corrupt", f"the stored {key} is damaged", _PASSED_OVER)
        elif reason is Miss.NEWER_VERSION:
            text = f"the stored {key} was written by a newer fusec"
            self._notices.fault("newer_version", "newer-version", text, _PASSED_OVER)
        elif reason in _UNTRUSTED:
            text = f"the stored {key} {_UNTRUSTED[reason]}"
            self._notices.fault(reason.value, reason.value, text, _PASSED_OVER)


def _counter(error: CacheError) -> str:
    if isinstance(error, Corrupt):
        return "corrupt"
    if isinstance(error, NewerVersion):
        return "newer_version"
    return "remote_errors"
