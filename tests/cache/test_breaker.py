"""The delay budget's arithmetic, with a clock in hand."""

import random

import pytest

from cache.breaker import FIRST_RETRIES, RETRY_SECONDS, SLOW_ANSWER_SECONDS, DelayBudget
from cache.errors import NotReachable


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def budget(clock):
    return DelayBudget(2.0, probe_s=(1.0, 5.0), clock=clock, rng=random.Random(1))


def probe_delay(budget, clock):
    """Seconds until a probe is due."""
    start = clock.now
    while not budget.take_probe():
        clock.now += 0.01
        assert clock.now - start < 100
    return clock.now - start


def test_whole_budget_is_there_at_first(budget):
    assert budget.admit() == 2.0


def test_one_failure_takes_its_time_off(budget):
    budget.failed(0.5, "x")
    assert budget.admit() == 1.5


def test_second_failure_in_a_row_opens(budget):
    budget.failed(0.1, "x")
    budget.failed(0.1, "connection refused")
    with pytest.raises(NotReachable, match="connection refused"):
        budget.admit()


def test_failures_with_answers_between_do_not_open(budget):
    for _ in range(50):
        budget.failed(0.0, "x")
        budget.succeeded(0.0)
    assert not budget.is_open


def test_one_failure_that_takes_all_opens(budget):
    budget.failed(2.0, "timeout")
    assert budget.is_open


def test_good_answers_give_a_tenth_back_up_to_the_whole(budget):
    budget.failed(1.0, "x")
    budget.succeeded(0.0)
    assert budget.left_s == pytest.approx(1.2)
    for _ in range(20):
        budget.succeeded(SLOW_ANSWER_SECONDS)
    assert budget.left_s == 2.0


def test_slow_answers_use_it_up(budget):
    for _ in range(20):
        budget.succeeded(SLOW_ANSWER_SECONDS + 0.1)
    assert budget.is_open


def test_probe_comes_within_its_times_and_only_once(budget, clock):
    budget.failed(3.0, "x")
    assert 1.0 <= probe_delay(budget, clock) <= 5.01
    assert not budget.take_probe()


def test_probe_that_nobody_reports_is_made_again(budget, clock):
    budget.failed(3.0, "x")
    probe_delay(budget, clock)
    assert 9.0 < probe_delay(budget, clock) < 10.1


def test_no_probe_while_closed(budget, clock):
    clock.now = 1000.0
    assert not budget.take_probe()


def test_live_probe_closes_with_half_the_budget(budget, clock):
    budget.failed(3.0, "x")
    probe_delay(budget, clock)
    budget.probed(True)
    assert budget.admit() == 1.0


def test_dead_probe_keeps_it_open_and_comes_again_at_the_same_pace(budget, clock):
    budget.failed(3.0, "x")
    for _ in range(20):
        assert probe_delay(budget, clock) <= 5.01
        budget.probed(False)
        assert budget.is_open


def test_remote_that_answers_only_probes_is_tried_ever_more_seldom(budget, clock):
    lost, delays = 0.0, []
    while clock.now < 3600:
        allowed = budget.admit()
        lost += allowed
        budget.failed(allowed, "hangs")
        assert budget.is_open
        delays.append(probe_delay(budget, clock))
        budget.probed(True)
    assert max(delays) <= 25.1
    assert delays[-1] > 15
    assert lost < 0.06 * 3600


def test_pace_is_forgotten_once_the_budget_is_whole_again(budget, clock):
    for _ in range(6):
        budget.failed(3.0, "hangs")
        probe_delay(budget, clock)
        budget.probed(True)
    for _ in range(10):
        budget.succeeded(0.0)
    budget.failed(3.0, "x")
    assert probe_delay(budget, clock) <= 5.01


def test_times_are_jittered(clock):
    delays = set()
    for seed in range(10):
        budget = DelayBudget(clock=clock, rng=random.Random(seed))
        budget.failed(3.0, "x")
        delays.add(round(probe_delay(budget, clock), 1))
    assert len(delays) > 5


def test_retries_are_no_more_than_a_fifth_of_the_requests(budget):
    """However often a request fails at first, though its retry is answered each time."""
    requests = retries = 0
    for _ in range(1000):
        requests += 1
        budget.failed(0.0, "cut")
        pause = budget.retry_after()
        if pause is not None:
            assert 0 <= pause <= RETRY_SECONDS
            retries += 1
        budget.succeeded(0.0)
    assert 0.15 * requests < retries <= 0.2 * requests + FIRST_RETRIES


def test_nothing_is_retried_once_it_is_taken_for_dead(budget):
    budget.failed(3.0, "silent")
    assert budget.retry_after() is None
