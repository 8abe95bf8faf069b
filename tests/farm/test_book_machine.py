"""The book of jobs in any order of events: single flight, quotas, no job lost, fair turns."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from farm.book import Admission, JobBook
from farm.job import Job, JobId
from farm.quota import Full, Limits, QueueFull, Quota
from farm.retry import ErrorKind
from fusec.remote.protocol import FarmJob, JobState, Priority
from tests.farm.tiny_stages import farm_job

TENANTS = ("", "a", "b")
GRAPHS: dict[str, FarmJob] = {name: farm_job(name) for name in (f"t.g{n}" for n in range(8))}
SIZE = len(GRAPHS["t.g0"].graph)
STAGES = (JobState.LOWERING, JobState.COMPILING, JobState.PUBLISHING)

tenants, graphs = st.sampled_from(TENANTS), st.sampled_from(sorted(GRAPHS))
waiters, seconds = st.sampled_from("uvw"), st.floats(0.0, 20.0)


def _request(graph: str, waiter: str, priority: Priority, run: str) -> FarmJob:
    made = GRAPHS[graph]
    return FarmJob(
        made.fingerprint, made.entries, made.graph, made.target, made.options, waiter, priority, run
    )


def _submit(
    book: JobBook, request: FarmJob, now: float, tenant: str
) -> tuple[Job, Admission] | Full:
    """What becomes of a submit; the limit that it has met, if any."""
    try:
        return book.submit(request, now, tenant)
    except QueueFull as error:
        return error.limit


class BookMachine(RuleBasedStateMachine):
    """Against plain sets of jobs that wait, are in work, and are another gateway's."""

    @initialize(
        queued=st.integers(3, 8),
        running=st.integers(1, 4),
        own=st.integers(1, 3),
        held=st.booleans(),
    )
    def open(self, queued: int, running: int, own: int, held: bool) -> None:
        self.limits = Limits(
            queued=queued,
            running=running,
            held_bytes=SIZE * (6 if held else 1000),
            quota=Quota(queued=own, running=own),
            tenants={"b": Quota(queued=2, running=1, weight=3.0)},
            abandon_s=30.0,
        )
        self.book = JobBook(self.limits)
        self.now = 0.0
        self.waiting: set[JobId] = set()
        self.working: set[JobId] = set()
        self.aside: set[JobId] = set()
        self.accepted = 0
        self.over = 0

    def _job(self, name: JobId) -> Job:
        job = self.book.get(name)
        assert job is not None
        return job

    def _ends(self, name: JobId) -> None:
        for part in (self.waiting, self.working, self.aside):
            part.discard(name)
        self.over += 1

    @rule(
        submits=st.lists(
            st.tuples(
                tenants, graphs, waiters, st.sampled_from(Priority), st.sampled_from(["", "x"])
            ),
            min_size=1,
            max_size=8,
        )
    )
    def submit(self, submits: list[tuple[str, str, str, Priority, str]]) -> None:
        for each in submits:
            self._submit(*each)

    def _submit(self, tenant: str, graph: str, waiter: str, priority: Priority, run: str) -> None:
        name = JobId(tenant, GRAPHS[graph].fingerprint)
        flying = name in self.waiting | self.working | self.aside
        quota = self.limits.of(tenant)
        own = sum(job.tenant == tenant for job in self.waiting)
        unended = [*self.waiting, *self.working, *self.aside]
        held = sum(job.tenant == tenant for job in unended)
        request = _request(graph, waiter, priority, run)
        outcome = _submit(self.book, request, self.now, tenant)
        if isinstance(outcome, Full):
            assert not flying, "what is in flight is joined whatever is full"
            assert {
                Full.FARM: len(self.waiting) >= self.limits.queued,
                Full.TENANT: own >= quota.queued,
                Full.FARM_BYTES: (len(unended) + 1) * SIZE > self.limits.held_bytes,
                Full.TENANT_BYTES: (held + 1) * SIZE > self.limits.held_bytes // 2,
            }[outcome]
            return
        job, admission = outcome
        assert (admission is Admission.MERGED) == flying
        if admission is Admission.QUEUED:
            self.waiting.add(name)
            self.accepted += 1
        if admission is Admission.KNOWN:
            assert job.state.final
        else:
            assert self.book.waiters(name) >= 1

    @rule(times=st.integers(1, 5))
    def begin(self, times: int) -> None:
        for _ in range(times):
            self._begin()

    def _begin(self) -> None:
        works = Counter(name.tenant for name in self.working)
        job = self.book.next(self.now)
        gone = [name for name in self.waiting if self._job(name).state.final]
        for name in gone:
            error = self._job(name).error
            assert error is not None
            assert error.kind == ErrorKind.ABANDONED
            self._ends(name)
        if job is None:
            for name in self.waiting:
                barred = works[name.tenant] >= self.limits.of(name.tenant).running
                assert barred or len(self.working) >= self.limits.running, "it might have begun"
                asked = self._job(name).request.priority is Priority.WAITING
                assert barred or works[name.tenant] or not asked, "nobody has to wait for others"
            return
        assert job.id in self.waiting
        self.waiting.remove(job.id)
        self.working.add(job.id)

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def advance(self, data: st.DataObject) -> None:
        job = self._job(data.draw(st.sampled_from(sorted(self.working))))
        if job.state is JobState.PUBLISHING:
            self.book.done(job, self.now)
            self._ends(job.id)
            return
        at = 0 if job.state is JobState.QUEUED else STAGES.index(job.state) + 1
        self.book.put(job.to(STAGES[at], self.now))

    @precondition(lambda self: self.working)
    @rule(data=st.data(), kind=st.sampled_from(ErrorKind))
    def fail(self, data: st.DataObject, kind: ErrorKind) -> None:
        job = self._job(data.draw(st.sampled_from(sorted(self.working))))
        self.book.fail(job, kind, "why", self.now)
        self._ends(job.id)

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def belongs_elsewhere(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.working)))
        self.book.aside(self._job(name), self.now)
        self.working.remove(name)
        self.aside.add(name)

    @precondition(lambda self: self.aside)
    @rule(data=st.data(), drained=st.booleans())
    def comes_back(self, data: st.DataObject, drained: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.aside)))
        self.aside.remove(name)
        if drained:
            self.book.again(self._job(name), self.now)
            self.waiting.add(name)
        else:
            self.book.resume(self._job(name), self.now)
            self.working.add(name)

    @rule(tenant=tenants, graph=graphs, waiter=waiters)
    def leave(self, tenant: str, graph: str, waiter: str) -> None:
        name = JobId(tenant, GRAPHS[graph].fingerprint)
        if self.book.leave(name, waiter, self.now):
            assert self.book.waiters(name) == 0
            self._ends(name)

    @rule(tenant=tenants, graph=graphs, waiter=waiters, after=seconds)
    def poll(self, tenant: str, graph: str, waiter: str, after: float) -> None:
        self.now += after
        self.book.heard(JobId(tenant, GRAPHS[graph].fingerprint), waiter, self.now)

    @rule(after=st.floats(0.0, 700.0))
    def time_goes_by(self, after: float) -> None:
        self.now += after
        self.book.forget(self.now)

    @invariant()
    def no_job_is_lost_or_done_twice(self) -> None:
        assert self.book.queued == len(self.waiting)
        assert {job.id for job in self.book.in_work()} == self.working
        for name in self.waiting | self.working | self.aside:
            assert not self._job(name).state.final
            assert self.book.waits(name) == (name in self.waiting)
        flying = len(self.waiting) + len(self.working) + len(self.aside)
        assert self.accepted == flying + self.over

    @invariant()
    def positions_are_an_order(self) -> None:
        positions = sorted(map(self.book.position, self.waiting))
        assert positions == list(range(len(self.waiting)))


class LimitedMachine(BookMachine):
    """The same where no job comes back from another gateway, which nobody can hold back: quotas and
    limits are never exceeded."""

    @precondition(lambda self: False)
    @rule()
    def comes_back(self) -> None:
        """Not here."""

    @invariant()
    def limits_hold(self) -> None:
        assert len(self.waiting) <= self.limits.queued
        waits = Counter(name.tenant for name in self.waiting)
        works = Counter(name.tenant for name in self.working)
        for tenant in TENANTS:
            quota = self.limits.of(tenant)
            assert waits[tenant] <= quota.queued
            assert works[tenant] <= quota.running
        assert len(self.working) <= self.limits.running + len(TENANTS) - 1
        held = len(self.waiting) + len(self.working) + len(self.aside)
        assert held * SIZE <= self.limits.held_bytes


TestBookMachine = BookMachine.TestCase
TestLimitedMachine = LimitedMachine.TestCase
TestBookMachine.settings = TestLimitedMachine.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None
)
