"""The race's decisions, over samples as they come."""

import random

from fusec.tune.race import ROUNDS, margin, still_racing, winner


def test_all_run_first() -> None:
    assert still_racing({0: [], 3: [], 5: []}) == [0, 3, 5]


def test_the_clearly_slower_leave_and_do_not_come_back() -> None:
    samples = {0: [1.0], 1: [2.0], 2: [2.5]}
    assert still_racing(samples) == [0, 1]
    samples = {0: [1.0, 1.0], 1: [2.0, 2.0], 2: [2.5]}
    assert still_racing(samples) == []
    samples = {0: [1.0, 1.0], 1: [1.1, 1.1], 2: [2.5]}
    assert still_racing(samples) == [0, 1]


def test_one_bad_sample_does_not_decide() -> None:
    assert still_racing({0: [1.0, 1.0, 1.0], 1: [9.0, 1.01, 9.0]}) == [0, 1]


def test_a_close_race_ends_after_all_rounds() -> None:
    def race(rounds: int) -> list[int]:
        return still_racing({0: [1.0] * rounds, 1: [1.001] * rounds})

    assert race(ROUNDS - 1) == [0, 1]
    assert race(ROUNDS) == []


def test_a_lone_candidate_needs_one_sample() -> None:
    assert still_racing({4: []}) == [4]
    assert still_racing({4: [1.0]}) == []


def test_the_winner_has_the_least_median() -> None:
    assert winner({0: [1.0, 1.0, 1.0], 1: [0.1, 1.5, 1.5], 2: [0.9, 0.9, 9.0]}) == 2


def test_ties_go_to_the_cost_models_preference() -> None:
    assert winner({0: [1.005], 1: [1.0], 2: [0.999]}) == 0
    assert winner({0: [1.05], 1: [1.001], 2: [1.0]}) == 1


def test_the_margin_is_over_the_next() -> None:
    samples = {0: [1.2], 1: [1.0, 1.0], 2: [1.5], 3: []}
    assert winner(samples) == 1
    assert round(margin(samples, 1), 6) == 0.2
    assert margin({1: [1.0]}, 1) == 0.0


def test_noise_hardly_ever_hides_a_difference_of_a_tenth() -> None:
    """Samples with 2% of noise and, now and then, a disturbance that doubles them."""
    noise = random.Random(1)
    true = {0: 1.1, 1: 1.3, 2: 1.0, 3: 1.12, 4: 2.5}
    right, runs = 0, 0
    for _ in range(300):
        samples: dict[int, list[float]] = {n: [] for n in true}
        while racing := still_racing(samples):
            for n in racing:
                disturbed = 2.0 if noise.random() < 0.05 else 1.0
                samples[n].append(true[n] * disturbed * (1.0 + 0.02 * noise.random()))
                runs += 1
        right += winner(samples) == 2
    assert right >= 297
    assert runs < 300 * 5 * ROUNDS / 2  # the early stops save at least half
