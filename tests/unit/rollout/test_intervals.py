"""Intervals hold what they promise, episodes of one start are not taken for independent ones, tests count exactly."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnsmith.rollout.evaluation.intervals import (
    Estimate,
    compare_pairs,
    estimate_mean,
    estimate_pass_at,
    estimate_proportion,
    t_quantile,
)


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    # A printed table of Student's t, 0.975.
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (10, 2.2281), (29, 2.0452), (120, 1.9799), (1000, 1.9623)],
)
def test_the_quantile_of_students_t(degrees: int, quantile: float) -> None:
    assert t_quantile(0.975, degrees) == pytest.approx(quantile, abs=5e-5)


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    # mpmath 1.3 with 30 digits: the root of the regularised incomplete beta function.
    [(200, 1.97189622363391), (201, 1.9718365067799), (250, 1.9694983934212), (1000, 1.9623390808264)],
)
def test_the_expansion_for_many_degrees_of_freedom_is_as_good_as_it_says(degrees: int, quantile: float) -> None:
    assert t_quantile(0.975, degrees) == pytest.approx(quantile, abs=2e-9)


def test_the_quantile_of_very_many_degrees_of_freedom_is_the_normal_one() -> None:
    assert t_quantile(0.975, 10**9) == pytest.approx(1.959964, abs=1e-6)


def test_the_mean_of_single_episodes_has_the_usual_interval() -> None:
    found = estimate_mean([[2.0], [4.0], [4.0], [6.0]])
    reach = 3.182446 * math.sqrt(8 / 3) / 2
    assert (found.value, found.low) == (4.0, pytest.approx(4 - reach, abs=1e-5))
    assert found.high == pytest.approx(4 + reach, abs=1e-5)


def test_a_start_played_many_times_is_still_one_start() -> None:
    once = estimate_mean([[1.0], [0.0], [3.0]])
    often = estimate_mean([[1.0] * 9, [0.0] * 9, [3.0] * 9])
    assert (often.low, often.high) == (pytest.approx(once.low), pytest.approx(once.high))
    assert estimate_proportion([[1] * 9, [0] * 9, [0] * 9]) == estimate_proportion([[1], [0], [0]])


def test_nothing_to_estimate_from_is_no_interval_and_no_error() -> None:
    assert math.isnan(estimate_mean([]).value)
    assert math.isnan(estimate_proportion([]).value)
    assert math.isnan(estimate_pass_at([[1]], 2).value)
    assert not estimate_mean([[3.0, 4.0]]).has_interval
    assert not estimate_mean([[0.1], [0.1], [0.1]]).has_interval
    assert not estimate_mean([[0.1 + 0.2], [0.3], [0.3]]).has_interval
    assert estimate_proportion([[1]]).has_interval


@pytest.mark.parametrize(
    ("successes", "number", "low", "high"),
    # Wilson 1927, by any calculator of it.
    [
        (0, 10, 0.0, 0.2775),
        (1, 10, 0.0179, 0.4042),
        (5, 10, 0.2366, 0.7634),
        (10, 10, 0.7225, 1.0),
        (8, 100, 0.0411, 0.1500),
    ],
)
def test_wilsons_interval(successes: int, number: int, low: float, high: float) -> None:
    found = estimate_proportion([[1.0]] * successes + [[0.0]] * (number - successes))
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_episodes_of_a_start_that_are_not_alike_count_as_more_than_one() -> None:
    """The effective sample size by hand, between the number of starts and that of episodes."""
    clusters = [[1.0, 0.0, 1.0, 1.0], [0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]] * 2
    share, starts, episodes = 0.5, 8, 32
    variance = starts / (starts - 1) * sum((sum(cluster) - 4 * share) ** 2 for cluster in clusters) / episodes**2
    design_effect = variance / (share * (1 - share) / (episodes - 1))
    degrees_correction = (2.0395134 / 2.3646243) ** 2  # t quantiles of 31 and of 7 degrees of freedom
    effective = episodes / design_effect * degrees_correction
    assert starts < effective < episodes
    z = 1.959963985
    half_width = z * math.sqrt(share * (1 - share) / effective + z**2 / (4 * effective**2)) / (1 + z**2 / effective)
    interval = estimate_proportion(clusters)
    assert interval.value == share
    assert (interval.low, interval.high) == pytest.approx((0.5 - half_width, 0.5 + half_width), abs=1e-7)


def test_the_interval_of_a_proportion_covers_the_truth_where_starts_differ() -> None:
    """25 starts of 4 episodes; a start's own chance of success is spread widely around 0.4."""
    draw = random.Random(0)
    covered, taken_for_independent = 0, 0
    for _ in range(400):
        chances = [draw.betavariate(0.4, 0.6) for _ in range(25)]
        clusters = [[float(draw.random() < chance) for _ in range(4)] for chance in chances]
        found, naive = (
            estimate_proportion(clusters),
            estimate_proportion([[x] for cluster in clusters for x in cluster]),
        )
        covered += found.low <= 0.4 <= found.high
        taken_for_independent += naive.low <= 0.4 <= naive.high
    assert covered / 400 > 0.92
    assert taken_for_independent / 400 < 0.85


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=12))
def test_proportions_and_their_bounds_stay_in_order(clusters: list[list[bool]]) -> None:
    numbers = [[float(x) for x in cluster] for cluster in clusters]
    found = estimate_proportion(numbers)
    assert 0 <= found.low <= found.value <= found.high <= 1
    for k in (1, 2, 6):
        passing = estimate_pass_at(numbers, k)
        if passing.has_interval:
            assert 0 <= passing.low <= passing.value <= passing.high <= 1


