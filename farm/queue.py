"""The order of waiting work: by priority, then fair between tenants and their training jobs.

Within a priority it is start-time fair queueing on two levels (P. Goyal, H. Vin and H. Cheng,
"Start-Time Fair Queueing", SIGCOMM 1996): tenants share by weight, the training jobs of a tenant
share equally, and one training job's work is first come first served. Whoever comes to a level
starts at its virtual time, so nobody saves up service while idle, and nobody who has used much
before is punished for it later. Tags are whole numbers, as strides are (C. Waldspurger and
W. Weihl, "Stride Scheduling", 1995): order and position are exact.

A `burst` puts newcomers that far before the virtual time, as the warp of K. Duda and D. Cheriton
does ("Borrowed-Virtual-Time scheduling", SOSP 1999): a short piece of work among long ones is
hardly delayed, and the long run is as fair as without.

A lower priority waits while a higher one has work, but not for ever: one that has got nothing for
`ageing_s` seconds gets the next turn.

Plain data that is told the time, so that a simulation runs the very same code.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from fusec.remote.protocol import Priority

K = TypeVar("K", bound=Hashable)

TURN: Final = 1 << 20  # the charge for one item at weight 1, in units of virtual time
MAX_REMEMBERED: Final = 1024  # names of a level without work whose use is still known
AGEING_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Share:
    """Whose work something is: a tenant, which is a namespace of the cache service, and within it
    one training job; "" is the default namespace, and the jobs that gave no name."""

    tenant: str = ""
    job: str = ""


NOBODY: Final = Share()


@dataclass(frozen=True, slots=True)
class Taken(Generic[K]):
    """An item whose turn has come; `since` is when it was pushed."""

    item: K
    share: Share
    priority: Priority
    since: float


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits of one tenant at one priority. ``oldest``: when its oldest item was pushed."""

    tenant: str
    priority: Priority
    length: int
    oldest: float


Ready = Callable[[str, Priority], bool]
"""Whether a tenant may have something at a priority now."""


class FairQueue(Generic[K]):
    """Items in the order in which they get their turns; an item waits at most once.

    weight: a tenant's share beside others. burst: turns that a tenant which comes has before it is
    one among the others.
    """

    def __init__(
        self,
        *,
        weight: Callable[[str], float] = lambda tenant: 1.0,
        burst: float = 0.0,
        ageing_s: float = AGEING_S,
    ) -> None:
        self._weight = weight
        self._ageing_s = ageing_s
        self._bands = {priority: _Band[K](weight, burst) for priority in reversed(Priority)}
        self._priorities: dict[K, Priority] = {}

    def __len__(self) -> int:
        return len(self._priorities)

    def __contains__(self, item: object) -> bool:
        return item in self._priorities

    def push(self, item: K, share: Share, priority: Priority, now: float) -> bool:
        """Append an item. One that waits already goes, in its old share, to the higher of both
        priorities, and the answer is False."""
        known = self._priorities.get(item)
        if known is not None:
            if priority > known:
                moved = self._bands[known].remove(item)
                self._priorities[item] = priority
                self._bands[priority].push(item, moved.share, moved.since, now)
            return False
        self._priorities[item] = priority
        self._bands[priority].push(item, share, now, now)
        return True

    def pop(self, now: float, ready: Ready = lambda tenant, priority: True) -> Taken[K] | None:
        """Take the next item of a tenant that is `ready`; None when there is none."""
        for priority, band in self._by_turn(now):
            tenant = band.tenants.first(lambda name, at=priority: ready(name, at))  # type: ignore[misc]
            if tenant is None:
                continue
            item, waiting = band.take(tenant, now)
            del self._priorities[item]
            return Taken(item, waiting.share, priority, waiting.since)
        return None

    def remove(self, item: K) -> bool:
        """Take an item out of turn; False if it does not wait."""
        priority = self._priorities.pop(item, None)
        if priority is None:
            return False
        self._bands[priority].remove(item)
        return True

    def position(self, item: K) -> int:
        """How many items have their turn before this one, if nothing is added, nobody is held up
        and nothing ages; 0 if it does not wait."""
        at = self._priorities.get(item)
        if at is None:
            return 0
        above = sum(len(band.waiting) for priority, band in self._bands.items() if priority > at)
        return above + self._bands[at].position(item)

    def charge(self, share: Share, priority: Priority, turns: float) -> None:
        """Correct what a share has used, when an item has cost more (or less, below 0) than one
        turn: later items of it come later by that."""
        band, amount = self._bands[priority], round(turns * TURN)
        band.tenants.charge(share.tenant, round(amount / self._weight(share.tenant)))
        flows = band.flows.get(share.tenant)
        if flows is not None:
            flows.level.charge(share.job, amount)

    def length_of(self, tenant: str) -> int:
        """How many items of a tenant wait."""
        bands = (band.flows.get(tenant) for band in self._bands.values())
        return sum(flows.length for flows in bands if flows is not None)

    def backlogs(self) -> list[Backlog]:
        """What waits, by priority from the highest, and tenant. Looks at every item."""
        made: list[Backlog] = []
        for priority, band in self._bands.items():
            oldest: dict[str, float] = {}
            for waiting in band.waiting.values():
                tenant = waiting.share.tenant
                oldest[tenant] = min(waiting.since, oldest.get(tenant, waiting.since))
            made += [
                Backlog(tenant, priority, band.flows[tenant].length, since)
                for tenant, since in oldest.items()
            ]
        return made

    def _by_turn(self, now: float) -> list[tuple[Priority, _Band[K]]]:
        """The priorities in the order in which they are asked: what starves, then from the top."""
        filled = [(p, band) for p, band in self._bands.items() if band.waiting]
        starving = [pair for pair in filled[1:] if now - pair[1].hungry_since >= self._ageing_s]
        return [*reversed(starving), *filled] if starving else filled


