"""The measurements, against their definitions in float64 and the laws that they obey."""

import math

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from entropix_mlx.samplers import metrics as module
from tests.oracle.samplers import measure

SCORES = mx.array(np.linspace(-2, 2, 24, dtype=np.float32).reshape(1, 4, 6))


def logits_of(low: float, high: float):
    return hnp.arrays(np.float32, st.integers(2, 200), elements=st.floats(low, high, width=32))


def exact(logits: np.ndarray) -> tuple[float, float]:
    """Return entropy and varentropy by their definitions, in float64."""
    z = logits.astype(np.float64)
    logp = (z - z.max() - math.log(np.exp(z - z.max()).sum())) / math.log(2)
    p = np.exp2(logp)
    entropy = -(p * logp).sum()
    return entropy, (p * (logp + entropy) ** 2).sum()


def on_device(logits: np.ndarray):
    return measure(mx.array(logits)[None], [SCORES]).metrics


@given(logits_of(-30, 30))
def test_entropy_and_varentropy_are_as_defined(logits):
    metrics = on_device(logits)
    entropy, varentropy = exact(logits)
    assert metrics.entropy.item() == pytest.approx(entropy, rel=1e-4, abs=1e-5)
    assert metrics.varentropy.item() == pytest.approx(varentropy, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("ranks", [0, 1, 2, 40])
@given(logits_of(-9, 9))
def test_the_margin_is_that_of_the_two_most_probable_tokens(ranks, logits):
    probabilities = np.exp(logits.astype(np.float64) - logits.max())
    second, first = np.sort(probabilities / probabilities.sum())[-2:]
    measured = module.measure(mx.array(logits)[None], mx.zeros((1, 5)), ranks)
    assert measured.metrics.margin.item() == pytest.approx(first - second, rel=1e-4, abs=1e-6)


@given(logits_of(-1e4, 1e4))
def test_entropy_lies_between_0_and_that_of_the_uniform(logits):
    metrics = on_device(logits)
    assert 0 <= metrics.entropy.item() <= math.log2(logits.size) * (1 + 1e-6)
    assert metrics.varentropy.item() >= 0
    assert 0 <= metrics.margin.item() <= 1


@given(logits_of(-20, 20), st.integers(-100, 100))
def test_a_constant_added_to_the_logits_changes_nothing(logits, constant):
    shifted = on_device(logits + np.float32(constant))
    for name, value in on_device(logits)._asdict().items():
        assert shifted[name].item() == pytest.approx(value.item(), rel=1e-3, abs=2e-4), name


@pytest.mark.parametrize("size", [2, 3, 17, 256, 300])
def test_the_uniform_has_no_varentropy(size):
    metrics = on_device(np.zeros(size, np.float32))
    assert metrics.entropy.item() == pytest.approx(math.log2(size), rel=1e-6)
    assert (metrics.varentropy.item(), metrics.margin.item()) == (0, 0)


@pytest.mark.parametrize(
    "logits",
    [
        [3e38, -3e38, 0.0],
        [-3e38, -3e38, -3e38],
        [0.0, -math.inf, -math.inf],
        [1e4, 0.0, -math.inf],
        [1e-38, 0.0, -1e-38],
    ],
)
def test_extreme_logits_give_no_nan(logits):
    for name, value in on_device(np.array(logits, np.float32))._asdict().items():
        assert math.isfinite(value.item()), name


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity_are_not_hidden(bad):
    assert math.isnan(on_device(np.array([0.0, bad, 1.0], np.float32)).entropy.item())


def test_a_tail_too_small_to_be_added_to_1_still_counts():
    # p = 2^-70 for the second token: beside 1 it vanishes in float32, and in float64
    gap = 70.0
    logits = mx.array([[0.0, -gap * math.log(2)]])
    entropy = measure(logits, [SCORES]).metrics.entropy.item()
    assert entropy == pytest.approx(2**-gap * (gap + 1 / math.log(2)), rel=1e-5)


@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 40)),
        elements=st.floats(-8, 8, width=32),
    ),
    st.integers(0, 3),
)
def test_attention_metrics_are_as_defined(layers, hidden):
    padded = np.pad(layers, [(0, 0), (0, 0), (hidden, 0)], constant_values=-np.inf)
    metrics = measure(mx.array([[0.0, 1.0]]), [mx.array(layer)[None] for layer in padded]).metrics
    expected = np.zeros(5)
    for scores in layers.astype(np.float64):
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        entropies = np.array([exact(head)[0] for head in scores])
        distance = np.abs(weights - weights.mean(axis=0))
        divergence = distance.sum(axis=1).mean() / 2
        expected += [entropies.mean(), entropies.var(), distance.mean(), divergence, 0]
        expected[4] += np.abs(scores).mean()
    measured = [metrics[name].item() for name in metrics._fields[3:]]
    np.testing.assert_allclose(measured, expected / len(layers), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("layers_at_once", [0, 2, 5])
def test_how_many_layers_are_measured_together_changes_nothing(monkeypatch, layers_at_once):
    scores = [mx.random.normal((2, 3, 7), key=mx.random.key(layer)) for layer in range(5)]
    together = measure(mx.zeros((2, 4)), scores).metrics
    monkeypatch.setattr(module, "SCORES_AT_ONCE", layers_at_once * scores[0].size)
    in_groups = measure(mx.zeros((2, 4)), scores).metrics
    for name, value in together._asdict().items():
        np.testing.assert_allclose(in_groups[name], value, rtol=1e-6, err_msg=name)
