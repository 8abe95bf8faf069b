"""The descent of a graph's kernels (`mode="max-autotune"`): from each race's winner on to its
neighbours, while one of them is faster. `fusec.tune.tuner` does the same in a client's process.

Here it is done a step at a time: the GPU is leased for one race a kernel, and then it is for the
farm to say whose turn it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

from cache.errors import CacheError
from farm.attempts import Attempts
from farm.pool import TaskFailed
from farm.quality_tasks import Candidate, Chosen, steps_of, steps_task
from farm.races import Races
from farm.untuned import Untuned
from farm.urgency import behind
from fusec.errors import FusecError
from fusec.tune.neighbours import STEPS

log = logging.getLogger("fusec.farm")


class Descent:
    """``best``: the winners so far, by kernel digest. A kernel whose descent another graph has done
    already is taken from its record."""

    def __init__(
        self,
        graph: Untuned,
        candidates: Iterable[Candidate],
        best: Mapping[str, Chosen],
        races: Races,
        attempts: Attempts,
    ) -> None:
        self.graph = graph
        self.best = dict(best)
        self._races = races
        self._attempts = attempts
        self._moving = {c.digest: c for c in candidates if self.best[c.digest].record}
        self._history = {digest: [c.problem] for digest, c in self._moving.items()}
        self._steps = 0

    async def step(self, device: str) -> bool:
        """One race of every kernel that is not at its end. Whether there may be another.

        A descent whose next step cannot be found ends where it is.
        """
        self._steps += 1
        await self._take_known()
        try:
            nexts = await self._nexts()
        except (TaskFailed, CacheError, FusecError) as error:
            log.warning("a descent ends early: %s", error, extra={"action": "tune"})
            return False
        racing = []
        for digest, (problem, count) in nexts.items():
            if problem:
                self._history[digest].append(problem)
                one, best = self._moving[digest], self.best[digest].binary
                step = replace(one, key=one.descended, problem=problem, count=count, standing=best)
                racing.append(step)
        raced = await self._races.race(self.graph, racing, device, keep=False)
        for digest, (problem, _) in nexts.items():
            outcome = raced.get(digest, Chosen())
            if outcome.record:
                self.best[digest] = outcome
            elif outcome.binary or not problem:
                await self._end(digest)
            else:
                del self._moving[digest]  # it could not be raced: another graph may try again
        if self._steps == STEPS:
            for digest in list(self._moving):
                await self._end(digest)
        return bool(self._moving)

    async def _take_known(self) -> None:
        keys = {c.descended: digest for digest, c in self._moving.items()}
        for key, chosen in (await self._races.known(self.graph, list(keys))).items():
            self.best[keys[key]] = chosen
            del self._moving[keys[key]]

    async def _nexts(self) -> dict[str, tuple[bytes, int]]:
        if not self._moving:
            return {}
        kernels = {
            digest: (self._history[digest], self.best[digest].record) for digest in self._moving
        }
        label = f"steps of {len(kernels)} kernels"
        task = behind(steps_task(kernels, label), self.graph.tenant)
        return steps_of(await self._attempts.run(task))

    async def _end(self, digest: str) -> None:
        candidate = self._moving.pop(digest)
        await self._races.keep(self.graph.shelf, candidate.descended, self.best[digest])
