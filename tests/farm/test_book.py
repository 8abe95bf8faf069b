"""Single flight, memory of ended jobs, cancel and abandon: the book of jobs under a given clock."""

import sys

import pytest

from farm.book import Admission, JobBook
from farm.job import JobId
from farm.quota import Full, Limits, QueueFull, Quota
from farm.retry import ErrorKind
from fusec.remote.protocol import JobState, Priority
from tests.farm.tiny_stages import farm_job


def _book(queued: int = 8) -> JobBook:
    return JobBook(Limits(queued=queued, keep_s=60.0, abandon_s=30.0))


def test_one_job_however_many_submit() -> None:
    book = _book()
    first, admission = book.submit(farm_job("t.a", waiter="w0"), 0.0)
    assert admission is Admission.QUEUED
    for number in range(1, 32):
        job, admission = book.submit(farm_job("t.a", waiter=f"w{number}"), 0.0)
        assert admission is Admission.MERGED
    assert job.merged == 31
    assert book.queued == 1
    taken = book.next(1.0)
    assert taken is not None
    assert taken.id == first.id
    assert book.next(1.0) is None


def test_a_running_job_is_joined_too() -> None:
    book = _book()
    book.submit(farm_job("t.a"), 0.0)
    job = book.next(0.0)
    assert job is not None
    book.put(job.to(JobState.LOWERING, 11.0))
    assert book.submit(farm_job("t.a", waiter="other"), 1.0)[1] is Admission.MERGED
    assert book.queued == 0
    assert book.running == 1


def test_a_job_taken_out_to_run_is_not_queued_again() -> None:
    book = _book()
    book.submit(farm_job("t.a"), 0.0)
    assert book.next(0.0) is not None, "taken, though its state is still queued"
    assert book.submit(farm_job("t.a", waiter="other"), 0.0)[1] is Admission.MERGED
    assert book.next(0.0) is None


def test_full() -> None:
    book = _book(queued=1)
    book.submit(farm_job("t.a"), 0.0)
    with pytest.raises(QueueFull):
        book.submit(farm_job("t.b"), 0.0)
    assert book.submit(farm_job("t.a", waiter="v"), 0.0)[1] is Admission.MERGED


def test_poison_is_remembered_for_a_while() -> None:
    book = _book()
    job, _ = book.submit(farm_job("t.bad"), 0.0)
    book.next(0.0)
    book.fail(job, ErrorKind.COMPILE_ERROR, "no", 1.0)
    again, admission = book.submit(farm_job("t.bad"), 500.0)
    assert admission is Admission.KNOWN
    assert again.error is not None
    assert again.error.kind == "compile_error"
    assert book.submit(farm_job("t.bad"), 700.0)[1] is Admission.QUEUED


def test_passing_trouble_is_not_remembered() -> None:
    book = _book()
    job, _ = book.submit(farm_job("t.a"), 0.0)
    book.next(0.0)
    book.fail(job, ErrorKind.STORE_UNREACHABLE, "no store", 1.0)
    assert book.get(job.id) is not None, "those who poll must learn of it"
    assert book.submit(farm_job("t.a"), 1.0)[1] is Admission.QUEUED


def test_the_last_waiter_takes_the_job_along() -> None:
    book = _book()
    job, _ = book.submit(farm_job("t.a", waiter="a"), 0.0)
    book.submit(farm_job("t.a", waiter="b"), 0.0)
    assert not book.leave(job.id, "a", 1.0)
    assert not book.leave(job.id, "stranger", 1.0)
    assert book.leave(job.id, "b", 1.0)
    ended = book.get(job.id)
    assert ended is not None
    assert ended.state is JobState.FAILED
    assert book.next(2.0) is None


