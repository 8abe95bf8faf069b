"""The order of waiting work: priorities, fair shares, ageing, positions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from farm.queue import AGEING_S, FairQueue, Share
from fusec.remote.protocol import Priority

A, B = Share("a"), Share("b")


def _drain(queue: FairQueue[str], now: float = 0.0) -> list[str]:
    names = []
    while (taken := queue.pop(now)) is not None:
        names.append(taken.item)
    return names


def _fill(
    queue: FairQueue[str], share: Share, name: str, count: int, priority: Priority
) -> list[str]:
    names = [f"{name}{number}" for number in range(count)]
    for item in names:
        assert queue.push(item, share, priority, 0.0)
    return names


def test_a_client_before_a_prewarm_before_what_nobody_asked_for() -> None:
    queue: FairQueue[str] = FairQueue()
    for name, priority in (("b", 0), ("p", 1), ("w", 2), ("w2", 2)):
        queue.push(name, A, Priority(priority), 0.0)
    assert [queue.position(name) for name in ("b", "p", "w", "w2")] == [3, 2, 0, 1]
    assert _drain(queue) == ["w", "w2", "p", "b"]


def test_an_item_waits_once_at_its_highest_priority() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("a", A, Priority.PREWARM, 0.0)
    queue.push("b", A, Priority.PREWARM, 0.0)
    assert not queue.push("b", B, Priority.WAITING, 1.0)
    assert not queue.push("b", B, Priority.BACKGROUND, 1.0)
    first = queue.pop(2.0)
    assert first is not None
    assert (first.item, first.share, first.since) == ("b", A, 0.0)
    assert _drain(queue) == ["a"]


def test_ten_thousand_of_one_tenant_before_the_first_of_another() -> None:
    queue: FairQueue[str] = FairQueue()
    _fill(queue, A, "a", 10_000, Priority.WAITING)
    for _ in range(100):
        queue.pop(0.0)
    queue.push("b", B, Priority.WAITING, 0.0)
    assert queue.position("b") <= 1
    assert "b" in [taken.item for taken in (queue.pop(0.0), queue.pop(0.0)) if taken]


def test_ranks_of_a_job_are_one_share() -> None:
    queue: FairQueue[str] = FairQueue()
    _fill(queue, Share("a", "large"), "large", 64, Priority.WAITING)
    _fill(queue, Share("a", "small"), "small", 2, Priority.WAITING)
    assert {"small0", "small1"} < set(_drain(queue)[:4])


def test_weights() -> None:
    queue: FairQueue[str] = FairQueue(weight=lambda tenant: 3.0 if tenant == "a" else 1.0)
    _fill(queue, A, "a", 40, Priority.WAITING)
    _fill(queue, B, "b", 40, Priority.WAITING)
    first = _drain(queue)[:40]
    assert sum(name.startswith("a") for name in first) == 30


def test_what_costs_more_comes_less_often() -> None:
    queue: FairQueue[str] = FairQueue()
    _fill(queue, A, "a", 40, Priority.WAITING)
    _fill(queue, B, "b", 40, Priority.WAITING)
    turns = []
    for _ in range(24):
        taken = queue.pop(0.0)
        assert taken is not None
        turns.append(taken.share.tenant)
        if taken.share is A:
            queue.charge(A, Priority.WAITING, 2.0)  # three turns in all
    assert turns.count("a") == 6


def test_idle_time_is_not_saved_up() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("b", B, Priority.WAITING, 0.0)
    queue.pop(0.0)
    _fill(queue, A, "a", 100, Priority.WAITING)
    for _ in range(50):
        queue.pop(0.0)
    _fill(queue, B, "b", 50, Priority.WAITING)
    assert sum(name.startswith("b") for name in _drain(queue)[:20]) <= 11


def test_a_burst_lets_short_work_through() -> None:
    queue: FairQueue[str] = FairQueue(burst=5.0)
    _fill(queue, A, "a", 100, Priority.WAITING)
    for _ in range(50):
        queue.pop(0.0)
    _fill(queue, B, "b", 20, Priority.WAITING)
    order = _drain(queue)
    assert all(name.startswith("b") for name in order[:5])
    assert sum(name.startswith("b") for name in order[:25]) <= 16, "it is a start, no lead"


def test_a_low_priority_does_not_starve_and_does_not_take_over() -> None:
    queue: FairQueue[str] = FairQueue()
    _fill(queue, A, "warm", 100, Priority.PREWARM)
    _fill(queue, B, "ask", 1000, Priority.WAITING)
    turns = []
    for second in range(200):
        taken = queue.pop(float(second))
        assert taken is not None
        turns.append(taken.priority)
    warmed = turns.count(Priority.PREWARM)
    assert warmed == int(199 // AGEING_S), "one turn for each time that it has waited so long"


def test_a_tenant_that_may_not_is_passed_over() -> None:
    queue: FairQueue[str] = FairQueue()
    _fill(queue, A, "a", 2, Priority.WAITING)
    _fill(queue, B, "b", 1, Priority.PREWARM)
    taken = queue.pop(0.0, lambda tenant, priority: tenant != "a")
    assert taken is not None
    assert taken.item == "b0"
    assert queue.pop(0.0, lambda tenant, priority: tenant != "a") is None
    assert len(queue) == 2


def test_backlogs() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("a", A, Priority.PREWARM, 3.0)
    queue.push("b", A, Priority.PREWARM, 4.0)
    queue.push("c", B, Priority.WAITING, 5.0)
    shown = [(b.tenant, b.priority, b.length, b.oldest) for b in queue.backlogs()]
    assert shown == [("b", Priority.WAITING, 1, 5.0), ("a", Priority.PREWARM, 2, 3.0)]


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 8), min_size=2),
    st.integers(20, 80),
)
def test_service_follows_the_weights(weights: dict[str, int], turns: int) -> None:
    """The bound of start-time fair queueing: two tenants that both wait all the time differ in
    service over weight by at most one turn of each over its weight."""
    queue: FairQueue[tuple[str, int]] = FairQueue(weight=lambda tenant: float(weights[tenant]))
    for tenant in weights:
        for number in range(turns):
            queue.push((tenant, number), Share(tenant), Priority.WAITING, 0.0)
    served = dict.fromkeys(weights, 0)
    for _ in range(turns):
        taken = queue.pop(0.0)
        assert taken is not None
        served[taken.share.tenant] += 1
        for one in weights:
            for two in weights:
                lead = Fraction(served[one], weights[one]) - Fraction(served[two], weights[two])
                bound = Fraction(1, weights[one]) + Fraction(1, weights[two])
                assert lead <= bound + Fraction(turns, 1 << 18)  # strides are rounded


class QueueMachine(RuleBasedStateMachine):
    """Against a plain set: nothing is lost, nothing comes twice, positions say the order."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[int] = FairQueue(weight=lambda t: 1 + ord(t) % 3 / 3, burst=1.5)
        self.model: dict[int, Share] = {}
        self.now = 0.0

    @rule(
        item=st.integers(0, 30),
        share=st.builds(Share, st.sampled_from("abc"), st.sampled_from(["", "x", "y"])),
        priority=st.sampled_from(Priority),
    )
    def push(self, item: int, share: Share, priority: Priority) -> None:
        assert self.queue.push(item, share, priority, self.now) == (item not in self.model)
        self.model.setdefault(item, share)

    @rule(busy=st.sets(st.sampled_from("abc")))
    def pop(self, busy: set[str]) -> None:
        taken = self.queue.pop(self.now, lambda tenant, priority: tenant not in busy)
        able = [item for item, share in self.model.items() if share.tenant not in busy]
        assert (taken is None) == (not able)
        if taken is not None:
            assert taken.item in able
            assert self.model.pop(taken.item) == taken.share

    @rule(item=st.integers(0, 30))
    def remove(self, item: int) -> None:
        assert self.queue.remove(item) == (self.model.pop(item, None) is not None)

    @rule(
        share=st.builds(Share, st.sampled_from("abc"), st.sampled_from(["", "x", "y"])),
        priority=st.sampled_from(Priority),
        turns=st.floats(-1.0, 10.0),
    )
    def charge(self, share: Share, priority: Priority, turns: float) -> None:
        self.queue.charge(share, priority, turns)

    @rule(seconds=st.floats(0.0, 40.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def drain(self) -> None:
        """The positions have told the order; at time 0 nothing has aged."""
        told = sorted(self.model, key=self.queue.position)
        assert [taken.item for taken in iter(lambda: self.queue.pop(0.0), None)] == told
        self.model.clear()

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.queue) == len(self.model)
        assert all(item in self.queue for item in self.model)
        assert sorted(map(self.queue.position, self.model)) == list(range(len(self.model)))
        for tenant in "abc":
            waits = sum(share.tenant == tenant for share in self.model.values())
            assert self.queue.length_of(tenant) == waits
        assert sum(backlog.length for backlog in self.queue.backlogs()) == len(self.model)


TestQueueMachine = QueueMachine.TestCase


@pytest.mark.parametrize("item", ["absent", None])
def test_what_does_not_wait(item: str | None) -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("a", A, Priority.WAITING, 0.0)
    assert item not in queue
    assert not queue.remove(str(item))
    assert queue.position(str(item)) == 0
