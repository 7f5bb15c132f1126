"""The statistics of an evaluation against sums over all pairs, and what SciPy does not define."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entropix_mlx.lab import statistics


def test_nothing_known_is_no_error():
    assert statistics.wilson(0, 0) == (0, 1)
    assert statistics.sign_test(0, 0) == 1
    assert all(map(math.isnan, statistics.bootstrap_mean([])))
    assert all(map(math.isnan, statistics.bootstrap_mean([0.5])))
    assert math.isnan(statistics.auroc(np.ones(3), np.ones(3, bool)).value)


def test_a_bootstrap_interval_is_repeated_and_narrows_with_more_values():
    source = np.random.default_rng(1)
    values = source.choice([-1.0, 0.0, 1.0], size=800, p=[0.1, 0.7, 0.2])
    few, many = (statistics.bootstrap_mean(values[:n]) for n in (100, 800))
    assert many == statistics.bootstrap_mean(values)
    assert many.low < values.mean() < many.high
    assert many.high - many.low < 0.5 * (few.high - few.low)


graded = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=30)


@given(graded)
def test_auroc_is_the_share_of_pairs_in_the_right_order(answers):
    scores = np.array([float(score) for score, _ in answers])
    right = np.array([grade for _, grade in answers])
    found = statistics.auroc(scores, right)
    if right.all() or not right.any():
        assert math.isnan(found.value)
        return
    positive, negative = scores[right], scores[~right]
    pairs = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
    assert found.value == pytest.approx(pairs.mean())
    if min(len(positive), len(negative)) > 1:
        assert 0 <= found.interval.low <= found.interval.high <= 1


def test_auroc_within_levels_counts_no_pair_across_them():
    # Within each level the score says nothing; across them it says all.
    scores = np.array([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    right = np.array([True, True, False, True, False, False])
    assert statistics.auroc(scores, right).value == pytest.approx(2 / 3)
    assert statistics.auroc_within(scores, right, ["easy"] * 3 + ["hard"] * 3) == 0.5
    assert math.isnan(statistics.auroc_within(scores[:2], right[:2], ["easy"] * 2))
