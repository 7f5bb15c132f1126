"""The statistics of an evaluation against SciPy, and against sums over all pairs."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from entropix_mlx.lab.evaluation import statistics

counts = st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(counts)
def test_wilson(count):
    right, n = count
    expected = stats.binomtest(right, n).proportion_ci(0.95, method="wilson")
    assert statistics.wilson(right, n) == pytest.approx((expected.low, expected.high))


@given(counts, st.floats(0, 1))
def test_binomial_distribution(count, p):
    k, n = count
    assert statistics.binomial_cdf(k, n, p) == pytest.approx(stats.binom.cdf(k, n, p), abs=1e-9)


@given(st.integers(0, 200), st.integers(0, 200))
def test_sign_test_is_mcnemars(wins, losses):
    expected = stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    assert statistics.sign_test(wins, losses) == pytest.approx(expected, abs=1e-9)


def test_holm():
    # Holm's steps by hand: 0.01 · 4, 0.02 · 3, max(0.06, 0.03 · 2), max(0.06, 0.04 · 1).
    assert statistics.holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert statistics.holm([0.9, 0.8]) == [1.0, 1.0]
    assert statistics.holm([]) == []


def test_bootstrap_of_a_mean():
    values = np.random.default_rng(1).choice([-1.0, 0.0, 1.0], size=300, p=[0.1, 0.7, 0.2])
    own = statistics.bootstrap_mean(values)
    expected = stats.bootstrap(
        (values,), np.mean, n_resamples=5000, method="percentile", rng=np.random.default_rng(2)
    ).confidence_interval
    assert own == pytest.approx((expected.low, expected.high), abs=0.01)
    assert own == statistics.bootstrap_mean(values)
    assert math.isnan(statistics.bootstrap_mean([]).low)


graded = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=60)


@given(graded)
def test_auroc_is_mann_whitneys_u_with_delongs_variance(answers):
    scores = np.array([float(score) for score, _ in answers])
    right = np.array([grade for _, grade in answers])
    found = statistics.auroc(scores, right)
    if right.all() or not right.any():
        assert math.isnan(found.value)
        return
    positive, negative = scores[right], scores[~right]
    pairs = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
    u = stats.mannwhitneyu(positive, negative).statistic
    assert found.value == pytest.approx(u / pairs.size)
    assert found.value == pytest.approx(pairs.mean())
    variance = sum(
        np.var(pairs.mean(axis=axis), ddof=1) / n
        for axis, n in ((1, len(positive)), (0, len(negative)))
        if n > 1
    )
    assert found.variance == pytest.approx(variance)


def test_the_variance_of_a_difference_is_paired():
    source = np.random.default_rng(3)
    first, right = source.normal(size=200), source.random(200) < 0.6
    other = first + 0.5 * source.normal(size=200)
    strata = ["one"] * 120 + ["two"] * 80
    gain = statistics.stratified_auroc(first, right, strata, other)
    aurocs = [statistics.stratified_auroc(scores, right, strata) for scores in (first, other)]
    assert gain.value == pytest.approx(aurocs[0].value - aurocs[1].value)
    assert 0 < gain.variance < aurocs[0].variance + aurocs[1].variance
    assert statistics.auroc(first, right, first)[:2] == (0, (0, 0))
    pairs = [
        (scores[right][:, None] > scores[~right]) + 0.5 * (scores[right][:, None] == scores[~right])
        for scores in (first, other)
    ]
    rows = (pairs[0] - pairs[1]).mean(axis=1), (pairs[0] - pairs[1]).mean(axis=0)
    variance = sum(np.var(values, ddof=1) / len(values) for values in rows)
    assert statistics.auroc(first, right, other).variance == pytest.approx(variance)


def test_auroc_within_strata_counts_no_pair_across_them():
    # Within each stratum the score says nothing; across them it says all.
    scores = np.array([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    right = np.array([True, True, False, True, False, False])
    strata = ["easy"] * 3 + ["hard"] * 3
    assert statistics.auroc(scores, right).value == pytest.approx(2 / 3)
    assert statistics.stratified_auroc(scores, right, strata).value == 0.5


def test_risk_over_coverage():
    curve = statistics.risk_coverage(
        np.array([0.9, 0.7, 0.7, 0.1]), np.array([True, True, False, False])
    )
    assert curve.coverage.tolist() == [0.25, 0.75, 1.0]
    assert curve.risk.tolist() == pytest.approx([0, 1 / 3, 0.5])
    assert curve.accuracy_at(0.5) == pytest.approx(2 / 3)
    assert curve.area == pytest.approx(0.5 / 3 + 0.25 * 0.5)


def orders(scores, right):
    """Return the rejection ratio as lm-polygraph has it, for one order of equal scores."""
    n = np.arange(1, len(right) + 1)

    def area(order):
        return (right[order].cumsum() / n).mean()

    best = area(np.argsort(~right, kind="stable"))
    return (area(np.argsort(-scores, kind="stable")) - right.mean()) / (best - right.mean())


@given(graded)
def test_the_rejection_ratio_is_the_mean_over_orders_of_equal_scores(answers):
    scores = np.array([float(score) for score, _ in answers])
    right = np.array([grade for _, grade in answers])
    found = statistics.rejection_ratio(scores, right)
    if right.all() or not right.any():
        assert math.isnan(found.value)
        return
    apart = scores + 0.01 * np.arange(len(scores))
    own = statistics.rejection_ratio(apart, right)
    assert own.value == pytest.approx(orders(apart, right))
    assert own.value <= 1 + 1e-9
    assert statistics.rejection_ratio(right * 1.0, right).value == pytest.approx(1)
    assert statistics.rejection_ratio(0 * scores, right).value == pytest.approx(0, abs=1e-9)


def test_the_interval_of_the_rejection_ratio_is_that_of_other_samples():
    def sample(seed, n=400):
        source = np.random.default_rng(seed)
        right = source.random(n) < 0.6
        return source.normal(size=n) + right, right

    values = [orders(*sample(seed)) for seed in range(200)]
    found = statistics.rejection_ratio(*sample(1))
    assert found.interval.low < found.value < found.interval.high
    spread = (found.interval.high - found.interval.low) / (2 * statistics.Z)
    assert spread == pytest.approx(np.std(values), rel=0.2)
