"""Biases and penalties against loops in float64, written from their definitions."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entropix_mlx.samplers.draw import uniforms
from entropix_mlx.samplers.logit_processors import WINDOW
from entropix_mlx.samplers.position import sample
from entropix_mlx.samplers.registry import make_sampler

VOCAB = 12


def expected_logits(logits, prompt, answer, options):
    z = np.array(logits, np.float64)
    text = [*prompt, *answer]
    for token, bias in options.get("logit_bias", {}).items():
        z[token] += bias
    penalty = options.get("repetition_penalty", 1.0)
    for token in set(text):
        z[token] = z[token] / penalty if z[token] > 0 else z[token] * penalty
    for token in set(answer):
        z[token] -= answer.count(token) * options.get("frequency_penalty", 0.0)
        z[token] -= options.get("presence_penalty", 0.0)
    return z


number = st.floats(-2, 2, width=32)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), number, min_size=1),
        "repetition_penalty": st.floats(0.5, 2, width=32),
        "presence_penalty": number,
        "frequency_penalty": number,
    },
)
TEXT = st.lists(st.sampled_from([0, 1, 2, 3, 7, 9]), max_size=40)


@given(prompt=TEXT, answer=TEXT, options=OPTIONS, seed=st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_logits_are_changed_as_defined(prompt, answer, options, seed):
    logits = np.random.default_rng(seed).normal(scale=3, size=VOCAB).astype(np.float32)
    found = changed(logits[None], options, prompt, answer)
    expected = expected_logits(logits, prompt, answer, options)
    np.testing.assert_allclose(np.array(found[0]), expected, rtol=2e-4, atol=2e-4)


def changed(logits, options, prompt, answer):
    penalties = make_sampler("greedy", given=options).penalties
    if penalties is None:
        return mx.array(logits)
    return penalties(mx.array(logits), mx.array([*prompt, *answer][-WINDOW:]), len(answer))


def test_only_the_end_of_a_long_text_counts():
    answer = [1] * 30 + [2] * WINDOW
    found = changed(mx.zeros((1, VOCAB)), {"frequency_penalty": 1.0}, [], answer)
    assert found[0].tolist() == [0, 0, -WINDOW] + [0] * (VOCAB - 3)


@pytest.mark.parametrize(
    "options", [{}, {"presence_penalty": 0}, {"repetition_penalty": 1}, {"logit_bias": {}}]
)
def test_what_changes_nothing_is_left_out(options):
    assert make_sampler("entropix", given=options).penalties is None


@pytest.mark.parametrize("sampler", ["entropix", "greedy", "temperature", "top_n_sigma", "p_less"])
def test_only_the_draw_sees_the_change(sampler):
    logits = mx.array(np.random.default_rng(1).normal(size=(1, 400)).astype(np.float32))
    best = int(logits.argmax())
    bias = {"logit_bias": {best: -100.0, 399: 100.0}}
    plain, biased = make_sampler(sampler), make_sampler(sampler, given=bias)
    randomness = mx.array([uniforms(0, 0, plain.draws)]).reshape(1, plain.draws, 2)
    (one,) = sample(plain, logits, None, randomness, 3).read()
    adjusted = biased.penalties(logits, mx.array([1]), 0)
    (other,) = sample(biased, logits, None, randomness, 3, changed=adjusted).read()
    assert other.token == 399
    assert other.metrics == one.metrics
    assert other.strategy == one.strategy
    assert other.alternatives == one.alternatives
    log_total = mx.logsumexp(logits[0]).item()
    assert other.logprob == pytest.approx(float(logits[0, 399]) - log_total, abs=1e-4)