def test_a_job_nobody_asks_for_is_not_run() -> None:
    book = _book()
    job, _ = book.submit(farm_job("t.a"), 0.0)
    warm, _ = book.submit(farm_job("t.prewarm", priority=Priority.PREWARM), 0.0)
    asked, _ = book.submit(farm_job("t.b"), 0.0)
    book.heard(asked.id, "w", 90.0)
    taken = [book.next(100.0), book.next(100.0)]
    assert {t.id for t in taken if t} == {asked.id, warm.id}
    gone = book.get(job.id)
    assert gone is not None
    assert gone.error is not None
    assert gone.error.kind == "abandoned"


def test_ended_jobs_are_bounded() -> None:
    book = _book()
    for number in range(200):
        job, _ = book.submit(farm_job(f"t.n{number}"), 0.0)
        book.next(0.0)
        book.done(
            book.put(
                job.to(JobState.LOWERING, 11.0)
                .to(JobState.COMPILING, 11.0)
                .to(JobState.PUBLISHING, 11.0)
            ),
            0.0,
        )
    book.forget(1.0)
    assert (
        sum(book.get(JobId("", farm_job(f"t.n{n}").fingerprint)) is not None for n in range(200))
        <= 64
    )
    book.forget(61.0)
    assert book.get(JobId("", farm_job("t.n199").fingerprint)) is None


def test_what_is_remembered_costs_a_submit_nothing() -> None:
    def calls(remembered: int) -> int:
        book = _book(queued=remembered)
        for number in range(remembered):
            job, _ = book.submit(farm_job(f"t.n{number}"), 0.0)
            book.fail(job, ErrorKind.COMPILE_ERROR, "no", 0.0)
        request, made = farm_job("t.new"), 0

        def count(_frame: object, event: str, _what: object) -> None:
            nonlocal made
            made += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            book.submit(request, 1.0)
        finally:
            sys.setprofile(None)
        assert len(book.ended()) == remembered
        return made

    assert calls(400) == calls(4)


def test_each_is_remembered_for_its_own_time() -> None:
    book = _book()
    for name, kind in (("t.a", ErrorKind.COMPILE_ERROR), ("t.b", ErrorKind.WORKER_LOST)):
        job, _ = book.submit(farm_job(name), 0.0)
        book.fail(job, kind, "no", 0.0)
    book.forget(16.0)
    assert [job.fingerprint for job in book.ended()] == [farm_job("t.a").fingerprint]
    again, admission = book.submit(farm_job("t.b"), 16.0)
    assert admission is Admission.QUEUED
    book.fail(again, ErrorKind.WORKER_LOST, "no", 20.0)
    book.forget(34.0)
    assert len(book.ended()) == 2, "remembered from its last end on"
    book.forget(36.0)
    assert len(book.ended()) == 1
    book.forget(601.0)
    assert book.ended() == []


def test_a_graph_is_joined_by_its_name() -> None:
    book = _book(queued=1)
    job, _ = book.submit(farm_job("t.a", priority=Priority.PREWARM), 0.0)
    assert book.join(JobId("", farm_job("t.b").fingerprint), "v", Priority.WAITING, 0.0) is None
    joined = book.join(job.id, "v", Priority.WAITING, 0.0)
    assert joined is not None
    assert joined[1] is Admission.MERGED
    assert joined[0].request.priority is Priority.WAITING, "who waits lifts a prewarm"
    assert (joined[0].merged, book.waiters(job.id)) == (1, 2)
    assert not book.leave(job.id, "w", 0.0)
    assert book.leave(job.id, "v", 0.0), "one who has joined counts as one who has sent it"
    assert book.join(job.id, "v", Priority.WAITING, 0.0) is None, "what was cancelled starts anew"


def _run(book: JobBook, tenant: str, *names: str, now: float = 0.0) -> None:
    for name in names:
        book.submit(farm_job(name), now, tenant)


def test_one_graph_of_two_tenants_is_two_jobs() -> None:
    book = _book()
    _run(book, "one", "t.a")
    _run(book, "two", "t.a")
    assert [book.next(0.0), book.next(0.0)] != [None, None]
    assert {job.tenant for job in book.in_work()} == {"one", "two"}
    assert book.get(JobId("", farm_job("t.a").fingerprint)) is None


