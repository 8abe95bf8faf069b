"""Single flight, memory of ended jobs, cancel and abandon: the book of jobs under a given clock."""

import pytest

from farm.book import Admission, JobBook, Limits
from farm.queue import QueueFull
from farm.retry import ErrorKind
from fusec.remote.protocol import JobState
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
    assert taken.fingerprint == first.fingerprint
    assert book.next(1.0) is None


def test_a_running_job_is_joined_too() -> None:
    book = _book()
    book.submit(farm_job("t.a"), 0.0)
    job = book.next(0.0)
    assert job is not None
    book.put(job.to(JobState.LOWERING))
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
    assert book.get(job.fingerprint) is not None, "those who poll must learn of it"
    assert book.submit(farm_job("t.a"), 1.0)[1] is Admission.QUEUED


def test_the_last_waiter_takes_the_job_along() -> None:
    book = _book()
    job, _ = book.submit(farm_job("t.a", waiter="a"), 0.0)
    book.submit(farm_job("t.a", waiter="b"), 0.0)
    assert not book.leave(job.fingerprint, "a", 1.0)
    assert not book.leave(job.fingerprint, "stranger", 1.0)
    assert book.leave(job.fingerprint, "b", 1.0)
    ended = book.get(job.fingerprint)
    assert ended is not None
    assert ended.state is JobState.FAILED
    assert book.next(2.0) is None


def test_a_job_nobody_asks_for_is_not_run() -> None:
    book = _book()
    job, _ = book.submit(farm_job("t.a"), 0.0)
    warm, _ = book.submit(farm_job("t.prewarm", priority=1), 0.0)
    asked, _ = book.submit(farm_job("t.b"), 0.0)
    book.heard(asked.fingerprint, "w", 90.0)
    taken = [book.next(100.0), book.next(100.0)]
    assert [t.fingerprint for t in taken if t] == [asked.fingerprint, warm.fingerprint]
    gone = book.get(job.fingerprint)
    assert gone is not None
    assert gone.error is not None
    assert gone.error.kind == "abandoned"


def test_ended_jobs_are_bounded() -> None:
    book = _book()
    for number in range(200):
        job, _ = book.submit(farm_job(f"t.n{number}"), 0.0)
        book.next(0.0)
        book.done(
            book.put(job.to(JobState.LOWERING).to(JobState.COMPILING).to(JobState.PUBLISHING)), 0.0
        )
    book.forget(1.0)
    assert sum(book.get(farm_job(f"t.n{n}").fingerprint) is not None for n in range(200)) <= 64
    book.forget(61.0)
    assert book.get(farm_job("t.n199").fingerprint) is None
