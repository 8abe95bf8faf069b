"""The collector: removes entries by age, use and bytes, and blobs that no entry names.

An entry goes first, its blobs in a later step, and only where no entry that is left names them: a
reader that holds the manifest has the time between to read them. A blob that no entry names may
belong to an upload that is under way, so it stays for `grace_s` seconds after it was written or
promised to a writer. Mark and sweep, as in any collector; what is written meanwhile is kept safe by
the store itself (`Inventory.removes_atomically`) or by the announcement of `cache.doomed`. Leases
that nobody has changed for long go too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar, runtime_checkable

from cache import doomed
from cache import key as keys
from cache.artifacts import open_entry
from cache.digest import digest
from cache.doomed import Doomed
from cache.errors import CacheError, NewerVersion, NoSwap, NotReachable
from cache.inventory import Inventory, Item
from cache.store import SwapStore
from cache.trust import OWN_STORE

log = logging.getLogger("fusec.cache")

T = TypeVar("T")

BATCH: Final = 1000
READERS: Final = 16
"""Entries that are read at the same time: in S3 each takes its answer's time."""
MIN_GRACE_S: Final = 3600.0
RECORD_S: Final = 3600.0
"""A lease goes when nobody has changed it for so long: one in use is renewed all the time, and
clocks are nowhere near so far apart."""
SWEEP_S: Final = 60.0
FENCE_S: Final = 600.0
"""From the announcement to the removal: longer than the longest upload, and than a service takes
to see the list."""


@runtime_checkable
class Collectable(SwapStore, Inventory, Protocol):
    """A store with an inventory."""


@dataclass(frozen=True)
class Policy:
    """What may stay. None is no bound.

    `max_age_s`: since an entry was written or used. `max_bytes`, `max_files`: above them the
    entries that were used longest ago go, down to `low` of the bound. `grace_s`: how long a blob
    stays without an entry.
    """

    max_age_s: float | None = None
    max_bytes: int | None = None
    max_files: int | None = None
    low: float = 0.8
    grace_s: float = 24 * 3600.0

    @property
    def needs_use(self) -> bool:
        """Whether it asks when an entry was used."""
        return self.max_age_s is not None or self.max_bytes is not None