@dataclass(slots=True)
class _Waiting:
    share: Share
    since: float
    ticket: int


class _Level:
    """Names that compete by virtual time: one level of start-time fair queueing.

    ``clock`` is the largest start tag served. A name with work has the start tag of its next turn.
    What a name without work has used counts when it comes back, while the clock has not passed it.
    """

    def __init__(self, burst: float = 0.0) -> None:
        self.clock = 0
        self.tags: dict[str, int] = {}
        self._burst = round(burst * TURN)
        self._left: OrderedDict[str, int] = OrderedDict()

    def come(self, name: str) -> None:
        """A name has work."""
        if name not in self.tags:
            start = self.clock - self._burst
            self.tags[name] = max(start, self._left.pop(name, start))

    def go(self, name: str) -> None:
        """A name has no work any more."""
        self._left[name] = self.tags.pop(name)
        if len(self._left) > MAX_REMEMBERED:
            self._left.popitem(last=False)

    def first(self, ready: Callable[[str], bool]) -> str | None:
        """Whose turn it is; among equals that of who came first."""
        able = (name for name in self.tags if ready(name))
        return min(able, key=self.tags.__getitem__, default=None)

    def serve(self, name: str, cost: int) -> None:
        """A name has a turn."""
        self.clock = max(self.clock, self.tags[name])
        self.tags[name] += cost

    def charge(self, name: str, amount: int) -> None:
        """A name has used so much more."""
        for known in (self.tags, self._left):
            if name in known:
                known[name] += amount

    def before(self, name: str, turn: int, cost: Callable[[str], int]) -> Iterator[tuple[str, int]]:
        """The other names, and how many turns each has before turn number `turn` of `name`."""
        tag = self.tags[name] + turn * cost(name)
        earlier = True
        for other, start in self.tags.items():
            if other == name:
                earlier = False
                continue
            # Those that came before go first at an equal tag, those that came after do not.
            turns = -(-(tag - start + earlier) // cost(other))
            yield other, max(0, turns)


class _Flow(Generic[K]):
    """The waiting items of one training job, first come first served, by ticket."""

    def __init__(self) -> None:
        self.tickets: list[int] = []
        self.items: dict[int, K] = {}


class _Flows(Generic[K]):
    """A tenant's training jobs that have work."""

    def __init__(self) -> None:
        self.level = _Level()
        self.by_job: dict[str, _Flow[K]] = {}
        self.length = 0


class _Band(Generic[K]):
    """All that waits at one priority."""

    def __init__(self, weight: Callable[[str], float], burst: float) -> None:
        self.tenants = _Level(burst)
        self.flows: dict[str, _Flows[K]] = {}
        self.waiting: dict[K, _Waiting] = {}
        self.hungry_since = 0.0
        self._weight = weight
        self._tickets = 0

    def push(self, item: K, share: Share, since: float, now: float) -> None:
        if not self.waiting:
            self.hungry_since = now
        self._tickets += 1
        self.waiting[item] = _Waiting(share, since, self._tickets)
        self.tenants.come(share.tenant)
        flows = self.flows.setdefault(share.tenant, _Flows())
        flows.length += 1
        flows.level.come(share.job)
        flow = flows.by_job.setdefault(share.job, _Flow())
        flow.tickets.append(self._tickets)
        flow.items[self._tickets] = item

    def take(self, tenant: str, now: float) -> tuple[K, _Waiting]:
        """The next item of a tenant; its turn is charged."""
        flows = self.flows[tenant]
        job = flows.level.first(lambda name: True)
        assert job is not None, "a tenant with work has a training job with work"
        flow = flows.by_job[job]
        item = flow.items[flow.tickets[0]]
        self.tenants.serve(tenant, self._cost(tenant))
        flows.level.serve(job, TURN)
        self.hungry_since = now
        return item, self.remove(item)

    def remove(self, item: K) -> _Waiting:
        waiting = self.waiting.pop(item)
        tenant, job = waiting.share.tenant, waiting.share.job
        flows = self.flows[tenant]
        flows.length -= 1
        flow = flows.by_job[job]
        del flow.tickets[bisect_left(flow.tickets, waiting.ticket)]
        del flow.items[waiting.ticket]
        if not flow.tickets:
            del flows.by_job[job]
            flows.level.go(job)
        if not flows.length:
            del self.flows[tenant]
            self.tenants.go(tenant)
        return waiting

    def position(self, item: K) -> int:
        waiting = self.waiting[item]
        tenant, job = waiting.share.tenant, waiting.share.job
        flows = self.flows[tenant]
        turn = bisect_left(flows.by_job[job].tickets, waiting.ticket)
        rivals = flows.level.before(job, turn, lambda name: TURN)
        turn += sum(min(n, len(flows.by_job[name].tickets)) for name, n in rivals)
        others = self.tenants.before(tenant, turn, self._cost)
        return turn + sum(min(n, self.flows[name].length) for name, n in others)

    def _cost(self, tenant: str) -> int:
        return max(1, round(TURN / self._weight(tenant)))
