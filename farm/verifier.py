"""Asks a worker that has the target's device whether an artifact computes what eager does."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cache.artifacts import Found
from cache.errors import CacheError
from farm.attempts import Attempts
from farm.devices import CPU, serves
from farm.metrics import FarmMetrics
from farm.pool import TaskFailed
from farm.quality_tasks import verification_of, verify_task
from farm.queue import Share
from farm.retry import ErrorKind
from farm.urgency import Urgency
from fusec.artifact.quality import Outcome, Verification, verified
from fusec.errors import FusecError
from fusec.options import Target


@dataclass(frozen=True, slots=True)
class Verifier:
    """seconds: of one verification; 0 leaves all of them out."""

    attempts: Attempts
    metrics: FarmMetrics
    seconds: float

    def device_for(self, target: Target) -> str | None:
        """The class of worker that can run a target: of GPUs, that with the most; None for none."""
        if target.device == "cpu":
            return CPU
        pool = self.attempts.pool
        classes = [needs for needs in pool.gpu_classes() if serves(needs, target)]
        return max(classes, key=lambda needs: (pool.workers_of(needs), needs), default=None)

    async def verified(
        self, graph: bytes, target: Target, found: Found, share: Share, urgency: Urgency
    ) -> Found:
        """The artifact with the record of its verification. Raises TaskFailed, of the kind
        VERIFICATION for an artifact that is wrong."""
        record = await self._record(graph, target, found, share, urgency)
        self.metrics.verifications.labels(record.outcome.value).inc()
        if record.outcome is Outcome.FAILED:
            text = f"the artifact does not compute what eager does: {record.why}"
            raise TaskFailed(ErrorKind.VERIFICATION, text)
        return replace(found, manifest=verified(found.manifest, record))

    async def _record(
        self, graph: bytes, target: Target, found: Found, share: Share, urgency: Urgency
    ) -> Verification:
        if self.seconds <= 0:
            return Verification(Outcome.SKIPPED, why="this farm verifies nothing")
        needs = self.device_for(target)
        if needs is None:
            return Verification(Outcome.SKIPPED, why=f"no worker has a GPU of {target.isa}")
        task = verify_task(graph, target, found, self.seconds, needs, "verify an artifact")
        try:
            result = await self.attempts.run(replace(task, share=share), urgency)
            record, laps = verification_of(result)
        except TaskFailed as error:
            # It says nothing of the artifact: the worker or its node was lost, or too slow.
            return Verification(Outcome.INCONCLUSIVE, why=error.message)
        except (CacheError, FusecError) as error:
            return Verification(Outcome.INCONCLUSIVE, why=str(error))
        self.attempts.tracing.laps(laps)
        for lap in laps:
            self.metrics.stage_seconds.labels(lap.stage, target.device).observe(lap.seconds)
        return record if needs == CPU else replace(record, device=needs)
