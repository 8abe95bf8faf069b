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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol

from cache import doomed
from cache import key as keys
from cache.artifacts import open_entry
from cache.doomed import Doomed
from cache.errors import CacheError, NotReachable
from cache.inventory import Inventory, Item
from cache.store import Store
from cache.trust import OWN_STORE

log = logging.getLogger("fusec.cache")

BATCH: Final = 1000
MIN_GRACE_S: Final = 3600.0
RECORD_S: Final = 3600.0
"""A lease goes when nobody has changed it for so long: one in use is renewed all the time, and
clocks are nowhere near so far apart."""
SWEEP_S: Final = 60.0
FENCE_S: Final = 600.0
"""From the announcement to the removal: longer than the longest upload, and than a service takes
to see the list."""


class Collectable(Store, Inventory, Protocol):
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


def plan(store: Collectable, policy: Policy, now: float) -> Plan:
    """What the policy lets go at `now`. Reads every entry. Raises what the store raises."""
    # Blobs before entries: one that an entry written in between names is not on the list at all.
    blobs = {item.name: item for item in store.list_blobs()}
    named: dict[str, frozenset[str]] = {}
    entries: list[Item] = []
    for item in store.list_entries():
        if keys.is_internal(item.name):
            continue
        names = _names(store, item.name)
        if names is not None:
            named[item.name] = names
            entries.append(item)
    stay, go = _split(entries, named, blobs, policy, now)
    wanted = frozenset(name for item in stay for name in named[item.name])
    orphans = tuple(
        item
        for item in blobs.values()
        if item.name not in wanted and item.at < now - policy.grace_s
    )
    gone = {item.name for item in orphans}
    kept = [item for item in blobs.values() if item.name not in gone]
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
    made = plan(store, policy, planned_at)
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
        removed = _announce_and_remove(store, policy, made, fence_s, clock, sleep)
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
    standing = doomed.read(store)
    if standing is not None and standing.is_over(now):
        store.delete_entry(doomed.KEY)
    if not store.put_entry(doomed.KEY, listed.encode()):
        raise NotReachable("another collector is at work", hint="it is done within the hour")
    try:
        sleep(fence_s)
        # Entries that were written before their writer knew the list.
        named: set[str] = set()
        for item in store.list_entries():
            if not keys.is_internal(item.name):
                named |= _names(store, item.name) or frozenset()
        removed: set[str] = set()
        for batch in _batches(sorted(listed.digests - named)):
            if clock() > listed.until:
                break  # the rest is the next collection's
            removed |= store.remove_blobs(batch, listed.spared_after)
        return removed
    finally:
        store.delete_entry(doomed.KEY)


def _names(store: Store, key: str) -> frozenset[str] | None:
    """The blobs that an entry names; None where it has gone in the meantime.

    One that does not decode names nothing that this release could read; it is a miss for all.
    """
    data = store.get_entry(key)
    if data is None:
        return None
    try:
        return frozenset(open_entry(key, data, OWN_STORE)[0].digests())
    except CacheError as error:
        log.warning("entry %s is of no use: %s", key[:24], error, extra={"action": "collect"})
        return frozenset()


def _split(
    entries: Iterable[Item],
    named: dict[str, frozenset[str]],
    blobs: dict[str, Item],
    policy: Policy,
    now: float,
) -> tuple[list[Item], list[Item]]:
    """Which entries stay and which go, the one used last first among those that stay."""
    stay: list[Item] = []
    go: list[Item] = []
    for item in sorted(entries, key=lambda item: item.at, reverse=True):
        old = policy.max_age_s is not None and item.at < now - policy.max_age_s
        (go if old else stay).append(item)
    sizes = [_Sizes(item, named, blobs) for item in stay]
    full = _over(sizes, blobs, policy, 1.0)
    if full is None:
        return stay, go
    at = _over(sizes, blobs, policy, policy.low)
    cut = full if at is None else at
    return stay[:cut], go + stay[cut:]


class _Sizes:
    """An entry with what it names."""

    def __init__(
        self, item: Item, named: dict[str, frozenset[str]], blobs: dict[str, Item]
    ) -> None:
        self.bytes = item.bytes
        self.blobs = [blobs[name] for name in named[item.name] if name in blobs]


def _over(sizes: list[_Sizes], blobs: dict[str, Item], policy: Policy, part: float) -> int | None:
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


def _batches(names: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), BATCH):
        yield names[start : start + BATCH]