def test_a_tenant_that_fills_its_quota_leaves_room_for_others() -> None:
    book = JobBook(Limits(queued=4, quota=Quota(queued=2)))
    _run(book, "greedy", "t.a", "t.b")
    with pytest.raises(QueueFull, match="'greedy'") as caught:
        _run(book, "greedy", "t.c")
    assert caught.value.limit is Full.TENANT
    _run(book, "other", "t.a", "t.b")
    with pytest.raises(QueueFull) as caught:
        _run(book, "third", "t.a")
    assert caught.value.limit is Full.FARM


def test_graphs_are_held_up_to_a_limit_of_bytes() -> None:
    size = len(farm_job("t.a").graph)
    book = JobBook(Limits(held_bytes=4 * size))
    _run(book, "one", "t.a", "t.b")
    with pytest.raises(QueueFull) as caught:
        _run(book, "one", "t.c")
    assert caught.value.limit is Full.TENANT_BYTES
    job = book.next(0.0)
    assert job is not None
    book.fail(job, ErrorKind.INTERNAL, "over", 0.0)
    _run(book, "one", "t.c")
    assert book.queued == 2


def test_running_quotas_and_a_place_for_whoever_has_none() -> None:
    limits = Limits(running=2, tenants={"small": Quota(running=1)})
    book = JobBook(limits)
    _run(book, "small", "t.a", "t.b")
    _run(book, "big", "t.a", "t.b", "t.c")
    taken = [book.next(0.0), book.next(0.0), book.next(0.0)]
    assert [job.tenant if job else None for job in taken] == ["small", "big", None]
    _run(book, "new", "t.a", "t.b")
    newcomer = book.next(0.0)
    assert newcomer is not None
    assert newcomer.tenant == "new", "it does not wait for the jobs of others"
    assert book.next(0.0) is None, "but one job is all it gets beyond the limit"
    book.fail(newcomer, ErrorKind.INTERNAL, "over", 0.0)
    again = book.next(0.0)
    assert again is not None
    assert again.tenant == "new"


def test_a_client_that_joins_a_prewarm_hurries_it() -> None:
    book = JobBook(Limits(running=1))
    book.submit(farm_job("t.warm1", priority=Priority.PREWARM), 0.0)
    warm, _ = book.submit(farm_job("t.warm2", priority=Priority.PREWARM), 0.0)
    asked, _ = book.submit(farm_job("t.asked"), 0.0)
    assert book.position(warm.id) == 2
    book.submit(farm_job("t.warm2", waiter="client"), 0.0)
    assert book.position(warm.id) == 1
    first = book.next(0.0)
    assert first is not None
    assert first.id == asked.id


def test_a_job_put_aside_frees_its_slot_and_comes_back() -> None:
    book = JobBook(Limits(running=1, quota=Quota(running=1)))
    first, _ = book.submit(farm_job("t.a"), 0.0)
    second, _ = book.submit(farm_job("t.b"), 0.0)
    taken = book.next(1.0)
    assert taken is not None
    assert taken.id == first.id
    assert book.next(1.0) is None
    aside = book.aside(taken.to(JobState.LOWERING, 1.0), 2.0)
    assert (aside.state, book.running, book.queued) == (JobState.QUEUED, 0, 1)
    _, admission = book.submit(farm_job("t.a", waiter="other"), 2.0)
    assert admission is Admission.MERGED, "it is in flight, though neither queued nor in work"
    assert book.queued == 1
    following = book.next(2.0)
    assert following is not None
    assert following.id == second.id
    current = book.get(first.id)
    assert current is not None
    resumed = book.resume(current, 3.0)
    assert book.running == 2
    book.fail(resumed, ErrorKind.INTERNAL, "over", 4.0)
    assert book.running == 1
