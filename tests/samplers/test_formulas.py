"""dynatemp, XTC and the samplers with a memory against their formulas in float64."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import digamma

from entropix_mlx.profiles.profile import Profile
from entropix_mlx.samplers import dslider
from entropix_mlx.samplers.base import TextStart
from entropix_mlx.samplers.draw import uniforms
from entropix_mlx.samplers.registry import make_sampler
from tests.oracle.samplers import at, drawn_from, entropy, observed, softmax, some_logits

VOCAB = 300


def stated(name, **options):
    return make_sampler(name, Profile.load().replace({"samplers": {name: options}}))


@pytest.mark.parametrize(
    ("low", "high", "exponent"), [(0.5, 1.5, 1.0), (0.1, 3.0, 2.0), (1.2, 0.4, 0.5)]
)
def test_dynatemp_maps_the_entropy_to_a_temperature(low, high, exponent):
    sampler = stated("dynatemp", min_temperature=low, max_temperature=high, exponent=exponent)
    rng = np.random.default_rng(0)
    for _ in range(30):
        logits = some_logits(rng)
        share = entropy(softmax(logits)) / np.log(logits.size)
        (read,) = at(sampler, logits).read()
        expected = low + (high - low) * share**exponent
        assert read.decision.temperature == pytest.approx(expected, rel=1e-4)


def left_by_xtc(logits, threshold, happens):
    p = softmax(logits)
    above = np.flatnonzero(p >= threshold)
    if happens and above.size > 1:
        p[[token for token in above if token != above[p[above].argmin()]]] = 0
    return p / p.sum()


@pytest.mark.parametrize("threshold", [0.02, 0.1, 0.6])
@pytest.mark.parametrize("probability", [0.0, 0.5, 1.0])
def test_xtc_excludes_all_top_choices_but_the_last(threshold, probability):
    sampler = stated("xtc", threshold=threshold, probability=probability)
    rng = np.random.default_rng(1)
    happened = 0
    for place in range(60):
        logits = some_logits(rng)
        happens = uniforms(7, place, 2)[1][0] < probability
        happened += happens
        queued = at(sampler, logits, place, seed=7)
        expected = left_by_xtc(logits, threshold, happens)
        np.testing.assert_allclose(drawn_from(queued), expected, atol=1e-5)
        assert expected[queued.token.item()] > 0
    assert happened == {0.0: 0, 1.0: 60}.get(probability, happened)
    assert probability != 0.5 or 15 < happened < 45


def test_xtc_takes_the_filters_of_a_baseline():
    sampler = make_sampler("xtc", given={"temperature": 0.0, "top_k": 3, "top_p": 0.9})
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    drawn = {at(sampler, logits, place).token.item() for place in range(40)}
    # Greedy: the best token, or the least probable one of at least 0.1.
    assert drawn == {0, 3}


@pytest.mark.parametrize(("target", "rate"), [(5.0, 0.1), (2.0, 1.0), (0.5, 0.3)])
def test_mirostat(target, rate):
    sampler = stated("mirostat", target_surprise=target, rate=rate)
    state = sampler.remembered.start(TextStart(vocab=VOCAB))
    rng, limit = np.random.default_rng(3), 2 * target
    for place in range(60):
        logits = some_logits(rng, VOCAB)
        surprise = -np.log2(softmax(logits))
        allowed = (surprise <= limit) | (surprise == surprise.min())
        queued = at(sampler, logits, place, state)
        (found,) = queued.read()
        relative = np.exp2(surprise.min() - surprise)
        np.testing.assert_array_equal(relative >= found.decision.min_p, allowed)
        assert allowed[found.token]
        limit -= rate * (surprise[found.token] - target)
        state = observed(sampler, queued)
        assert state[0].item() == pytest.approx(limit, abs=1e-3)


@pytest.mark.parametrize(("target", "decay"), [(0.5, 0.9), (0.1, 0.5), (0.9, 0.0)])
@pytest.mark.parametrize("min_p", [0.0, 0.1])
def test_adaptive_p(target, decay, min_p):
    profile = Profile.load().replace(
        {"samplers": {"adaptive_p": {"target": target, "decay": decay}}}
    )
    sampler = make_sampler("adaptive_p", profile, {"min_p": min_p})
    state = sampler.remembered.start(TextStart(vocab=VOCAB))
    rng = np.random.default_rng(4)
    total, weight = target / (1 - decay), 1 / (1 - decay)
    for place in range(20):
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
