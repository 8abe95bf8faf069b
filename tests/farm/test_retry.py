"""The decision table of retries."""

import pytest

from farm.retry import RULES, Again, ErrorKind, GiveUp, decide


def test_the_table_is_complete() -> None:
    assert set(RULES) == set(ErrorKind)


@pytest.mark.parametrize(
    ("kind", "attempt", "expected"),
    [
        (ErrorKind.COMPILE_ERROR, 1, GiveUp(600.0)),
        (ErrorKind.BAD_INPUT, 1, GiveUp(60.0)),
        (ErrorKind.WORKER_LOST, 1, Again(0.5, True)),
        (ErrorKind.WORKER_LOST, 2, Again(1.0, True)),
        (ErrorKind.WORKER_LOST, 3, GiveUp(15.0)),
        (ErrorKind.OUT_OF_MEMORY, 1, Again(1.0, True)),
        (ErrorKind.OUT_OF_MEMORY, 2, GiveUp(600.0)),
        (ErrorKind.TIMEOUT, 2, GiveUp(600.0)),
        (ErrorKind.STORE_UNREACHABLE, 1, Again(1.0, False)),
        (ErrorKind.CANCELLED, 1, GiveUp(0.0)),
    ],
)
def test_decisions(kind: ErrorKind, attempt: int, expected: Again | GiveUp) -> None:
    assert decide(kind, attempt) == expected


@pytest.mark.parametrize("kind", ErrorKind)
def test_attempts_are_bounded_and_delays_grow(kind: ErrorKind) -> None:
    delays = []
    for attempt in range(1, 5):
        decision = decide(kind, attempt)
        if isinstance(decision, GiveUp):
            break
        delays.append(decision.delay_s)
    assert isinstance(decision, GiveUp), "at most three attempts"
    assert delays == sorted(delays)