def shares(stores: Sequence[Inventory], max_bytes: int) -> list[Policy]:
    """Bounds by which stores keep to `max_bytes` together: in proportion to what each holds."""
    held = [
        sum(item.bytes for item in (*store.list_entries(), *store.list_blobs())) for store in stores
    ]
    total = max(1, sum(held))
    return [Policy(max_bytes=max_bytes * size // total) for size in held]


@dataclass(frozen=True)
class Plan:
    """What a collection removes, and what it counted."""

    entries: tuple[Item, ...]
    blobs: tuple[Item, ...]
    kept_entries: int
    kept_blobs: int
    kept_bytes: int
    records: tuple[Item, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes at rest that it frees."""
        return sum(item.bytes for item in (*self.entries, *self.blobs, *self.records))

    def lines(self) -> Iterator[str]:
        """The plan for a person, one removal a line, then the sums."""
        sorts = (("entry", self.entries), ("blob", self.blobs), ("record", self.records))
        for kind, items in sorts:
            for item in sorted(items, key=lambda item: item.at):
                at = time.strftime("%Y-%m-%d %H:%M", time.gmtime(item.at))
                yield f"{kind:5} {item.name} {item.bytes} bytes, last used {at} UTC"
        gone = f"{len(self.entries)} entries and {len(self.blobs)} blobs go"
        if self.records:
            gone += f" with {len(self.records)} idle records"
        yield (
            f"{gone}, {self.bytes} bytes; "
            f"{self.kept_entries} entries and {self.kept_blobs} blobs stay, {self.kept_bytes} bytes"
        )


@dataclass(frozen=True)
class _Seen:
    """What lay in a store: blobs by name, entries of artifacts, and the blobs that each names.

    unread: there are entries of a newer release, and only its collector knows what they name.
    """

    blobs: dict[str, Item]
    entries: tuple[Item, ...]
    named: dict[str, frozenset[str]]
    unread: bool


def plan(store: Collectable, policy: Policy, now: float) -> Plan:
    """What the policy lets go at `now`. Reads every entry. Raises what the store raises."""
    return _plan(store, _look(store), policy, now)


def _look(store: Collectable) -> _Seen:
    # Blobs before entries: one that an entry written in between names is not on the list at all.
    blobs = {item.name: item for item in store.list_blobs()}
    entries: list[Item] = []
    named: dict[str, frozenset[str]] = {}
    unread = False
    for item, names in _named(store, store.list_entries()):
        entries.append(item)
        named[item.name] = names or frozenset()
        unread = unread or names is None
    return _Seen(blobs, tuple(entries), named, unread)


def _plan(store: Collectable, seen: _Seen, policy: Policy, now: float) -> Plan:
    stay, go = _split(seen, policy, now)
    wanted = frozenset(name for item in stay for name in seen.named[item.name])
    orphans = tuple(
        item
        for item in seen.blobs.values()
        if item.name not in wanted and item.at < now - policy.grace_s and not seen.unread
    )
    gone = {item.name for item in orphans}
    kept = [item for item in seen.blobs.values() if item.name not in gone]
    return Plan(
        tuple(go),
        orphans,
        len(stay),
        len(kept),
        sum(item.bytes for item in (*stay, *kept)),
        tuple(item for item in store.list_records() if _is_idle(item, now - RECORD_S)),
    )


def collect(
    store: Collectable,
    policy: Policy,
    *,
    fence_s: float = FENCE_S,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Plan:
    """Remove what the policy lets go; gives what was removed. May run beside traffic.

    Where blobs are announced first it takes `fence_s` seconds and more. Raises NotReachable while
    another collector is at work, and what the store raises.
    """
    planned_at = clock()
    seen = _look(store)
    made = _plan(store, seen, policy, planned_at)
    for item in made.entries:
        store.delete_entry(item.name)
    idle = clock() - RECORD_S
    records = tuple(item for item in made.records if store.remove_record(item.name, idle))
    removed: set[str] = set()
    if made.blobs and store.removes_atomically:
        # What an entry written since the plan names was promised to its writer less than the grace
        # before that, however long the plan took, and is too young to go.
        before = planned_at - policy.grace_s
        for batch in _batches([item.name for item in made.blobs]):
            removed |= store.remove_blobs(batch, before)
    elif made.blobs:
        since = planned_at - doomed.SKEW_S
        removed = _announce_and_remove(store, policy, made, seen, since, fence_s, clock, sleep)
    blobs = tuple(item for item in made.blobs if item.name in removed)
    done = replace(made, blobs=blobs, records=records)
    log.info("collected: %s", list(done.lines())[-1], extra={"action": "collect"})
    return done


def _is_idle(record: Item, before: float) -> bool:
    return record.at < before and keys.parse_record(record.name)[0] == keys.LEASE


def _announce_and_remove(
    store: Collectable,
    policy: Policy,
    made: Plan,
    seen: _Seen,
    since: float,
    fence_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> set[str]:
    now = clock()
    oldest = sorted(made.blobs, key=lambda item: item.at)[: doomed.MAX_DOOMED]
    listed = Doomed(
        made_at=now,
        sweep_at=now + fence_s,
        until=now + fence_s + SWEEP_S,
        # Far from both the ages on the list and those of blobs written again: no clock matters.
        spared_after=now - policy.grace_s / 2,
        digests=frozenset(item.name for item in oldest),
    )
    _announce(store, listed, now)
    try:
        sleep(fence_s)
        named = _named_now(store, seen, since)
        if named is None:
            return set()
        removed: set[str] = set()
        for batch in _batches(sorted(listed.digests - named)):
            if clock() > listed.until:
                break  # the rest is the next collection's
            removed |= store.remove_blobs(batch, listed.spared_after)
        return removed
    finally:
        if store.get_entry(doomed.KEY) == listed.encode():  # else another has taken over since
            store.delete_entry(doomed.KEY)


def _announce(store: Collectable, listed: Doomed, now: float) -> None:
    """Put a list where none counts. Raises NotReachable where one does, and what the store raises.

    Of many collectors that find a dead one's list, one takes its place.
    """
    data = listed.encode()
    standing = store.get_entry(doomed.KEY)
    if standing is None or not Doomed.decode(standing).is_over(now):
        taken = store.put_entry(doomed.KEY, data)
    else:
        try:
            taken = store.swap_entry(doomed.KEY, digest(standing), data)
        except NoSwap:
            store.delete_entry(doomed.KEY)
            taken = store.put_entry(doomed.KEY, data)
    if not taken:
        raise NotReachable("another collector is at work", hint="it is done within the hour")


def _named_now(store: Collectable, seen: _Seen, since: float) -> set[str] | None:
    """The blobs that entries name by now; None where an entry is a newer release's.

    Some were written before their writer knew the list. The others were read for the plan, and to
    read them all again would take longer than a list of doomed blobs counts.
    """
    known = frozenset(seen.entries)
    named: set[str] = set()
    changed: list[Item] = []
    for item in store.list_entries():
        if item in known and item.at < since:
            named |= seen.named[item.name]
        else:
            changed.append(item)
    for _, names in _named(store, changed):
        if names is None:
            return None
        named |= names
    return named


def _named(
    store: Collectable, items: Iterable[Item]
) -> Iterator[tuple[Item, frozenset[str] | None]]:
    """Those of the entries that are an artifact's, each with the blobs that it names; None for one
    of a newer release. One that does not decode names nothing: it is a miss for all."""
    with ThreadPoolExecutor(READERS, thread_name_prefix="fusec-cache-gc-read") as pool:
        for batch in _batches([item for item in items if not keys.is_internal(item.name)]):
            read = pool.map(store.peek_entry, [item.name for item in batch])
            for item, data in zip(batch, read, strict=True):
                if data is not None:  # else it has gone in the meantime
                    yield item, _names(item.name, data)


def _names(key: str, data: bytes) -> frozenset[str] | None:
    try:
        return frozenset(open_entry(key, data, OWN_STORE)[0].digests())
    except NewerVersion as error:
        text = "no blobs are removed, since entry %s is a newer release's: %s"
        log.warning(text, key[:24], error, extra={"action": "collect"})
        return None
    except CacheError as error:
        log.warning("entry %s is of no use: %s", key[:24], error, extra={"action": "collect"})
        return frozenset()


def _split(seen: _Seen, policy: Policy, now: float) -> tuple[list[Item], list[Item]]:
    """Which entries stay and which go, the one used last first among those that stay."""
    stay: list[Item] = []
    go: list[Item] = []
    for item in sorted(seen.entries, key=lambda item: item.at, reverse=True):
        old = policy.max_age_s is not None and item.at < now - policy.max_age_s
        (go if old else stay).append(item)
    sizes = [_Sizes(item, seen) for item in stay]
    full = _over(sizes, policy, 1.0)
    if full is None:
        return stay, go
    at = _over(sizes, policy, policy.low)
    cut = full if at is None else at
    return stay[:cut], go + stay[cut:]


class _Sizes:
    """An entry with what it names."""

    def __init__(self, item: Item, seen: _Seen) -> None:
        self.bytes = item.bytes
        self.blobs = [seen.blobs[name] for name in seen.named[item.name] if name in seen.blobs]


def _over(sizes: list[_Sizes], policy: Policy, part: float) -> int | None:
    """How many of the entries, from the one used last, fit `part` of the bounds; None if all do."""
    seen: set[str] = set()
    total = files = 0
    for count, entry in enumerate(sizes):
        total += entry.bytes
        files += 1
        for blob in entry.blobs:
            if blob.name not in seen:
                seen.add(blob.name)
                total += blob.bytes
                files += 1
        if policy.max_bytes is not None and total > policy.max_bytes * part:
            return count
        if policy.max_files is not None and files > policy.max_files * part:
            return count
    return None


def _batches(items: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(items), BATCH):
        yield items[start : start + BATCH]
