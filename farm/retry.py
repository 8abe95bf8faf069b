"""What to do after a failure, by its kind: a table and a pure function, no clock, no state.

A task is tried three times at most, on another node each time if there is one (`Task.avoid`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class ErrorKind(StrEnum):
    """Why a task or a job failed; also the label of the metric."""

    BAD_INPUT = "bad_input"  # the graph does not decode or breaks its invariants
    COMPILE_ERROR = "compile_error"  # a stage or the C compiler said no: it would again
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    CRASHED = "crashed"  # the task's child process was killed by a fault of its own
    WORKER_LOST = "worker_lost"  # the process or the node died under the task
    OTHER_RELEASE = "other_release"  # the worker's compiler is not the gateway's
    STORE_UNREACHABLE = "store_unreachable"
    STORE_REFUSED = "store_refused"  # a token without the role, a full store, too large
    INTERNAL = "internal"  # an error that no stage is known to raise
    VERIFICATION = "verification"  # the artifact does not compute what eager does
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"  # nobody asked for the job for too long

    @classmethod
    def named(cls, name: str) -> ErrorKind:
        """The kind that a worker or a gateway names; INTERNAL where this release knows none."""
        try:
            return cls(name)
        except ValueError:
            return cls.INTERNAL


@dataclass(frozen=True, slots=True)
class Rule:
    """``attempts`` in all; ``delay_s`` before the second at least, twice that before the third.

    ``alone``: tasks that shared a batch are tried one by one, to find the one at fault.
    ``remember_s``: how long a submit of the same graph gets the same failure at once.
    """

    attempts: int
    delay_s: float
    alone: bool
    remember_s: float


RULES: Final[Mapping[ErrorKind, Rule]] = {
    ErrorKind.BAD_INPUT: Rule(1, 0.0, False, 60.0),
    ErrorKind.COMPILE_ERROR: Rule(1, 0.0, False, 600.0),
    ErrorKind.TIMEOUT: Rule(2, 0.0, True, 600.0),
    ErrorKind.OUT_OF_MEMORY: Rule(2, 1.0, True, 600.0),
    ErrorKind.CRASHED: Rule(2, 0.2, True, 600.0),
    # Longer in all than a cluster takes to notice that a node is gone (`farm.ray_settings`).
    ErrorKind.WORKER_LOST: Rule(3, 2.0, True, 15.0),
    ErrorKind.OTHER_RELEASE: Rule(3, 0.1, False, 15.0),
    ErrorKind.STORE_UNREACHABLE: Rule(3, 1.0, False, 0.0),
    ErrorKind.STORE_REFUSED: Rule(1, 0.0, False, 15.0),
    ErrorKind.INTERNAL: Rule(2, 0.2, True, 60.0),
    ErrorKind.VERIFICATION: Rule(1, 0.0, False, 600.0),
    ErrorKind.CANCELLED: Rule(1, 0.0, False, 0.0),
    ErrorKind.ABANDONED: Rule(1, 0.0, False, 0.0),
}


@dataclass(frozen=True, slots=True)
class Again:
    """Try once more after ``delay_s`` seconds, ``alone`` if it shared a batch."""

    delay_s: float
    alone: bool


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Fail the job and give the same answer for ``remember_s`` seconds."""

    remember_s: float


def decide(kind: ErrorKind, attempt: int, spread: float = 0.0) -> Again | GiveUp:
    """What follows the failure of attempt number `attempt` (from 1).

    spread: drawn anew each time from 0 to 1; the delay grows by that part of itself, so that those
    who failed together do not come back together.
    """
    rule = RULES[kind]
    if attempt >= rule.attempts:
        return GiveUp(rule.remember_s)
    return Again(rule.delay_s * 2.0 ** (attempt - 1) * (1.0 + spread), rule.alone)
