"""Has a graph tuned that was published untuned and that no gateway holds any more, as after the
restart of the one that did: an operator's wish, from what the store has.

What is tuned stays as it is: a kernel is timed once, and clients keep an artifact that is final.
"""

from __future__ import annotations

import asyncio
import logging
from enum import StrEnum
from functools import partial
from typing import Final

from cache.errors import CacheError
from farm.attempts import Attempts
from farm.metrics import FarmMetrics
from farm.pool import TaskFailed
from farm.spaces import Space, Spaces
from farm.tuning import Tuning, Untuned, behind
from farm.verifier import Verifier
from farm.workers import Planned, Stages, plan_task
from fusec.artifact.fingerprint import Fingerprint
from fusec.artifact.quality import Quality, Tier, quality_of
from fusec.errors import FusecError
from fusec.remote.farm_status import Retuned, RetuneState
from fusec.remote.protocol import FarmJob

log = logging.getLogger("fusec.farm")

_ANEW: Final = (
    "delete its entry at the cache service (docs/farm.md): the next submit compiles and tunes it"
)


class Why(StrEnum):
    """Why a graph cannot be tuned."""

    UNKNOWN = "UnknownGraph"
    FINAL = "AlreadyFinal"
    NO_TUNING = "NoTuning"
    NO_SUBMIT = "NoSubmit"
    OTHER_RELEASE = "OtherRelease"


class CannotRetune(Exception):
    """A graph that is not tuned, and what to do about it."""

    def __init__(self, why: Why, message: str, hint: str) -> None:
        super().__init__(message)
        self.why = why
        self.hint = hint


class Retuning:
    """Hands untuned graphs of the store to `tuning`, None at a farm that tunes nothing."""

    def __init__(
        self,
        spaces: Spaces,
        attempts: Attempts,
        stages: Stages,
        verifier: Verifier,
        tuning: Tuning | None,
        metrics: FarmMetrics,
    ) -> None:
        self._spaces = spaces
        self._attempts = attempts
        self._stages = stages
        self._verifier = verifier
        self._tuning = tuning
        self._metrics = metrics
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def begin(self, tenant: str, fingerprint: str) -> Retuned:
        """Have a published, untuned graph of a tenant tuned, behind all other work.

        Returns once it is known that it can be; it is planned anew after that. Raises CannotRetune,
        UnknownNamespace, and TaskFailed without a store.
        """
        if self._tuning is None:
            raise CannotRetune(
                Why.NO_TUNING, "this farm tunes nothing", "set FUSEC_FARM_TUNE=1 at its gateways"
            )
        space, name = self._spaces.of(tenant), (tenant, fingerprint)
        request = await self._untuned(space, self._tuning, fingerprint)
        state = RetuneState.BEGUN
        if name in self._tasks or self._tuning.holds(name):
            state = RetuneState.KNOWN
        else:
            task = asyncio.create_task(self._run(space, self._tuning, tenant, request))
            self._tasks[name] = task
            task.add_done_callback(partial(self._over, name))
        if self._verifier.device_for(request.target) is None:
            state = RetuneState.WAITS
        return Retuned(fingerprint, state, request.target.isa)

    async def close(self) -> None:
        """Stop what is being planned."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _untuned(self, space: Space, tuning: Tuning, fingerprint: str) -> FarmJob:
        """The submit of a graph that can be tuned. Raises CannotRetune, TaskFailed."""
        standing = await space.shelf.standing(f"graph/{fingerprint}")
        if standing is None:
            text = f"no graph {fingerprint} stands in this namespace"
            hint = "`fusec farm status --json` has whole keys; a submit compiles and tunes a graph"
            raise CannotRetune(Why.UNKNOWN, text, hint)
        if standing.manifest.is_final:
            raise _final(quality_of(standing.manifest.meta))
        request = await tuning.stored_job(space.shelf, fingerprint)
        if request is None:
            text = "the graph was published by a farm that tunes nothing: its submit is not kept"
            raise CannotRetune(Why.NO_SUBMIT, text, _ANEW)
        entries = await asyncio.to_thread(
            self._stages.fingerprint, request.graph, request.target, request.options
        )
        if Fingerprint(entries).hex != fingerprint:
            # Its key says which compiler made it: another one's work has no place there.
            text = "the graph was compiled by another release of fusec or torch than this farm's"
            hint = "jobs of this release have it under another key, where it is tuned by itself"
            raise CannotRetune(Why.OTHER_RELEASE, text, hint)
        return request

    async def _run(self, space: Space, tuning: Tuning, tenant: str, request: FarmJob) -> None:
        try:
            planned = Planned.decode(await self._attempts.run(behind(plan_task(request), tenant)))
            binaries = await space.shelf.kernels([kernel.key for kernel in planned.kernels])
        except (TaskFailed, CacheError, FusecError) as error:
            self._failed(request, str(error))
            return
        by_digest = {k.digest: binaries[k.key] for k in planned.kernels if k.key in binaries}
        if len(by_digest) < len(planned.kernels):
            self._failed(request, f"kernels of it were collected: {_ANEW}")
            return
        tuning.add(Untuned(request, planned.plan, by_digest, space.shelf, tenant))

    def _failed(self, request: FarmJob, why: str) -> None:
        self._metrics.tuned.labels("failed").inc()
        log.warning("retune %s: %s", request.fingerprint[:12], why, extra={"action": "tune"})

    def _over(self, name: tuple[str, str], _: asyncio.Task[None]) -> None:
        del self._tasks[name]


def _final(quality: Quality) -> CannotRetune:
    if quality.tier is Tier.TUNED:
        text = f"it is tuned already: {quality.device} has timed {quality.tuned} of its kernels"
        return CannotRetune(Why.FINAL, text, "a kernel is timed once, and its record kept")
    text = "it has nothing to tune: there is one way to build each of its kernels"
    return CannotRetune(Why.FINAL, text, "")
