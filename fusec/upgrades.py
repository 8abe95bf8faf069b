"""Better artifacts for graphs that run already (policy `async`): the farm's in the place of one
that was compiled here, and the tuned one in the place of the untuned.

One thread of a process asks, as long as there is something that may become better: one small
request for all of its graphs, seldom and ever more seldom, and not for ever.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from cache.artifacts import Found
from fusec.capture.aot import Executable
from fusec.errors import FusecError
from fusec.faults import contained
from fusec.swap import Function, Swap
from fusec.trace import Recorder

log = logging.getLogger("fusec")

FIRST_S: Final = 5.0
"""Until the first question after a graph has come."""
LONGEST_S: Final = 300.0
"""Between two questions: the pause doubles up to this."""
GIVE_UP_S: Final = 6 * 3600.0
"""For so long a graph is asked about; what becomes better later is found by the next start."""

Newer = Callable[[Mapping[str, str]], Mapping[str, Found]]
"""Those artifacts, of keys with the versions that run, that others have taken the place of. Never
raises for a fault of the remote."""
Load = Callable[[Found], Executable]
"""An artifact to a callable. Raises FusecError."""
Build = Callable[[Mapping[str, Executable]], Function]
"""The callable of a Dynamo graph from those of its parts, by role. Raises FusecError."""


@dataclass(frozen=True, slots=True)
class Part:
    """One graph of a Dynamo graph as it runs. version: as of `Found`; final: nothing better
    follows."""

    key: str
    version: str
    final: bool
    run: Executable

    @classmethod
    def of(cls, key: str, found: Found, run: Executable) -> Part:
        return cls(key, found.version, found.manifest.is_final, run)


@dataclass(slots=True)
class _Followed:
    """swap: of a Dynamo graph, which may be gone by now. parts: what it runs, by role."""

    swap: weakref.ref[Swap]
    parts: dict[str, Part]
    build: Build
    until: float

    def open(self, now: float) -> bool:
        """Whether it may still become better."""
        better = any(not part.final for part in self.parts.values())
        return better and now < self.until and self.swap() is not None


class Upgrades:
    """Asks for better artifacts of the graphs that are followed, and swaps them in.

    A Dynamo graph is given a whole new callable, forward and backward of one set of artifacts: what
    is under way ends as it began. An artifact that does not load is told of once, and its graph
    keeps what it has.
    """

    def __init__(
        self,
        newer: Newer,
        load: Load,
        recorder: Recorder,
        warn: Callable[[FusecError, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._newer = newer
        self._load = load
        self._recorder = recorder
        self._warn = warn
        self._clock = clock
        self._rng = random.Random()  # not the module's, which a training job has seeded
        self._lock = threading.Lock()
        self._followed: list[_Followed] = []
        self._thread: threading.Thread | None = None
        self._come = threading.Event()

    def follow(self, swap: Swap, parts: Mapping[str, Part], build: Build) -> None:
        """Have a graph's callable replaced as its artifacts become better; nothing happens where
        they are final."""
        one = _Followed(weakref.ref(swap), dict(parts), build, self._clock() + GIVE_UP_S)
        if not one.open(self._clock()):
            return
        with self._lock:
            self._followed.append(one)
            self._come.set()
            if self._thread is None or not self._thread.is_alive():  # as in a child after a fork
                self._thread = threading.Thread(
                    target=self._work, name="fusec-upgrades", daemon=True
                )
                self._thread.start()

    def _work(self) -> None:
        pause, due = FIRST_S, self._clock() + FIRST_S
        while True:
            if self._come.wait(max(0.0, due - self._clock())):
                self._come.clear()
                pause, due = FIRST_S, min(due, self._clock() + FIRST_S)
                continue
            if not self._ask():
                return
            pause = min(LONGEST_S, pause * 2)
            due = self._clock() + pause * self._rng.uniform(0.75, 1.25)  # ranks began together

    def _ask(self) -> bool:
        """One round; False when nothing is left to ask about, and the thread is to end."""
        with self._lock:
            now = self._clock()
            followed = self._followed = [one for one in self._followed if one.open(now)]
            if not followed:
                self._thread = None
                return False
        versions = {
            part.key: part.version
            for one in followed
            for part in one.parts.values()
            if not part.final
        }
        self._recorder.count("upgrade_polls")
        newer = self._newer(versions)
        for one in followed:
            better = {
                role: newer[part.key]
                for role, part in one.parts.items()
                if part.key in newer and newer[part.key].version != part.version
            }
            if better:
                self._upgrade(one, better)
        return True

    def _upgrade(self, one: _Followed, better: Mapping[str, Found]) -> None:
        swap = one.swap()
        if swap is None:
            return
        try:
            with contained("loading a better artifact"):
                parts = dict(one.parts)
                for role, found in better.items():
                    parts[role] = Part.of(parts[role].key, found, self._load(found))
                made = one.build({role: part.run for role, part in parts.items()})
        except FusecError as error:
            self._warn(error, "a graph keeps the artifact that it has")
            one.until = self._clock()
            return
        one.parts = parts
        swap.put(made)
        self._recorder.count("upgrades")
        log.debug("a better artifact runs: %s", ", ".join(part.key for part in parts.values()))
