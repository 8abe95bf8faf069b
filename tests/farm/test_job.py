"""A job's legal transitions, and what it remembers."""

import pytest

from farm.job import IllegalTransition, Job
from farm.waiters import Waiters
from fusec.remote.protocol import JobError, JobState, JobStatus
from tests.farm.tiny_stages import farm_job


def _job() -> Job:
    return Job(farm_job("t.a"), 10.0)


def test_the_whole_way() -> None:
    job = _job().to(JobState.LOWERING, 11.0).planned(11.0, 3)
    job = job.kernels(2)
    assert (job.status().kernels_done, job.status().kernels_total) == (2, 3)
    job = job.to(JobState.PUBLISHING, 11.0).done(12.0, remember_s=60.0)
    assert job.state is JobState.DONE
    assert job.request.graph == b"", "an ended job must not hold its graph in memory"


@pytest.mark.parametrize("state", [JobState.COMPILING, JobState.PUBLISHING, JobState.QUEUED])
def test_no_stage_is_skipped(state: JobState) -> None:
    with pytest.raises(IllegalTransition):
        _job().to(state, 11.0)


def test_final_is_final() -> None:
    failed = _job().failed(JobError("timeout", "late"), 11.0, remember_s=1.0)
    with pytest.raises(IllegalTransition):
        failed.to(JobState.LOWERING, 11.0)
    with pytest.raises(IllegalTransition):
        failed.done(12.0, remember_s=1.0)


def test_every_visible_change_raises_seq() -> None:
    job = _job()
    later = job.to(JobState.LOWERING, 11.0).planned(11.0, 1).kernels(1)
    assert later.seq == job.seq + 3


def test_merges_count_other_clients_only() -> None:
    job, waiters = _job(), Waiters()
    assert waiters.last_heard(job.id) is None
    for name, now in (("a", 10.0), ("a", 11.0), ("b", 13.0), ("a", 12.0), ("b", 13.0)):
        another = waiters.heard(job.id, name, now)
        if now > 10.0:
            job = job.joined(another=another)
    assert job.merged == 1
    assert waiters.last_heard(job.id) == 13.0
    assert not waiters.left(job.id, "b")
    assert waiters.last_heard(job.id) == 12.0
    assert waiters.left(job.id, "a")


def test_a_job_that_another_gateway_does_waits_and_tells_what_that_one_says() -> None:
    job = _job().to(JobState.LOWERING, 11.0).planned(11.0, 3, early=1)
    job = job.kernels(2).back(12.0)
    assert (job.state, job.status().kernels_total) == (JobState.QUEUED, 0)
    there = JobStatus(job.fingerprint, JobState.COMPILING, seq=2, kernels_done=1, kernels_total=3)
    followed = job.followed(there)
    told = followed.status(position=7)
    assert (told.state, told.kernels_done, told.position) == (JobState.COMPILING, 1, 0)
    assert told.seq == job.seq + 1, "not the other gateway's: waiters count in this one's"
    mine = followed.back(13.0).to(JobState.LOWERING, 13.0)
    assert mine.status().state is JobState.LOWERING
    assert followed.done(14.0, remember_s=1.0).status().state is JobState.DONE
    with pytest.raises(IllegalTransition):
        followed.done(14.0, remember_s=1.0).back(15.0)
