"""How long a job still takes, from what the stages of others have taken here.

Plain data that is told the time. What has not been measured yet, or has taken longer than it does
on average, is unknown: no number is better than a wrong one.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from farm.job import Job
from fusec.remote.protocol import JobState

WEIGHT: Final = 0.1  # of a new sample in a mean: the last ten or so count


class Estimates:
    """Means by stage and kind of device, moving with what is measured."""

    def __init__(self) -> None:
        self._stages: defaultdict[tuple[str, JobState], _Moving] = defaultdict(_Moving)
        self._kernels: defaultdict[str, _Moving] = defaultdict(_Moving)
        self._work = _Moving()

    def learn(self, job: Job, now: float) -> None:
        """A job is about to leave its state, or to be done."""
        if job.state is JobState.QUEUED:
            return
        device, seconds = job.request.target.device, now - job.since
        self._stages[device, job.state].add(seconds)
        if job.state is JobState.COMPILING and job.kernels_total > job.kernels_early:
            self._kernels[device].add(seconds / (job.kernels_total - job.kernels_early))
        if job.state is JobState.PUBLISHING:
            self._work.add(now - job.started_at)

    def slot_s(self, slots: int) -> float | None:
        """Mean seconds until one of `slots` jobs in work ends."""
        return None if self._work.value is None else self._work.value / max(1, slots)

    def left_s(self, job: Job, before: int, slots: int, now: float) -> float | None:
        """Seconds until a job is done, None when unknown. `before`: jobs that run before it;
        `slots`: jobs that run at once."""
        if job.state.final:
            return 0.0
        ahead = _STAGES[_STAGES.index(job.state) + 1 :]
        parts = [self._stages[job.request.target.device, state].value for state in ahead]
        parts.append(self._here(job, before, slots, now))
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None

    def _here(self, job: Job, before: int, slots: int, now: float) -> float | None:
        """Seconds left in the state that the job is in."""
        device = job.request.target.device
        if job.state is JobState.QUEUED:
            slot = self.slot_s(slots)
            return None if slot is None else slot * (before + 1)
        if job.state is JobState.COMPILING and job.kernels_total:
            missing = job.kernels_total - job.kernels_done
            built = job.kernels_done - job.kernels_early
            each = (now - job.since) / built if built > 0 else self._kernels[device].value
            return None if each is None else each * missing
        mean = self._stages[device, job.state].value
        left = None if mean is None else mean - (now - job.since)
        return left if left is not None and left >= 0.0 else None


_STAGES: Final = (
    JobState.QUEUED,
    JobState.LOWERING,
    JobState.COMPILING,
    JobState.PUBLISHING,
)


class _Moving:
    """An exponentially weighted mean; None before the first sample."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, sample: float) -> None:
        self.value = sample if self.value is None else self.value + WEIGHT * (sample - self.value)
