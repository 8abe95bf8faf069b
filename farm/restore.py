"""Brings back what tuning begins with, from what the store has: the submit that was kept beside an
untuned graph is planned anew, behind all other work."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from farm.attempts import Attempts
from farm.shelf import Shelf
from farm.untuned import Untuned, kept_job
from farm.urgency import behind
from farm.workers import Planned, Stages, plan_task
from fusec.artifact.fingerprint import Fingerprint
from fusec.remote.protocol import FarmJob

_ANEW: Final = (
    "delete its entry at the cache service (docs/farm.md): the next submit compiles and tunes it"
)


class Why(StrEnum):
    """Why a graph cannot be tuned."""

    UNKNOWN = "UnknownGraph"
    FINAL = "AlreadyFinal"
    NO_TUNING = "NoTuning"
    NO_SUBMIT = "NoSubmit"
    NO_KERNELS = "NoKernels"
    OTHER_RELEASE = "OtherRelease"


class CannotTune(Exception):
    """A graph that is not tuned, and what to do about it."""

    def __init__(self, why: Why, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.why = why
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Restoring:
    """Raises CannotTune, TaskFailed, CacheError, FusecError."""

    attempts: Attempts
    stages: Stages

    async def request(self, shelf: Shelf, graph: str) -> FarmJob:
        """The submit of a graph that was published untuned."""
        request = await kept_job(shelf, graph)
        if request is None:
            text = "the graph was published by a farm that tunes nothing: its submit is not kept"
            raise CannotTune(Why.NO_SUBMIT, text, _ANEW)
        entries = await asyncio.to_thread(
            self.stages.fingerprint, request.graph, request.target, request.options
        )
        if Fingerprint(entries).hex != graph:
            # Its key says which compiler made it: another one's work has no place there.
            text = "the graph was compiled by another release of fusec or torch than this farm's"
            hint = "jobs of this release have it under another key, where it is tuned by itself"
            raise CannotTune(Why.OTHER_RELEASE, text, hint)
        return request

    async def untuned(self, shelf: Shelf, tenant: str, graph: str) -> Untuned:
        """A graph with its plan and the binaries of its kernels."""
        request = await self.request(shelf, graph)
        planned = Planned.decode(await self.attempts.run(behind(plan_task(request), tenant)))
        stored = await shelf.kernels([*planned.keys.values()])
        binaries = {name: stored[key] for name, key in planned.keys.items() if key in stored}
        if len(binaries) < len(planned.keys):
            raise CannotTune(Why.NO_KERNELS, "kernels of it were collected", _ANEW)
        return Untuned(request, planned.plan, binaries, shelf, tenant)
