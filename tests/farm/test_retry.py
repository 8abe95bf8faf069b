"""The decision table of retries, every line of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.ray_settings import HEAD_SETTINGS
from farm.retry import RULES, Again, ErrorKind, GiveUp, Rule, decide

KINDS = st.sampled_from(ErrorKind)


def test_the_table_is_complete() -> None:
    assert set(RULES) == set(ErrorKind)


# Attempts, least delay before the second, alone, seconds remembered.
@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        # Would fail again, whatever is done.
        (ErrorKind.BAD_INPUT, Rule(1, 0.0, False, 60.0)),
        (ErrorKind.COMPILE_ERROR, Rule(1, 0.0, False, 600.0)),
        # Poison, perhaps: tried alone on another node once, then left for ten minutes.
        (ErrorKind.CRASHED, Rule(2, 0.2, True, 600.0)),
        (ErrorKind.TIMEOUT, Rule(2, 0.0, True, 600.0)),
        (ErrorKind.OUT_OF_MEMORY, Rule(2, 1.0, True, 600.0)),
        (ErrorKind.INTERNAL, Rule(2, 0.2, True, 60.0)),
        # The node's fault.
        (ErrorKind.WORKER_LOST, Rule(3, 2.0, True, 15.0)),
        (ErrorKind.OTHER_RELEASE, Rule(3, 0.1, False, 15.0)),
        # The store's.
        (ErrorKind.STORE_UNREACHABLE, Rule(3, 1.0, False, 0.0)),
        (ErrorKind.STORE_REFUSED, Rule(1, 0.0, False, 15.0)),
        # Nobody's: a new submit starts anew.
        (ErrorKind.CANCELLED, Rule(1, 0.0, False, 0.0)),
        (ErrorKind.ABANDONED, Rule(1, 0.0, False, 0.0)),
    ],
)
def test_every_line(kind: ErrorKind, rule: Rule) -> None:
    assert RULES[kind] == rule
    for attempt in range(1, rule.attempts):
        delay = rule.delay_s * 2 ** (attempt - 1)
        assert decide(kind, attempt) == Again(delay, rule.alone)
        assert decide(kind, attempt, 1.0) == Again(2 * delay, rule.alone)
    for attempt in range(rule.attempts, rule.attempts + 3):
        assert decide(kind, attempt) == GiveUp(rule.remember_s)


@given(KINDS, st.floats(0, 1), st.floats(0, 1))
def test_attempts_are_bounded_and_delays_grow(kind: ErrorKind, first: float, second: float) -> None:
    verdicts = [decide(kind, n, spread) for n, spread in ((1, first), (2, second), (3, 0.0))]
    assert isinstance(verdicts[2], GiveUp), "three attempts at most"
    delays = [v.delay_s for v in verdicts if isinstance(v, Again)]
    assert all(0.0 <= delay <= 8.0 for delay in delays)
    assert delays == sorted(delays), "whatever is drawn, a later delay is no shorter"


def test_a_lost_node_is_noticed_before_the_last_attempt() -> None:
    rule = RULES[ErrorKind.WORKER_LOST]
    waited_s = sum(rule.delay_s * 2**n for n in range(rule.attempts - 1))
    silence_ms = HEAD_SETTINGS["health_check_period_ms"] * (
        HEAD_SETTINGS["health_check_failure_threshold"] + 1
    )
    assert waited_s > silence_ms / 1000
