"""Adaptive-p and the Dirichlet sampler against their formulas in float64."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import digamma

from entropix_mlx.profiles.profile import Profile
from entropix_mlx.samplers import dslider
from entropix_mlx.samplers.registry import make_sampler
from entropix_mlx.samplers.state import TextStart
from tests.oracle.samplers import at, drawn_from, entropy, observed, softmax, some_logits

VOCAB = 300


@pytest.mark.parametrize(("target", "decay"), [(0.5, 0.9), (0.1, 0.5), (0.9, 0.0)])
@pytest.mark.parametrize("min_p", [0.0, 0.1])
def test_adaptive_p(target, decay, min_p):
    stated = {"samplers": {"adaptive_p": {"target": target, "decay": decay}}}
    sampler = make_sampler("adaptive_p", Profile.load().replace(stated), {"min_p": min_p})
    state = sampler.remembered.start(TextStart(vocab=VOCAB))
    rng = np.random.default_rng(4)
    total, weight = target / (1 - decay), 1 / (1 - decay)
    for place in range(40):
        logits = some_logits(rng, VOCAB)
        p = softmax(logits)
        wanted = np.clip(2 * target - total / weight, 0, 1)
        distance = np.abs(p - wanted) / 0.3
        expected = np.exp(5 - 10 * distance**2 / (1 + distance))
        expected[p < min_p * p.max()] = 0
        queued = at(sampler, logits, place, state)
        np.testing.assert_allclose(drawn_from(queued), expected / expected.sum(), atol=1e-4)
        token = queued.token.item()
        assert expected[token] > 0
        total, weight = p[token] + decay * total, 1 + decay * weight
        state = observed(sampler, queued)
        assert [a.item() for a in state] == pytest.approx([total, weight], rel=1e-4)


def tempered(logits, target):
    """Return the distribution whose entropy is a target's, or the nearest that can be reached."""

    def lacks(log_t):
        return entropy(softmax(np.asarray(logits, np.float64) / np.exp(log_t))) - target

    low, high = np.log(dslider.LOWEST_TEMPERATURE), np.log(dslider.HIGHEST_TEMPERATURE)
    if lacks(low) >= 0:
        log_t = low
    elif lacks(high) <= 0:
        log_t = high
    else:
        log_t = brentq(lacks, low, high, xtol=1e-12)
    return softmax(np.asarray(logits, np.float64) / np.exp(log_t))


@given(st.integers(2, 20), st.floats(0.01, 0.99), st.floats(0.05, 8), st.integers(0, 999))
@settings(max_examples=80, deadline=None)
def test_the_temperature_of_an_entropy(size, share, scale, seed):
    logits = np.random.default_rng(seed).normal(scale=scale, size=size)
    target = share * np.log(size)
    gaps = (logits.max() - logits) / np.log(2)
    temperature = dslider.temperature_of_entropy(
        mx.array(gaps[None].astype(np.float32)), mx.array([target])
    ).item()
    found = entropy(softmax(logits / temperature))
    assert found == pytest.approx(entropy(tempered(logits, target)), abs=2e-3)


@given(st.floats(1e-3, 1e4))
@settings(max_examples=80, deadline=None)
def test_digamma_and_its_inverse(x):
    value = mx.array([x])
    assert dslider.digamma(value).item() == pytest.approx(digamma(x), rel=1e-4, abs=1e-4)
    there = dslider.inverse_digamma(mx.array([float(digamma(x))])).item()
    assert there == pytest.approx(x, rel=2e-3)


def inverse_digamma(value):
    return np.exp(brentq(lambda log: digamma(np.exp(log)) - value, -25, 25, xtol=1e-13))


def fitted(mean_logs):
    """Return Dirichlet parameters by solving the equations of maximum likelihood."""

    def alphas(s):
        return np.array([inverse_digamma(s + log) for log in mean_logs])

    def lacks(s):
        return digamma(alphas(s).sum()) - s

    high = dslider.HIGHEST_SUM
    s = high if lacks(high) > 0 else brentq(lacks, dslider.LOWEST_SUM, high, xtol=1e-10)
    return alphas(s)


@given(st.integers(2, 16), st.floats(0.2, 20), st.integers(0, 999))
@settings(max_examples=25, deadline=None)
def test_a_fit_solves_the_equations_of_maximum_likelihood(size, concentration, seed):
    rng = np.random.default_rng(seed)
    samples = rng.dirichlet(rng.uniform(0.2, 1, size) * concentration, 30)
    mean_logs = np.log(np.maximum(samples, 1e-8)).mean(axis=0)
    expected = fitted(mean_logs)
    found = np.array(dslider.dirichlet_fit(mx.array(mean_logs[None].astype(np.float32)))[0])
    np.testing.assert_allclose(found, expected, rtol=2e-2)
    np.testing.assert_allclose(found / found.sum(), expected / expected.sum(), atol=2e-3)


class Slider:
    """docs/sampler.md's formula of `dslider`, in float64."""

    def __init__(self, ratio=0.5, mixing=0.1, rate=0.1):
        self.ratio, self.mixing, self.rate = ratio, mixing, rate
        self.surprise = self.entropy = self.logs = self.probabilities = None

    def mean(self, old, new):
        return new if old is None else (1 - self.rate) * old + self.rate * new

    def distribution(self, logits):
        """Return what is drawn from, and note the position."""
        p = softmax(logits)
        here = entropy(p)
        floored = np.maximum(np.log(np.maximum(p, 1e-300)), np.log(1e-8))
        before = here if self.entropy is None else self.entropy
        target = (before + (before if self.surprise is None else self.surprise)) / 2
        logs = floored if self.logs is None else self.logs
        probabilities = np.exp(floored) if self.probabilities is None else self.probabilities
        result = np.zeros_like(p)
        if here < self.ratio * before:
            result[p.argmax()] = 1
        else:
            support = np.argsort(-logits, kind="stable")[:16]
            q = tempered(logits[support], target)
            alphas = fitted(logs[support] - np.log(probabilities[support].sum()))
            expected = alphas / alphas.sum()
            divergence = (q * np.log(np.maximum(q, 1e-30) / expected)).sum()
            weight = 1 - np.exp(-self.mixing / max(divergence, 1e-6))
            result[support] = weight * expected + (1 - weight) * q
        self.entropy = self.mean(self.entropy, here)
        self.logs = self.mean(self.logs, floored)
        self.probabilities = self.mean(self.probabilities, np.exp(floored))
        return result

    def observe(self, logprob):
        self.surprise = self.mean(self.surprise, -logprob)


def test_dslider():
    sampler = make_sampler("dslider")
    state = sampler.remembered.start(TextStart(vocab=VOCAB))
    rng = np.random.default_rng(8)
    base = rng.normal(scale=2, size=VOCAB)
    slider = Slider()
    certain = 0
    for place in range(25):
        noise = rng.normal(scale=rng.uniform(0.3, 3), size=VOCAB)
        logits = (base + noise).astype(np.float32)
        expected = slider.distribution(logits)
        queued = at(sampler, logits, place, state)
        np.testing.assert_allclose(drawn_from(queued), expected, atol=4e-3)
        certain += expected.max() == 1
        token = queued.token.item()
        assert expected[token] > 0
        slider.observe(np.log(softmax(logits)[token]))
        state = observed(sampler, queued)
        assert state[0].item() == pytest.approx(slider.surprise, abs=1e-3)
        assert state[2].item() == pytest.approx(slider.entropy, abs=1e-3)
        np.testing.assert_allclose(np.array(state[4][0]), slider.logs, atol=1e-3)
    assert 0 < certain < 25
