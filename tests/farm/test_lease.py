"""Leases: two never believe in one at once, epochs grow, and a late writer is refused."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from prometheus_client import CollectorRegistry

from cache.digest import digest
from cache.errors import Fenced
from cache.lease import Lease, check_claim, lease_of
from cache.memory import MemoryStore
from farm import leases
from farm.attempts import Attempts
from farm.lease import HOLD, Held, Member, Sighting
from farm.memory_pool import MemoryPool
from farm.metrics import FarmMetrics

KEY = f"graph/{5:064x}"
NAME = lease_of(KEY)
TERM_S = 6.0


def member(number: int, term_s: float = TERM_S) -> Member:
    return Member(f"{number:016x}", f"http://10.0.0.{number}:8701", "0" * 64, term_s)


def test_a_lease_that_is_nobodys_is_taken_at_once() -> None:
    held = Sighting(None, 0.0).take(member(1), 0.0, 1000.0)
    assert held.lease.epoch == 1_000_000
    released = Sighting(held.release, 5.0)
    assert released.may_take(member(2), 5.0)
    assert released.take(member(2), 5.0, 0.0).lease.epoch == 1_000_001, "whatever the time is"


def test_a_lease_that_is_renewed_stays() -> None:
    held = Sighting(None, 0.0).take(member(1), 0.0, 1.0)
    seen = Sighting(held.lease, 0.0)
    for second in range(1, 60):
        held = held.trying(float(second)).renewed()
        seen = seen.then(held.lease, float(second))
        assert held.believes(second + 1.0)
        assert not seen.may_take(member(2), float(second) + 1.0)


def test_a_lease_that_nobody_renews_is_taken_after_its_term() -> None:
    lease = Sighting(None, 0.0).take(member(1), 0.0, 1.0).lease
    seen = Sighting(None, 0.0).then(lease, 100.0)
    other = member(2, term_s=1.0)
    assert not seen.may_take(other, 100.0 + TERM_S - 0.1), "the holder's term counts"
    assert seen.may_take(other, 100.0 + TERM_S)


def test_a_renewal_counts_from_its_first_try() -> None:
    held = Sighting(None, 0.0).take(member(1), 0.0, 1.0)
    held = held.trying(1.0).trying(5.0).renewed()
    assert not held.believes(1.0 + TERM_S * HOLD), "the first may have been written, unheard"
    assert held.trying(6.0).renewed().believes(7.0)


def test_what_a_member_has_left_over_is_its_own() -> None:
    lease = Sighting(None, 0.0).take(member(1), 0.0, 1.0).lease
    seen = Sighting(lease, 0.0)
    assert seen.may_take(member(1), 0.0)
    assert seen.take(member(1), 0.0, 1.0).lease.epoch == lease.epoch + 1


def test_of_many_leases_the_last_ones_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that who asks for graph after graph that it makes up does not fill the memory."""
    monkeypatch.setattr(leases, "MOST_SEEN", 2)
    store, now = MemoryStore(), [0.0]
    metrics = FarmMetrics(CollectorRegistry())
    pool = MemoryPool(lambda task: (yield from ()), 1)

    async def story() -> None:
        here = leases.Leases(store, member(1), Attempts(pool, metrics, 10.0), metrics,
                             clock=lambda: now[0])  # fmt: skip
        other = Sighting(None, 0.0).take(member(2), 0.0, 1.0).lease
        names = [f"{number:064x}" for number in range(3)]
        for name in names:
            assert store.swap_record(f"lease/{name}", None, other.encode())
            assert await here.owner(name) == other
        now[0] = TERM_S
        assert await here.owner(names[2]) is None, "it has been seen unchanged for a term"
        assert await here.owner(names[0]) == other, "it is looked at as if for the first time"
        await here.close()

    asyncio.run(story())
    pool.close()


@dataclass
class Node:
    """A gateway with a clock of its own, and at most one write to the store on its way."""

    member: Member
    rate: float
    offset: float
    sighting: Sighting | None = None
    held: Held | None = None
    sent: tuple[str | None, Held | Lease, Held | None] | None = None
    claims: list[Held] = field(default_factory=list)

    def clock(self, now: float) -> float:
        return self.offset + now * self.rate


NODES = st.integers(0, 2)
SECONDS = st.sampled_from([0.0, 0.0, 0.5, 1.5, 3.0, 6.0, 7.5])
OFTEN, SELDOM = st.sampled_from([True, True, True, False]), st.sampled_from([False, False, True])


