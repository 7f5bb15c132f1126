"""The thresholds that are solved for a model: each strategy gets its share, at stated quantiles."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entropix_mlx import Profile
from entropix_mlx.profiles.thresholds import fitted, solve
from entropix_mlx.profiles.tree import classify, table
from entropix_mlx.step import Strategy
from tests.steps import make_step

TARGETS = Profile.load().targets


def a_distribution(seed, count=3000):
    """Entropies and varentropies that go together, as a language model's do."""
    rng = np.random.default_rng(seed)
    entropy = rng.gamma(1.2, 2.0, count)
    varentropy = entropy * rng.gamma(3.0, 0.8, count)
    return entropy, varentropy, np.exp(-entropy) * rng.uniform(0.2, 1.0, count)


@given(st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_each_strategy_gets_its_share(seed):
    entropy, varentropy, margin = a_distribution(seed)
    profile = Profile.load().replace({"thresholds": solve(entropy, varentropy, margin, TARGETS)})
    rows = zip(entropy.tolist(), varentropy.tolist(), margin.tolist(), strict=True)
    strategies = classify(
        [make_step(n, "", entropy=h, varentropy=v, margin=m) for n, (h, v, m) in enumerate(rows)],
        profile,
    )
    for name in ("argmax", "think", "branch", "resample"):
        share = strategies.count(name) / len(strategies)
        assert share == pytest.approx(getattr(TARGETS, name), abs=0.005), name


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_a_degenerate_model_still_gets_a_profile(value):
    values = np.full(50, value)
    Profile.load().replace({"thresholds": solve(values, values, values, TARGETS)})


def test_thresholds_lie_at_the_stated_quantiles():
    entropy, varentropy, margin = a_distribution(1)
    found = solve(entropy, varentropy, margin, TARGETS)
    assert found["think_min_entropy"] == pytest.approx(np.quantile(entropy, 0.6))
    for name in ("branch_max_entropy", "resample_min_entropy"):
        assert found[name] == pytest.approx(np.quantile(entropy, 0.85))
    sure = (entropy < found["low_entropy"]) & (varentropy < found["low_varentropy"])
    lost = (entropy > found["think_min_entropy"]) & (varentropy < found["think_max_varentropy"])
    assert found["branch_max_margin"] == pytest.approx(np.median(margin[~sure & ~lost]))
    ranks = [(values < found[name]).mean() for name, values in
             (("low_entropy", entropy), ("low_varentropy", varentropy))]  # fmt: skip
    assert ranks[0] == pytest.approx(ranks[1], abs=0.001), "the same quantile of both"


def test_a_threshold_lies_in_the_middle_between_two_tokens():
    entropy = np.arange(100.0)
    targets = TARGETS.model_copy(update={"think": 0.02, "resample": 0.03})
    found = solve(entropy, entropy[::-1], np.full(100, 0.5), targets)
    assert found["think_max_varentropy"] == 1.5, "of 0, 1, 2 …, two lie below"
    assert found["resample_min_varentropy"] == 11.5, "of 2 to 14, three lie above"


def test_the_adaptive_temperature_rises_by_four_tenths_at_the_ninetieth_percentile():
    entropy, varentropy, margin = a_distribution(2)
    tokens = {"entropy": entropy, "varentropy": varentropy, "margin": margin}
    attention = np.linspace(1.0, 5.0, len(entropy))
    reference = Profile.load()
    profile = fitted(reference, tokens | {"attention": attention})
    adaptive = next(row for row in table(profile) if row.strategy is Strategy.ADAPTIVE)
    base, spread = reference.base.temperature, np.quantile(entropy + varentropy, 0.9)
    assert adaptive.temperature.slopes["entropy"] * spread / base == pytest.approx(0.4, rel=1e-3)
    assert adaptive.temperature.slopes["attention_entropy"] * 4.6 / base == pytest.approx(
        0.1, rel=1e-3
    )
    unmeasured = fitted(reference, tokens | {"attention": np.full(len(entropy), np.nan)})
    assert unmeasured.adaptive.temperature_attention == reference.adaptive.temperature_attention
