"""What is told of the seconds that a job still takes: measured, or nothing."""

from __future__ import annotations

import pytest

from farm.estimate import Estimates
from farm.job import Job
from fusec.remote.protocol import JobState
from tests.farm.tiny_stages import farm_job


def _job(since: float = 0.0) -> Job:
    return Job(farm_job("t.a"), since, since=since)


def _learn_one(estimates: Estimates) -> None:
    """One job: 2 s of lowering, 8 s for 4 of its 6 kernels, 1 s of publishing."""
    job = _job().to(JobState.LOWERING, 10.0)
    estimates.learn(job, 12.0)
    job = job.planned(12.0, 6, early=2).kernels(6)
    estimates.learn(job, 20.0)
    estimates.learn(job.to(JobState.PUBLISHING, 20.0), 21.0)


def test_nothing_is_told_before_anything_is_measured() -> None:
    estimates = Estimates()
    job = _job()
    assert estimates.left_s(job, 0, 4, 1.0) is None
    assert estimates.slot_s(4) is None
    compiling = job.to(JobState.LOWERING, 0.0).planned(1.0, 4)
    assert estimates.left_s(compiling.kernels(2), 0, 4, 3.0) is None, "publishing is unknown"


def test_every_stage_counts_those_after_it() -> None:
    estimates = Estimates()
    _learn_one(estimates)
    job = _job(100.0)
    assert estimates.slot_s(2) == pytest.approx(5.5)
    assert estimates.left_s(job, 1, 2, 100.0) == pytest.approx(2 * 5.5 + 2 + 8 + 1)
    job = job.to(JobState.LOWERING, 100.0)
    assert estimates.left_s(job, 0, 2, 101.5) == pytest.approx(0.5 + 8 + 1)
    job = job.planned(102.0, 10, early=5)
    assert estimates.left_s(job, 0, 2, 102.0) == pytest.approx(5 * 2.0 + 1), "the mean of a kernel"
    job = job.kernels(7)
    assert estimates.left_s(job, 0, 2, 103.0) == pytest.approx(3 * 0.5 + 1), "its own pace"
    job = job.to(JobState.PUBLISHING, 104.0)
    assert estimates.left_s(job, 0, 2, 104.5) == pytest.approx(0.5)
    assert estimates.left_s(job.done(105.0, remember_s=1.0), 0, 2, 106.0) == 0.0


def test_what_takes_longer_than_it_does_on_average_is_unknown() -> None:
    estimates = Estimates()
    _learn_one(estimates)
    job = _job(100.0).to(JobState.LOWERING, 100.0)
    assert estimates.left_s(job, 0, 2, 102.5) is None