class Gateways(RuleBasedStateMachine):
    """Three gateways, one lease. Clocks run up to a fifth too fast or too slow, and show any time;
    writes take as long as they like, and their answers get lost."""

    @initialize(
        rates=st.lists(st.sampled_from([0.82, 0.9, 1.0, 1.1, 1.2]), min_size=3, max_size=3),
        offsets=st.lists(st.integers(-(10**6), 10**6), min_size=3, max_size=3),
    )
    def start(self, rates: list[float], offsets: list[int]) -> None:
        self.now = 0.0
        self.store = MemoryStore()
        self.epochs: list[int] = []
        self.nodes = [
            Node(member(n), rate, float(offset))
            for n, (rate, offset) in enumerate(zip(rates, offsets, strict=True))
        ]

    def standing(self) -> Lease | None:
        data = self.store.get_record(NAME)
        return None if data is None else Lease.decode(data)

    @rule(seconds=SECONDS, n=NODES, late=SELDOM, heard=OFTEN)
    def contend(self, seconds: float, n: int, late: bool, heard: bool) -> None:
        """A node looks, and takes what it may; the write may be on its way for a while."""
        self.now += seconds
        node, lease = self.nodes[n], self.standing()
        now = node.clock(self.now)
        node.sighting = seen = (node.sighting or Sighting(lease, now)).then(lease, now)
        if node.sent is None and node.held is None and seen.may_take(node.member, now):
            expected = None if seen.lease is None else digest(seen.lease.encode())
            node.sent = (expected, seen.take(node.member, now, 1000.0 + self.now), None)
            if not late:
                self.write(n, heard)

    @rule(seconds=SECONDS, n=NODES, late=SELDOM, heard=OFTEN)
    def renew(self, seconds: float, n: int, late: bool, heard: bool) -> None:
        self.now += seconds
        node = self.nodes[n]
        if node.held is not None and node.sent is None:
            node.held = node.held.trying(node.clock(self.now))
            node.sent = (digest(node.held.lease.encode()), node.held.renewal, node.held)
            if not late:
                self.write(n, heard)

    @rule(n=NODES, late=SELDOM)
    def release(self, n: int, late: bool) -> None:
        node = self.nodes[n]
        if node.held is not None and node.sent is None and node.held.attempt is None:
            node.sent = (digest(node.held.lease.encode()), node.held.release, None)
            node.held = None
            if not late:
                self.write(n, True)

    @rule(seconds=SECONDS, n=NODES, heard=OFTEN)
    def a_write_arrives(self, seconds: float, n: int, heard: bool) -> None:
        self.now += seconds
        self.write(n, heard)

    def write(self, n: int, heard: bool) -> None:
        node = self.nodes[n]
        if node.sent is None:
            return
        expected, what, renewing = node.sent
        lease = what.lease if isinstance(what, Held) else what
        done = self.store.swap_record(NAME, expected, lease.encode())
        node.sent = None
        if done and (not self.epochs or self.epochs[-1] != lease.epoch):
            self.epochs.append(lease.epoch)
        if heard and isinstance(what, Held):
            node.held = what if done else None
            if done:
                node.claims.append(what)
        elif heard and renewing is not None:
            node.held = renewing.renewed() if done else None

    @rule()
    def the_collector_comes_after_a_long_time(self) -> None:
        """The record goes; nobody believes by then, and no write is on its way."""
        if all(node.held is None and node.sent is None for node in self.nodes):
            self.now += 4000.0
            self.store = MemoryStore()

    @invariant()
    def at_most_one_believes(self) -> None:
        if not hasattr(self, "nodes"):
            return
        believers = [
            node
            for node in self.nodes
            if node.held is not None and node.held.believes(node.clock(self.now))
        ]
        assert len(believers) <= 1, believers
        for node in believers:
            assert node.held is not None
            check_claim(self.store, KEY, node.held.lease.claim)

    @invariant()
    def epochs_grow(self) -> None:
        epochs = getattr(self, "epochs", [])
        assert epochs == sorted(set(epochs))

    @invariant()
    def late_writers_are_refused(self) -> None:
        if not hasattr(self, "nodes"):
            return
        standing = self.standing()
        for node in self.nodes:
            for claim in node.claims:
                if standing is None or standing.claim != claim.lease.claim:
                    with pytest.raises(Fenced):
                        check_claim(self.store, KEY, claim.lease.claim)


TestGateways = Gateways.TestCase
TestGateways.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