def test_pass_at_k_is_the_share_of_ways_to_choose_k_that_hold_a_success() -> None:
    cluster = [1.0, 0.0, 0.0, 1.0, 0.0]
    for k in range(1, 6):
        chosen = list(itertools.combinations(cluster, k))
        assert estimate_pass_at([cluster], k).value == pytest.approx(sum(map(max, chosen)) / len(chosen))


def test_pass_at_k_leaves_out_starts_with_fewer_than_k() -> None:
    assert estimate_pass_at([[1.0, 1.0], [0.0]], 2).value == 1.0


@pytest.mark.parametrize(
    ("ups", "downs", "p_value"), [(0, 0, 1.0), (3, 3, 1.0), (5, 0, 0.0625), (1, 9, 22 / 1024), (10, 2, 158 / 4096)]
)
def test_successes_and_failures_are_tested_as_mcnemar_does(ups: int, downs: int, p_value: float) -> None:
    found = compare_pairs([1.0] * ups + [-1.0] * downs + [0.0] * 7)
    assert (found.p_value, found.is_exact, found.pairs) == (pytest.approx(p_value), True, ups + downs + 7)


def test_many_pairs_of_one_size_are_counted_and_not_enumerated() -> None:
    assert compare_pairs([1.0] * 2000 + [-1.0] * 2000).p_value == 1.0
    assert 0 < compare_pairs([0.5] * 700 + [-0.5] * 300).p_value < 1e-30


def test_few_differences_are_enumerated() -> None:
    values = [0.3, -0.1, 0.7, 0.2, 0.4, -0.2]
    listed = [
        abs(sum(s * v for s, v in zip(signs, values, strict=True))) for signs in itertools.product((1, -1), repeat=6)
    ]
    expected = sum(one >= abs(sum(values)) - 1e-12 for one in listed) / len(listed)
    found = compare_pairs(values)
    assert (found.p_value, found.is_exact) == (pytest.approx(expected), True)


def test_sampled_and_enumerated_signs_agree_and_sampling_repeats() -> None:
    draw = random.Random(1)
    values = [draw.gauss(0.35, 1.0) for _ in range(20)]
    listed, drawn = compare_pairs(values), compare_pairs([*values, 1e-9])
    assert (listed.is_exact, drawn.is_exact) == (True, False)
    assert drawn.p_value == pytest.approx(listed.p_value, abs=0.01)
    assert drawn == compare_pairs([*values, 1e-9])


def test_a_clear_difference_of_many_pairs_is_never_given_a_p_value_of_0() -> None:
    draw = random.Random(2)
    found = compare_pairs([draw.uniform(0.5, 1.5) for _ in range(300)])
    assert found.p_value == pytest.approx(1 / 20_001)
    assert found.difference.low > 0.9


def test_no_pair_is_no_difference() -> None:
    found = compare_pairs([])
    assert (found.p_value, found.pairs, found.difference.has_interval) == (1.0, 0, False)
    assert not Estimate().has_interval
